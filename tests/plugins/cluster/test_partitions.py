"""An index in partitions: its lists are those of one index; what does not belong to it is refused."""

import json
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_folders import write_shards

from lexvl_anserini.engines.engine import open_impact_index, open_verified
from lexvl_anserini.engines.index_folder import index_manifest, read_report
from lexvl_anserini.ground.errors import ArtefactError, DataError, LexvlError, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery
from lexvl_anserini.queries.clauses import All, Ids, Impacts, Not, Term, Text
from lexvl_anserini.searching.building import append_index, build_index, check_index, delete_documents
from lexvl_plugins.cluster import partitions
from lexvl_plugins.cluster.partitions import PartitionsEngine
from lexvl_plugins.cluster.search import command as search_command

TERMS = ("ash", "bay", "cat", "dog")

# Many ties; "é" is after "z" by code points.
DOCUMENTS = [("d1", {"ash": 3, "cat": 2}), ("z", {"ash": 3}), ("é", {"ash": 3}), ("d2", {})]
DOCUMENTS += [("a", {"ash": 3, "dog": 9}), ("d3", {"bay": 7}), ("d4", {"ash": 1, "bay": 1})]


def split(documents: Sequence[Any], folder: Path, cuts: Sequence[int]) -> list[Path]:
    """Shards of the documents, cut before these positions."""
    bounds = [0, *cuts, len(documents)]
    for number, (first, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        write_shards(folder / f"s{number}", documents[first:end], terms=TERMS)
    return [folder / f"s{number}" for number in range(len(bounds) - 1)]


def engine(index: Path) -> Any:
    return open_impact_index(index, index_manifest(index))


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One index, and one in three partitions, of the same documents."""
    folder = tmp_path_factory.mktemp("partitions")
    options = {"term_vectors": True}
    [whole] = split(DOCUMENTS, folder / "whole", [])
    build_index(whole, folder / "one", options=options)
    build_index(split(DOCUMENTS, folder / "parts", [3, 4]), folder / "three", engine="partitions", options=options)
    return folder / "one", folder / "three"


@given(
    vector=st.dictionaries(st.sampled_from([*TERMS, "elm"]), st.integers(1, 5)),
    hits=st.integers(1, 9),
    threads=st.integers(1, 2),
)
def test_lists_are_those_of_one_index(indexes, vector, hits, threads):
    queries = [ImpactQuery("q1", vector), ImpactQuery("q2", {"ash": 1})]
    found = []
    for index in indexes:
        with open_verified(engine(index)) as opened:
            found.append(list(opened.search(queries, hits, threads)))
    assert found[0] == found[1]


def test_documents_whose_passages_are_in_several_partitions(tmp_path):
    passages = [("a#0", 3), ("b#0", 2), ("a!#0", 3), ("b#1", 2), ("c", 1), ("a#1", 1)]
    sources = split([(name, {"ash": impact}) for name, impact in passages], tmp_path, [2, 4])
    index = build_index(sources, tmp_path / "three", engine="partitions").path
    with open_verified(engine(index)) as opened:
        for best, expected in ((1, [("a", 3), ("a!", 3), ("b", 2), ("c", 1)]), (2, [("a", 4), ("b", 4), ("a!", 3)])):
            [documents] = opened.search_passages([ImpactQuery("q", {"ash": 1})], best, len(expected))
            assert list(documents.pairs()) == expected


def test_ties_across_partitions_and_the_cut(indexes):
    """Four documents score 3; two of them are in the first partition, in the order z, é."""
    with open_verified(engine(indexes[1])) as opened:
        [found] = opened.search([ImpactQuery("q", {"ash": 1})], 3)
        assert [(d.doc_id, d.rank, d.score) for d in found] == [("a", 1, 3.0), ("d1", 2, 3.0), ("z", 3, 3.0)]


def test_trees_vectors_impacts_and_bounds_are_those_of_one_index(indexes):
    trees = [Term("ash", 2), Not(Term("bay")), All((Impacts({"ash": 1, "bay": 1}), Ids(("d4", "d3", "z"))))]
    answers = []
    for index in indexes:
        with open_verified(engine(index)) as opened:
            lists = [opened.search_tree("q", tree, 5) for tree in trees]
            bounds = [opened.bound(v) for v in ({"ash": 2}, {"ash": SCORE_LIMIT, "dog": 2, "bay": 1}, {"elm": 1})]
            impacts = [opened.impacts(doc, ["dog", "ash", "elm"]) for doc, _ in DOCUMENTS]
            answers.append((lists, bounds, impacts, [opened.vector(doc) for doc, _ in DOCUMENTS]))
            with pytest.raises(DataError, match="no document 'd9'|'d9'"):
                opened.vector("d9")
    assert answers[0] == answers[1]
    assert answers[1][1][1] == SCORE_LIMIT * 3 + 2 * 9 + 7
    # Queries are quantised by the manifest of the whole; the first partition alone has 3.
    assert index_manifest(indexes[1]).counts.max_impact == 9
    assert read_manifest(indexes[1] / "partition-00000").counts.max_impact == 3


def test_what_partitions_are_not(indexes, tmp_path):
    """They have no BM25, are built from shards alone, are what a cluster searches, and no index by themselves."""
    with open_verified(engine(indexes[1])) as opened, pytest.raises(UsageError, match="statistics of the whole"):
        opened.search_tree("q", All((Term("ash"), Not(Text("sea")))), 3)
    sources = split(DOCUMENTS, tmp_path, [2])
    with pytest.raises(UsageError, match="text"):
        build_index(sources, tmp_path / "i", engine="partitions", text=True)
    with pytest.raises(UsageError, match="partitions are built from shards"):
        build_index([indexes[0], *sources], tmp_path / "i", engine="partitions")
    with pytest.raises(UsageError, match=r"--runner ray searches an index in partitions, .*one is one index"):
        search_command(index=str(indexes[0]), match="ash", runner="ray")
    with pytest.raises(ArtefactError, match=r"partition-00001: a partition; search .*three, because queries"):
        index_manifest(indexes[1] / "partition-00001")


def test_a_partition_of_another_collection_is_refused(tmp_path):
    sources = split(DOCUMENTS, tmp_path, [3])
    index = build_index(sources, tmp_path / "i", engine="partitions").path
    note = index / "partition-00001/partition.json"
    note.write_text(json.dumps({"collection": "0" * 64, "number": 1}))
    with pytest.raises(ArtefactError, match=r"partition-00001: a partition of the collection 000000000000, expected"):
        engine(index)
    note.unlink()
    with pytest.raises(ArtefactError, match=r"partition-00001.*partition\.json"):
        engine(index)


def test_a_missing_or_swapped_partition_is_named_and_built_again(tmp_path):
    """The partitions that are right stay as they are; the same command builds the others."""
    build = partial(build_index, split(DOCUMENTS, tmp_path, [3, 4]), tmp_path / "i", engine="partitions")
    index = build().path
    with open_verified(engine(index)) as opened:
        expected = list(opened.search([ImpactQuery("q", {"ash": 1, "bay": 2})], 9))
    kept = (index / "partition-00000/index.json").stat().st_ino
    shutil.rmtree(index / "partition-00001")
    with pytest.raises(ArtefactError, match=r"partition-00001: the partition is missing; run the command that built"):
        engine(index)
    build()
    shutil.rmtree(index / "partition-00001")
    shutil.copytree(index / "partition-00002", index / "partition-00001")
    with pytest.raises(ArtefactError, match=r"partition-00001: this is partition 2; run the command that built"):
        engine(index)
    build()
    with open_verified(engine(index)) as opened:
        assert list(opened.search([ImpactQuery("q", {"ash": 1, "bay": 2})], 9)) == expected
    assert (index / "partition-00000/index.json").stat().st_ino == kept
    assert not (tmp_path / "i.lexvl.room").exists()


def test_building_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    """The second of three fails: the others are finished and kept, and only the second is built again."""
    built, build_one = [], partitions.build_partition
    build = partial(build_index, split(DOCUMENTS, tmp_path, [3, 4]), tmp_path / "i", engine="partitions")

    def broken(*request: Any) -> int:
        built.append(request[-1])
        if request[-1] == 1 and len(built) < 4:
            raise ArtefactError("the disk is full")
        return build_one(*request)

    monkeypatch.setattr(partitions, "build_partition", broken)
    (tmp_path / "i.partitions").mkdir()  # a user's
    with pytest.raises(LexvlError, match="1 of 3 parts failed, the others are finished and kept: .*s1: the disk is"):
        build()
    assert not (tmp_path / "i").exists()
    kept = tmp_path / "i.lexvl.room/partition-00002/index.json"
    before = kept.stat().st_mtime_ns
    index = build()
    assert (index.path / "partition-00002/index.json").stat().st_mtime_ns == before
    assert index.documents == 7 and not (tmp_path / "i.lexvl.room").exists() and (tmp_path / "i.partitions").exists()
    assert build() == index


def test_another_request_needs_overwrite(tmp_path):
    build = partial(build_index, split(DOCUMENTS, tmp_path, [3]), tmp_path / "i", engine="partitions")
    build()
    with pytest.raises(ArtefactError, match="term_vectors"):
        build(term_vectors=True)
    build(term_vectors=True, overwrite=True)
    assert read_report(tmp_path / "i").options["term_vectors"]
    with open_verified(engine(tmp_path / "i")) as opened:
        assert opened.vector("a") == {"ash": 3, "dog": 9}


def test_ids_of_several_corpora_are_compared(tmp_path):
    write_shards(tmp_path / "a", [("d1", {"ash": 1})], terms=TERMS)
    write_shards(tmp_path / "b", [("d2", {"ash": 1}), ("d1", {"ash": 2})], terms=TERMS)
    with pytest.raises(ArtefactError, match="'d1'"):
        build_index([tmp_path / "a", tmp_path / "b"], tmp_path / "i", engine="partitions")
    assert not (tmp_path / "i").exists()


def test_changes_are_refused_and_checks_compare_all(tmp_path):
    sources = split(DOCUMENTS, tmp_path, [3])
    index = build_index(sources, tmp_path / "i", engine="partitions").path
    for change in (lambda: append_index(index, sources[0]), lambda: delete_documents(index, ["a"])):
        with pytest.raises(UsageError, match="is not changed"):
            change()
    found = check_index(index, sources)
    assert (found["partitions"], found["documents"], found["problems"]) == (2, 7, 0)
    with pytest.raises(UsageError, match="2 partitions, 1 folders"):
        check_index(index, sources[0])
    with pytest.raises(ArtefactError):
        check_index(index, sources[::-1])


def test_batches_keep_the_order_of_queries(indexes):
    """More queries than two batches hold, each with a list of its own."""

    def queries() -> Iterator[ImpactQuery]:
        for number in range(600):
            yield ImpactQuery(f"q{number}", {TERMS[number % 4]: 1 + number % 3})

    answers = []
    for index in indexes:
        with open_verified(engine(index)) as opened:
            answers.append(list(opened.search(queries(), 3)))
    assert answers[0] == answers[1] and [d[0].query_id for d in answers[1][:4]] == ["q0", "q1", "q2", "q3"]


def test_stored_texts_come_from_the_partition_that_has_them(tmp_path):
    for number, rows in enumerate(([("d1", "sea")], [("d2", "sun"), ("d3", "moon")])):
        folder = tmp_path / f"s{number}"
        write_shards(folder, [(doc, {"ash": 1}) for doc, _ in rows], terms=TERMS)
    index = build_index([tmp_path / "s0", tmp_path / "s1"], tmp_path / "i", engine="partitions", store_text=True).path
    assert PartitionsEngine.load_texts(index, ["d3", "d1"]) == {"d3": "", "d1": ""}
    with pytest.raises(DataError, match="no document 'd9'"):
        PartitionsEngine.load_texts(index, ["d1", "d9"])
