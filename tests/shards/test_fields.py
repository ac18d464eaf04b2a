"""Fields that are joined: documents by id, terms by prefix, BM25 as impacts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from brute_force import Doc, Oracle
from hypothesis import given
from hypothesis import strategies as st
from shard_folders import read_all, write_dense_shards, write_described_shards, write_shards, write_text_shards

from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import Manifest, read_manifest, write_manifest
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.queries.clauses import Text
from lexvl_anserini.shards.fields import compute_bm25, join_fields
from lexvl_anserini.shards.reading import read_metadata, read_vocabulary

TEXT = [("d1", {"boat": 3, "red": 1}), ("d2", {}), ("d3", {"sea": 2})]
IMAGE = [("d3", {"boat": 7}), ("d4", {"sky": 4, "a:b": 1}), ("d1", {"boat": 9})]


def analysis(settings: BM25Settings) -> Any:
    assert settings == BM25Settings()
    return str.split


def join(output: Path, fields: Mapping[str, Path], **options: Any) -> Manifest:
    return join_fields(fields, output, analysis, **options)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_documents_join_by_id(tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    write_shards(tmp_path / "a", TEXT[:2], TEXT[2:])
    write_shards(tmp_path / "b", IMAGE, suffix=suffix)
    seen: list[int] = []
    manifest = join(tmp_path / "both", {"text": tmp_path / "a", "image": tmp_path / "b"}, progress=seen.append)
    assert list(read_all(tmp_path / "both").items()) == [
        ("d1", {"text:boat": 3, "text:red": 1, "image:boat": 9}),
        ("d2", {}),
        ("d3", {"text:sea": 2, "image:boat": 7}),
        ("d4", {"image:sky": 4, "image:a:b": 1}),
    ]
    assert (sum(seen), read_manifest(tmp_path / "both")) == (4, manifest)
    expected = {"documents": 4, "empty": 1, "postings": 7, "clipped": 0, "dropped": 0, "max_impact": 9}
    assert dict(manifest.counts) == expected
    assert (manifest.encoder.name, manifest.fields, manifest.kind) == ("fields", ("text", "image"), "impact")
    told = [f"1 of 4 documents have no field {name}" for name in ("text", "image")]
    assert [record.getMessage() for record in caplog.records] == told
    # The terms of each field, in the order of its own vocabulary.
    assert read_vocabulary(tmp_path / "both", manifest).terms == (
        *("text:boat", "text:red", "text:sea"),
        *("image:a:b", "image:boat", "image:sky"),
    )


def test_texts_become_impacts_of_bm25(tmp_path: Path) -> None:
    """idf of `sea`, in two of three texts, is ln(1.6), of the others ln(2.6667); k1 = 0.9, b = 0.4, avgdl = 2."""
    write_text_shards(tmp_path / "texts", [("d1", "sea sea boat"), ("d2", "sky"), ("d3", ""), ("d4", "sea red")])
    manifest = join(tmp_path / "one", {"words": tmp_path / "texts"})
    # sea: .47 x 2 / (2 + 1.08), .47 x 1 / (1 + .9); boat .98 / (1 + 1.08); sky .98 / (1 + .72); red .98 / (1 + .9)
    assert read_all(tmp_path / "one") == {
        "d1": {"words:sea": 136, "words:boat": 211},
        "d2": {"words:sky": 255},
        "d3": {},
        "d4": {"words:sea": 111, "words:red": 231},
    }
    assert manifest.counts["clipped"] == 0 and manifest.encoder.options == {"words.weight": 255}
    [field] = manifest.encoder.fields
    assert (field.kind, field.encoder.name, field.vocabulary_digest) == ("text", "toy", None)
    assert read_vocabulary(tmp_path / "one", manifest).terms == ("words:sea", "words:boat", "words:red", "words:sky")


@given(st.lists(st.text("abc ", max_size=9), max_size=6))
def test_weights_of_bm25_equal_the_equation(texts: list[str]) -> None:
    weights, vocabulary = compute_bm25(texts, str.split, 0.9, 0.4)
    documents = [Doc(str(number), {}, text) for number, text in enumerate(texts)]
    oracle = Oracle(documents)
    assert set(vocabulary) == {word for text in texts for word in text.split()}
    for row, document in enumerate(documents):
        for term, weight in zip(vocabulary, weights.toarray()[row], strict=True):
            assert weight == pytest.approx(oracle.bm25(Text(term), document) or 0, rel=1e-5)


def test_texts_and_metadata_of_all_fields_stay(tmp_path: Path) -> None:
    first = [Doc("d1", {"a": 1}, "", {"page": 3}), Doc("d2", {"a": 1}, "two", {})]
    second = [Doc("d2", {"b": 1}, "other", {"page": 4}), Doc("d1", {"b": 2}, "one", {"page": 3, "file": "x"})]
    write_described_shards(tmp_path / "a", first, ["a"])
    write_described_shards(tmp_path / "b", second, ["b"])
    manifest = join(tmp_path / "both", {"x": tmp_path / "a", "y": tmp_path / "b"})
    shard = tmp_path / "both" / manifest.shards[0]["name"]
    assert list(read_metadata(shard)) == [{"page": 3, "file": "x"}, {"page": 4}]
    write_described_shards(tmp_path / "c", [Doc("d1", {"b": 2}, "", {"page": 5})], ["b"])
    with pytest.raises(ArtefactError, match="document 'd1': metadata 'page' is 5 in the field z, and 3 in another"):
        join(tmp_path / "others", {"x": tmp_path / "a", "z": tmp_path / "c"})
    assert not (tmp_path / "others").exists()


def test_the_same_join_again_and_another_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = write_shards(tmp_path / "a", TEXT)
    write_shards(tmp_path / "b", IMAGE)
    fields = {"text": tmp_path / "a", "image": tmp_path / "b"}
    for bits in (8, 6):
        scaled = Quantiser(SideQuantiser("calibrated", 8, 17.5, 99.0), SideQuantiser("peak", bits)).to_json()
        write_manifest(tmp_path / "a", replace(whole, quantiser=scaled))
        if bits == 6:  # the same bytes, for other queries
            with pytest.raises(ArtefactError, match="holds shards of another request .*sides.text"):
                join(tmp_path / "both", fields)
        manifest = join(tmp_path / "both", fields, overwrite=bits == 6)
    caplog.set_level("INFO")
    assert join(tmp_path / "both", fields) == manifest
    assert "finished already" in caplog.text
    with pytest.raises(ArtefactError, match="holds shards of another request .*--overwrite replaces it"):
        join(tmp_path / "both", dict(reversed(fields.items())))
    assert join(tmp_path / "both", {"image": tmp_path / "b"}, overwrite=True).counts.documents == 3


@pytest.mark.parametrize("name", ["", "id", "meta", "a:b", "a.b", "2d", "bö"])
def test_names_that_no_field_can_have(tmp_path: Path, name: str) -> None:
    write_shards(tmp_path / "a", TEXT)
    with pytest.raises(UsageError, match="expected letters, digits"):
        join(tmp_path / "both", {name: tmp_path / "a"})


def test_what_is_no_field(tmp_path: Path) -> None:
    write_dense_shards(tmp_path / "dense", [("d1", [1.0])])
    write_shards(tmp_path / "a", TEXT)
    write_shards(tmp_path / "twice", TEXT, TEXT[:1])
    join(tmp_path / "joined", {"x": tmp_path / "a"})
    for folder, problem in (("dense", "dense vectors"), ("joined", "shards of several fields")):
        with pytest.raises(UsageError, match=f"{folder}: {problem}; a field is of impacts, or of texts"):
            join(tmp_path / "both", {"x": tmp_path / folder})
    with pytest.raises(ArtefactError, match="twice: 3 different ids of 4 documents; ids must be distinct"):
        join(tmp_path / "both", {"x": tmp_path / "twice"})
    with pytest.raises(UsageError, match="no field"):
        join(tmp_path / "both", {})
