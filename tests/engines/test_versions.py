"""Indexes of Lucene 9 and 10: which version wrote them, what each version opens and changes, and what it refuses."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest
from lucene_indexes import answers

from lexvl_anserini.cli import COMMANDS
from lexvl_anserini.engines import index_folder, jvm
from lexvl_anserini.engines.bm25 import BM25Engine
from lexvl_anserini.engines.index_folder import IndexVersion, index_manifest, read_creator, read_report, read_version
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.searching.building import append_index, build_index, check_index, delete_documents
from lexvl_anserini.searching.search import EncoderChanges
from tests.invoking import invoked

FIXTURES = Path(__file__).parents[1] / "fixtures"
NINE, TEN = FIXTURES / "lexvl-1", FIXTURES / "lucene-10"


@pytest.fixture
def place(tmp_path):
    """A copy of the fixtures: shards and indexes of Lucene 9, and `new` with those of Lucene 10."""
    shutil.copytree(NINE, tmp_path / "lexvl-1")
    shutil.copytree(TEN, tmp_path / "lexvl-1/new")
    return tmp_path / "lexvl-1"


def hits(index):
    return answers(index, {"boat": 2, "red": 1, "dog": 3})


def contents(index):
    return {path.name: path.read_bytes() for path in index.iterdir() if path.name != "write.lock"}


def line():
    """The major version of the Lucene that is installed."""
    jvm.start()
    return jvm.read_lucene_version()[0]


def needs(major):
    if line() != major:
        pytest.skip(f"Lucene {line()} is installed, this test needs Lucene {major}")


def test_versions_are_read_from_the_files():
    assert read_version(NINE / "indexes/bag") == IndexVersion((9, 9, 1), 9)
    assert read_version(NINE / "indexes/bm25") == IndexVersion((9, 9, 1), 9)
    assert read_version(TEN / "bag") == IndexVersion((10, 5, 0), 10)
    assert read_version(TEN / "bm25") == IndexVersion((10, 5, 0), 10)
    assert read_version(TEN / "appended") == IndexVersion((10, 5, 0), 9)


def test_folders_without_a_readable_commit(tmp_path):
    assert read_version(tmp_path) is None
    (tmp_path / "segments_1").write_bytes(b"")
    assert read_version(tmp_path) is None
    whole = (TEN / "bag/segments_1").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "segments_1").write_bytes(whole[:size])
        assert read_version(tmp_path) in (None, IndexVersion((10, 5, 0), 10))
    # Of several commits the last one counts; its number has base 36.
    (tmp_path / "segments_9").write_bytes((TEN / "bag/segments_1").read_bytes())
    (tmp_path / "segments_a").write_bytes((NINE / "indexes/bag/segments_1").read_bytes())
    assert read_version(tmp_path) == IndexVersion((9, 9, 1), 9)


def test_a_new_index_notes_its_lucene(place):
    index = place / "made"
    build_index(place / "impacts/bag", index)
    version = read_version(index)
    assert version == IndexVersion(jvm.read_lucene_version(), line())
    assert read_report(index)["lucene"] == ".".join(map(str, version.written))


def test_both_lines_find_the_same(place):
    needs(10)
    before = hits(place / "indexes/bag")
    assert before and hits(place / "new/bag") == before
    build_index(place / "impacts/bag", place / "made")
    assert hits(place / "made") == before
    assert check_index(place / "indexes/bag", [place / "impacts/bag"])["problems"] == 0
    engine = BM25Engine(place / "indexes/bm25", read_manifest(place / "indexes/bm25"))
    engine.close()


def test_an_index_of_the_line_before_is_changed(place):
    """Also on the line that wrote it."""
    index, major = place / "indexes/bag", line()
    append_index(index, place / "impacts/more")
    assert read_version(index) == IndexVersion(jvm.read_lucene_version(), 9)
    assert read_report(index)["lucene"].startswith(f"{major}.")
    sources = [place / "impacts/bag", place / "impacts/more"]
    assert check_index(index, sources)["problems"] == 0
    delete_documents(index, ["d01", "e02"])
    assert read_manifest(index).counts["documents"] == 12
    append_index(index, sources, replace=True)
    assert check_index(index, sources)["problems"] == 0
    build_index([index], place / "merged")
    assert hits(place / "merged") == hits(index)


def test_what_lucene_10_appended_is_read_and_changed(place):
    needs(10)
    index = place / "new/appended"
    assert check_index(index, [place / "impacts/bag", place / "impacts/more"])["problems"] == 0
    delete_documents(index, ["e01"])
    assert read_version(index) == IndexVersion(jvm.read_lucene_version(), 9)


@pytest.mark.parametrize(
    "act",
    [
        lambda place, index: hits(index),
        lambda place, index: check_index(index, [place / "impacts/bag"]),
        lambda place, index: append_index(index, place / "impacts/more", replace=True),
        lambda place, index: delete_documents(index, ["d01"]),
        lambda place, index: build_index([index], place / "merged"),
    ],
    ids=["search", "check", "append", "delete", "merge"],
)
@pytest.mark.parametrize("name", ["bag", "appended"])
def test_the_older_line_names_both_versions(place, name, act):
    needs(9)
    index = place / "new" / name
    # An index that holds the shards already is left as it is, without opening it.
    if name == "appended":
        shutil.rmtree(place / "impacts/more")
        shutil.copytree(place / "impacts/part-0", place / "impacts/more")
    before = contents(index)
    with pytest.raises(ArtefactError) as refused:
        act(place, index)
    assert str(refused.value) == (
        f"{index}: written by Lucene 10.5.0, which Lucene 9.9.1 of this Pyserini cannot read; use a Pyserini as new as "
        "the one that wrote it, or build the index again here"
    )
    assert contents(index) == before
    assert not (place / "merged").exists()
    with pytest.raises(ArtefactError, match=r"new/bm25: written by Lucene 10\.5\.0, which Lucene 9\.9\.1 of this"):
        BM25Engine(place / "new/bm25", read_manifest(place / "new/bm25"))


def test_a_newer_line_is_refused_before_the_encoder_is_loaded(place, monkeypatch):
    """Also where Lucene 10 is installed; neither Java nor the encoder starts."""
    index = place / "new/bag"
    monkeypatch.setattr(index_folder, "find_version", lambda package: "1.6.0")
    monkeypatch.setattr(index_folder, "find_lucene", lambda jar: "9.9.1")
    monkeypatch.setattr(EncoderChanges, "load", lambda self, manifest: pytest.fail("the encoder is loaded"))
    for command in (
        ["search", "--index", index, "--topics", "demo"],
        ["search", "--index", index, "--interactive"],
        ["explain", "--index", index, "--query", "sea"],
        ["serve", "--index", index],
    ):
        home = import_module(COMMANDS[command[0]].module)
        with pytest.raises(ArtefactError, match=r"new/bag: written by Lucene 10\.5\.0, which Lucene 9\.9\.1 of this"):
            invoked(home.command, *command[1:])
    assert index_manifest(place / "indexes/bag").kind == "impact"
    monkeypatch.setattr(index_folder, "find_lucene", lambda jar: "10.0.0")
    assert index_manifest(index).kind == "impact"


def test_indexes_of_different_creators_are_not_joined(place):
    needs(10)
    with pytest.raises(ArtefactError, match="indexes/bag by Lucene 9 and .*new/bag by Lucene 10: created by different"):
        read_creator([place / "indexes/bag", place / "new/bag"])
    assert read_creator([place / "indexes/bag", place / "new/appended"]) == 9
    build_index(place / "impacts/more", place / "later")
    with pytest.raises(ArtefactError, match="created by different versions, which Lucene does not join; use their"):
        append_index(place / "indexes/bag", place / "later")
    with pytest.raises(ArtefactError, match="created by different versions"):
        build_index([place / "indexes/bag", place / "later"], place / "merged")
    build_index([place / "indexes/bag", place / "impacts/more"], place / "merged")
    assert read_version(place / "merged") == IndexVersion(jvm.read_lucene_version(), 9)
