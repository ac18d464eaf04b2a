"""Pairs of shards that a dense encoder finds alike: against NumPy, killed and run again, damaged shards and images."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lexvl_anserini.cli import make_app
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.data.lines import LeftOut
from lexvl_anserini.data.pictures.archives import Archive
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.ground.errors import LexvlError
from lexvl_plugins.train.corpora import filter_pairs
from lexvl_plugins.train.corpora.filter_pairs import FilteredPairs, command, compute_cosines, filter_shards, make_scorer
from lexvl_plugins.train.corpora.webdataset import ShardImage, find_shards
from tests.plugins.train.pair_shards import COLOURS, pairs, picture, write_tar

REQUEST = {"encoder": {"name": "colours"}}


class Side:
    """A dense tower: of an image its mean colour, of a text that of the first colour in it; both from mid grey."""

    kind = "dense"

    def __init__(self, of_images: bool):
        self.of_images, self.calls = of_images, 0

    def read(self, document: Any) -> str:
        return str(document.image)

    def read_topic(self, topic: Any) -> str:
        return str(topic.text)

    def encode(self, item: str) -> np.ndarray:
        if self.of_images:
            return np.asarray(open_image(item), dtype=np.float32).mean(axis=(0, 1)) - 128
        word = next((word for word in item.split() if word in COLOURS), "grey")
        return np.array(COLOURS[word], dtype=np.float32) - 128

    def vectors(self, inputs: Any, batch_size: int = 32, progress: Any = None, on_error: Any = None) -> np.ndarray:
        self.calls += 1
        rows = []
        for position, item in enumerate(inputs):
            try:
                rows.append(self.encode(item))
            except LexvlError as problem:
                on_error.unreadable(position, item, problem)
                rows.append(np.zeros(3, dtype=np.float32))
        return np.stack(rows)


class Colours:
    """An encoder of these sides."""

    def __init__(self) -> None:
        self.query, self.document = Side(False), Side(True)

    def identity(self) -> Any:
        return self

    def without_places(self) -> dict[str, Any]:
        return {"name": "colours"}


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> Colours:
    encoder = Colours()
    monkeypatch.setattr(filter_pairs, "load_encoder", lambda *places, **options: encoder)
    return encoder


def swap(members: dict[str, bytes], number: int, text: str) -> dict[str, bytes]:
    """The members with another text of a pair."""
    return {**members, f"{number:09d}.txt": text.encode()}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two shards of eight pairs: 1 and 9 have the text of another picture; pair 2 has a vector and JSON beside it."""
    folder = tmp_path / "shards"
    first, second = swap(pairs(range(8)), 1, picture(0)[1]), swap(pairs(range(8, 16)), 9, picture(10)[1])
    first |= {"000000002.json": b'{"caption": "x"}', "000000002.npy": b"vector", "000000099.txt": b"alone"}
    write_tar(folder / "a" / "0.tar", first)
    write_tar(folder / "b" / "0.tar", second)
    return folder


def read_members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def call(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(make_app(command), [*options, "--format", "json"])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_cosines() -> None:
    """Of (3, 4) with (4, 3) 24 / 25; of a vector of zeros 0, whatever the other one."""
    images = np.array([[3, 4], [1, 0], [0, 0], [2, 0]], dtype=np.float32)
    texts = np.array([[4, 3], [0, 1], [1, 1], [-1, 0]], dtype=np.float32)
    assert np.allclose(compute_cosines(images, texts), [0.96, 0, 0, -1])


def test_kept_pairs_are_those_of_numpy(shards: Path, tmp_path: Path, colours: Colours) -> None:
    """Whole members of pairs of at least 0.5, in their order, with their bytes; both shards of one name."""
    found = call(str(shards), "--output", str(tmp_path / "kept"), "--least", "0.5")
    expected: dict[str, list[str]] = {"a": [], "b": []}
    for number in range(16):
        text = picture({1: 0, 9: 10}.get(number, number))[1]
        shard = "ab"[number // 8]
        image = colours.document.encode(f"{shards}/{shard}/0.tar::{number:09d}.png").astype(float)
        word = colours.query.encode(text).astype(float)
        if image @ word >= 0.5 * np.sqrt(image @ image * (word @ word)) > 0:
            expected[shard].append(f"{number:09d}")
    total = sum(map(len, expected.values()))
    assert 8 <= total <= 14 and "000000001" not in expected["a"] and "000000002" in expected["a"]
    for shard, stems in expected.items():
        source, kept = (read_members(folder / shard / "0.tar") for folder in (shards, tmp_path / "kept"))
        assert kept == {name: source[name] for name in source if name.partition(".")[0] in stems}
        assert list(kept) == [name for name in source if name in kept]
    counted = {"pairs": 16, "matching": total, "dropped": 16 - total, "unreadable": 0}
    assert found == {"output": str(tmp_path / "kept"), "shards": 2, **counted}
    assert {"000000002.npy", "000000002.json"} <= read_members(tmp_path / "kept/a/0.tar").keys()
    dataset = load_dataset(f"webdataset:{tmp_path / 'kept'}", direction="text-to-image")
    assert len(list(dataset.documents())) == total


def test_a_killed_call_goes_on(shards: Path, tmp_path: Path) -> None:
    """Killed in the second shard, run again: the first one is not read again, and the bytes are those of one call."""
    corpus, encoder = find_shards(f"webdataset:{shards}"), Colours()
    score = make_scorer(encoder, 4)  # type: ignore[arg-type]

    def stop(archive: Archive, found: list[ShardImage], left_out: LeftOut) -> np.ndarray:
        if archive.path.parent.name == "b":
            raise KeyboardInterrupt
        return score(archive, found, left_out)

    with pytest.raises(KeyboardInterrupt):
        filter_shards(corpus, tmp_path / "kept", stop, REQUEST, 0.5, False)  # type: ignore[arg-type]
    assert [path.name for path in sorted((tmp_path / "kept").rglob("*"))] == ["a", "0.tar", "filter.json"]
    calls = encoder.document.calls
    counts = filter_shards(corpus, tmp_path / "kept", score, REQUEST, 0.5, False)
    assert encoder.document.calls == calls + 1
    assert filter_shards(corpus, tmp_path / "whole", score, REQUEST, 0.5, False) == counts
    for name in ("a/0.tar", "b/0.tar"):
        assert (tmp_path / "kept" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    done = encoder.document.calls
    assert filter_shards(corpus, tmp_path / "kept", score, REQUEST, 0.5, False) == counts
    (tmp_path / "kept/a/0.tar").unlink()
    filter_shards(corpus, tmp_path / "kept", score, REQUEST, 0.5, False)
    write_tar(shards / "b/0.tar", pairs(range(8, 12)))  # another shard of that name
    assert filter_shards(corpus, tmp_path / "kept", score, REQUEST, 0.5, False).pairs == 12
    assert encoder.document.calls == done + 2


def test_damage_is_counted_and_named(shards: Path, tmp_path: Path, colours: Colours, caplog: Any) -> None:
    """An image that is none is not kept; a shard that is cut off is an error after the others, until it is replaced."""
    members = pairs(range(8, 12))
    write_tar(shards / "b/0.tar", {**members, "000000008.png": b"no picture"})
    whole = (shards / "a/0.tar").read_bytes()
    (shards / "a/0.tar").write_bytes(whole[:3000])
    options = (str(shards), "--output", str(tmp_path / "kept"), "--least", "-1")
    with pytest.raises(LexvlError, match=r"a/0.tar: damaged header .*; replace it and run the same command again"):
        call(*options)
    assert "skipped, an image that cannot be decoded: 1" in caplog.text and "b/0.tar::000000008.png" in caplog.text
    assert set(read_members(tmp_path / "kept/b/0.tar")) == members.keys() - {"000000008.png", "000000008.txt"}
    (shards / "a/0.tar").write_bytes(whole)
    found = call(*options)
    assert {key: found[key] for key in FilteredPairs._fields} == {
        "pairs": 12,
        "matching": 11,
        "dropped": 0,
        "unreadable": 1,
    }


def test_no_pair_is_kept(tmp_path: Path, colours: Colours) -> None:
    """A text without a colour has a cosine of 0. An empty shard is a shard."""
    write_tar(tmp_path / "shards/0.tar", swap(pairs([0]), 0, "a square"))
    found = call(str(tmp_path / "shards"), "--output", str(tmp_path / "kept"))
    assert (found["matching"], found["dropped"]) == (0, 1) and read_members(tmp_path / "kept/0.tar") == {}
    assert list(load_dataset(f"webdataset:{tmp_path / 'kept'}", direction="text-to-image").documents()) == []


def test_outputs_of_others_are_refused(shards: Path, tmp_path: Path, colours: Colours) -> None:
    kept = str(tmp_path / "kept")
    call(f"webdataset:{shards}/a/0.tar", "--output", kept)
    with pytest.raises(LexvlError, match=r"holds shards of another request \(least: 0.2 found, 0.4 requested\)"):
        call(str(shards), "--output", kept, "--least", "0.4")
    call(str(shards / "b"), "--output", kept, "--least", "0.4", "--overwrite")
    assert not json.loads((tmp_path / "kept/filter.json").read_text())["shards"].keys() - {"0"}
    with pytest.raises(LexvlError, match="among the shards that are read; name a folder outside"):
        call(str(shards / "a"), "--output", str(shards / "a/kept"))
    with pytest.raises(LexvlError, match="not empty and not written by filter-pairs"):
        call(str(shards / "a"), "--output", str(shards))
    with pytest.raises(LexvlError, match="no such shard"):
        call(str(tmp_path / "missing.tar"), "--output", kept)


def test_the_encoder_is_dense(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(LexvlError, match="has no dense vectors; choose a dense one"):
        call(str(shards), "--output", str(tmp_path / "kept"), "--encoder", "bm25")
    assert not (tmp_path / "kept").exists()
