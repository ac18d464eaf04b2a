"""An engine that the project does not know is registered by one row, and used by name through the public functions."""

import json

import pytest
from shard_folders import write_dense_shards, write_shards

from lexvl_anserini.ground.errors import ArtefactError, UnknownName, UsageError
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.ground.registry import ENGINES, EngineRow
from lexvl_anserini.index import command as index_command
from lexvl_anserini.queries.clauses import Impacts, Not, Term, TreeQuery
from lexvl_anserini.search import command as search_command
from lexvl_anserini.searching.building import append_index, build_index, check_index, delete_documents
from lexvl_anserini.searching.search import Search
from lexvl_anserini.searching.searcher import Searcher, search_index
from tests.invoking import invoked

DOCUMENTS = [("d2", {"dog": 3, "sea": 1}), ("d1", {"dog": 3, "cat": 2}), ("d3", {"cat": 5, "日本": 7}), ("d4", {})]
QUERY = ImpactQuery("q", {"dog": 2, "cat": 1})


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(ENGINES.core, "memory", EngineRow("memory_engine:MemoryEngine", ("impact",)))


@pytest.fixture
def shards(tmp_path):
    write_shards(tmp_path / "shards", DOCUMENTS[:2], DOCUMENTS[2:])
    return tmp_path / "shards"


@pytest.fixture
def indexes(tmp_path, shards):
    """The same shards in both engines for impacts."""
    build_index(shards, tmp_path / "memory", engine="memory")
    build_index(shards, tmp_path / "lucene", term_vectors=True)
    return tmp_path / "memory", tmp_path / "lucene"


@pytest.mark.parametrize(
    "search",
    [
        Search(),
        Search(query_terms=1),
        Search(where=Not(Term("sea"))),
        Search(first_terms=1, candidates=1),
        Search(feedback=1, feedback_terms=1),
    ],
)
def test_searched_by_name(indexes, search):
    found, expected = (list(search_index(index, [QUERY], **vars(search))) for index in indexes)
    assert found == expected and found[0]


def test_trees(indexes):
    tree = TreeQuery("q", Impacts({"dog": 1, "日本": 1}) & ~Term("sea"))
    found, expected = (list(search_index(index, [tree])) for index in indexes)
    assert found == expected
    assert [(d.doc_id, d.score) for d in found[0]] == [("d3", 7), ("d1", 3)]


@pytest.mark.parametrize("doc_ids", [None, ["d3", "d4"]])
def test_explained(indexes, doc_ids):
    found, expected = (Searcher(index).explain(QUERY, doc_ids) for index in indexes)
    assert found == expected
    assert [e.score for e in found] == ([8, 6, 5] if doc_ids is None else [5, 0])


def test_the_commands(tmp_path, shards):
    index = tmp_path / "index"
    built = json.loads(invoked(index_command, shards, "--index", index, "--engine", "memory", "--format", "json"))
    assert (built["engine"], built["documents"], built["empty"], built["postings"]) == ("memory", 4, 1, 6)
    again = invoked(index_command, shards, "--index", index, "--engine", "memory", "--format", "json", "--dry-run")
    assert json.loads(again)["finished"]
    hits = json.loads(invoked(search_command, "--index", index, "--match", "+dog -sea", "--format", "json"))
    assert [(hit["doc_id"], hit["score"]) for hit in hits] == [("d1", 3)]


def test_another_engine_is_another_index(tmp_path, shards, indexes):
    with pytest.raises(ArtefactError, match='engine: "memory" found, "lucene" requested'):
        build_index(shards, indexes[0])
    assert build_index(shards, indexes[0], engine="memory").documents == 4
    build_index(shards, indexes[0], overwrite=True)
    assert json.loads((indexes[0] / "index.json").read_bytes())["engine"] == "lucene"


def test_names_kinds_and_options_that_do_not_fit(tmp_path, shards):
    write_dense_shards(tmp_path / "dense", [("d1", [1.0, 2.0])])
    with pytest.raises(UnknownName, match="unknown engine 'memoru'; did you mean 'memory'"):
        build_index(shards, tmp_path / "index", engine="memoru")
    with pytest.raises(UsageError, match="'memory' indexes impact shards, these are dense; expected faiss"):
        build_index(tmp_path / "dense", tmp_path / "index", engine="memory")
    with pytest.raises(UsageError, match="text, store_text: no option of the engine memory, .* but of lucene"):
        build_index(shards, tmp_path / "index", engine="memory", text=True, store_text=True)
    with pytest.raises(UsageError, match="faiss, m: no option of the engine lucene, .* faiss, which indexes dense"):
        build_index(shards, tmp_path / "index", options={"faiss": "hnsw", "m": "4"})
    with pytest.raises(UsageError, match="term_vectors: no option of the engine memory, .* but of lucene"):
        build_index(shards, tmp_path / "index", engine="memory", term_vectors=True)
    with pytest.raises(UsageError, match="term_vectors: no option of the engine faiss, .* but of bm25"):
        build_index(tmp_path / "dense", tmp_path / "index", term_vectors=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'texts'"):
        build_index(shards, tmp_path / "index", texts=True)
    # What an engine does not have needs no switching off.
    assert build_index(tmp_path / "dense", tmp_path / "index", metadata=False).documents == 1
    with pytest.raises(UsageError, match="is dense; only the score of an impact index"):
        Searcher(tmp_path / "index").explain(QUERY)


def test_what_the_engine_does_not_do_is_refused(shards, indexes):
    for act in (
        lambda: append_index(indexes[0], shards),
        lambda: delete_documents(indexes[0], ["d1"]),
        lambda: check_index(indexes[0], shards),
        lambda: build_index([shards, shards], engine="memory"),
    ):
        with pytest.raises(
            UsageError, match=r"only indexes of lucene, partitions \(impacts\) are merged, changed and checked"
        ):
            act()
