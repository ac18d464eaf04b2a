"""Shards of images with texts as a corpus: which members are pairs, and what is left out is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_plugins.train.corpora.webdataset import expand_pattern, find_shards
from tests.plugins.train.pair_shards import picture, write_shards, write_tar

PNG, TEXT = picture(0)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("{08..11}.tar", ["08.tar", "09.tar", "10.tar", "11.tar"]),
        ("{a,b}/{1..2}.tar", ["a/1.tar", "a/2.tar", "b/1.tar", "b/2.tar"]),
        ("{a,b{0..1}}.tar", ["a.tar", "b0.tar", "a.tar", "b1.tar"]),
        ("{2..1}.tar", []),
    ],
)
def test_patterns(pattern: str, names: list[str]) -> None:
    assert expand_pattern(pattern) == names


def test_pairs_are_documents_and_topics(tmp_path: Path) -> None:
    """A folder, a pattern and a tar name the same shards."""
    name = write_shards(tmp_path, 5, 3)
    data = load_dataset(name)
    ids = ["00000/000000000", "00000/000000001", "00000/000000002", "00001/000000003", "00001/000000004"]
    assert [document.doc_id for document in data.documents()] == ids
    assert [(topic.query_id, topic.text) for topic in data.topics()] == [(i, picture(n)[1]) for n, i in enumerate(ids)]
    assert [(qrel.query_id, qrel.doc_id) for qrel in data.qrels()] == [(i, i) for i in ids]
    assert [open_image(document.image or "").size for document in data.documents()] == [(16, 16)] * 5
    pattern = load_dataset(f"webdataset:{tmp_path}/{{00000..00001}}.tar", "train", direction="image-to-text")
    assert [(document.doc_id, document.text) for document in pattern.documents()] == [
        (i, picture(n)[1]) for n, i in enumerate(ids)
    ]
    assert [topic.image for topic in pattern.topics()] == [document.image for document in data.documents()]
    assert [d.doc_id for d in load_dataset(f"webdataset:{tmp_path}/00001.tar").documents()] == ids[3:]


def test_shards_of_several_folders_have_other_names(tmp_path: Path) -> None:
    for folder in "ab":
        write_shards(tmp_path / folder, 1, 1)
    assert list(find_shards(f"webdataset:{tmp_path}")) == ["a/00000", "b/00000"]


def test_what_is_no_pair_is_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members = {
        "both.PNG": PNG,
        "both.txt": b"of the text file",
        "both.json": b'{"caption": "of the JSON file"}',
        "json.jpg": PNG,
        "json.json": '{"caption": " Füße ", "width": 3}'.encode(),
        "a.b.png": PNG,
        "a.b.txt": b"a name with a dot",
        "alone.png": PNG,
        "blank.png": PNG,
        "blank.txt": b" \n",
        "latin.png": PNG,
        "latin.txt": b"caf\xe9",
        "keyless.png": PNG,
        "keyless.json": b'{"text": "no caption"}',
        "number.png": PNG,
        "number.json": b'{"caption": 3}',
        "lonely.txt": b"no image",
        "both.jpg": PNG,
        "both.cls": b"3",
        "x/._both.png": PNG,
    }
    write_tar(tmp_path / "s.tar", members)
    with caplog.at_level("INFO"):
        data = load_dataset(f"webdataset:{tmp_path}/s.tar")
        texts = {topic.query_id: topic.text for topic in data.topics()}
        documents = [document.doc_id for document in data.documents()]
    assert texts == {"s/both": "of the text file", "s/json": "Füße", "s/a.b": "a name with a dot"}
    stems = ("both", "json", "a.b", "alone", "blank", "latin", "keyless", "number")
    assert documents == [f"s/{stem}" for stem in stems]
    tar = tmp_path / "s.tar"
    for line in (
        f"an image without a text: 5 ({tar}::alone.png, {tar}::blank.png, {tar}::latin.png, {tar}::keyless.png, ",
        f"a text without an image: 1 ({tar}::lonely)",
        f"a text that is not UTF-8: 1 ({tar}::latin.txt)",
        f"JSON without a string 'caption': 2 ({tar}::keyless.json, {tar}::number.json)",
        f"a second one of its pair: 1 ({tar}::both.jpg)",
        f"neither image nor text: 1 ({tar}::both.cls)",
        f"hidden: 1 ({tar}::x/._both.png)",
    ):
        assert caplog.text.count(f"webdataset:{tar}: skipped, {line}") == 1, line


def test_errors_name_the_shard(tmp_path: Path) -> None:
    name = write_shards(tmp_path, 4, 2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.tgz").write_bytes(b"")
    for corpus, split, message in (
        (
            f"{name}/{{00000..00002}}.tar",
            None,
            r"00002\.tar: no such shard \(1 of the 3 of webdataset:.* are not there\)",
        ),
        ("webdataset:", None, "names no shards; expected webdataset:<folder, tar or pattern such as"),
        (name, "val", "split 'val' of shards, whose pairs are all 'train'"),
        (f"{name}/empty", None, r"empty: no \.tar in it"),
        (f"{name}/a.tgz", None, r"a\.tgz: expected a shard, an uncompressed \.tar"),
    ):
        with pytest.raises((DataError, UsageError), match=message):
            load_dataset(corpus, split)
