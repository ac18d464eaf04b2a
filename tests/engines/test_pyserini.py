"""The engine of stock Pyserini: it builds and searches as published, and its lists are ours."""

import os

import pytest
from lucene_indexes import DOCUMENTS
from memory_engine import exact_lists
from shard_folders import write_shards

from lexvl_anserini.engines.engine import open_index
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.pyserini import PyseriniEngine, run_stock
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery, ScoredDoc
from lexvl_anserini.queries.clauses import AnyOf, Term
from lexvl_anserini.searching.building import build_index

QUERIES = [
    ImpactQuery("q1", {"a": 2, "b": 3}),
    ImpactQuery("q2", {}),
    ImpactQuery("q3", {"nowhere": 3}),
    ImpactQuery("q4", {"the": 4}),
    ImpactQuery("q5", {"日本": 2, "😀": 1}),
]


@pytest.fixture(scope="module", autouse=True)
def _environment():
    """Stock's start sets $PATH and $OPENAI_API_KEY of this process."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pyserini")
    write_shards(folder / "shards", DOCUMENTS[:2], DOCUMENTS[2:], terms=None)
    build_index(folder / "shards", folder / "stock", engine="pyserini")
    return folder


@pytest.fixture(scope="module")
def engine(built):
    manifest = read_manifest(built / "stock")
    engine = open_index(built / "stock", manifest)
    assert isinstance(engine, PyseriniEngine)
    yield engine
    engine.close()


def test_lists_are_those_of_the_dot_products(built, engine):
    for hits in (1, 2, 10):
        lists = list(engine.search(QUERIES, hits, threads=2))
        assert lists == exact_lists(built / "shards", QUERIES, hits)
    assert lists[0] == [ScoredDoc("q1", "d2", 1, 17.0), ScoredDoc("q1", "d1", 2, 6.0), ScoredDoc("q1", "d10", 3, 6.0)]
    assert engine.served()["pyserini"] == 3 * len(QUERIES)


def test_what_the_index_records(built):
    report, manifest = read_report(built / "stock"), read_manifest(built / "stock")
    assert (report.engine, report.documents, report.empty) == ("pyserini", 5, 1)
    assert (report.postings, report.impacts, report.max_impact) == (10, 25, 7)
    assert manifest.counts.documents == 5


def test_trees_and_explanations_read_the_same_index(engine):
    hits = engine.search_tree("q", AnyOf((Term("b", 3), Term("a", 1))), 10)
    assert [(hit.doc_id, hit.score) for hit in hits] == [("d2", 16), ("d1", 3), ("d10", 3)]
    assert engine.impacts("d2", ["b", "x", "a"]) == {"b": 5, "a": 1}
    with pytest.raises(DataError):
        engine.impacts("d9", ["a"])
    with pytest.raises(UsageError, match="vectors"):
        engine.vector("d2")


def test_scores_that_would_round_are_refused(engine):
    assert engine.bound({"b": 2}) == 14  # the greatest impact of all is 7
    with pytest.raises(ArtefactError, match=r"topic 'q': its score could reach .* quantise queries"):
        list(engine.search([ImpactQuery("q", {"b": 1 << 22})], 3))


def test_parquet_is_refused_before_anything_is_written(tmp_path):
    write_shards(tmp_path / "shards", DOCUMENTS[:2], suffix="parquet")
    with pytest.raises(UsageError, match="stock Pyserini reads JSON lines; encode with --shard-format jsonl"):
        build_index(tmp_path / "shards", tmp_path / "index", engine="pyserini")
    assert not (tmp_path / "index").exists()


def test_a_document_that_stock_loses_is_an_error(tmp_path, monkeypatch):
    """Stock skips the rest of a file after a line that it cannot read, and ends with exit code 0."""
    write_shards(tmp_path / "shards", DOCUMENTS[:2], DOCUMENTS[2:], terms=None)

    def half(shards, index, threads):
        (tmp_path / "half/docs").mkdir(parents=True)
        (tmp_path / "half/docs/shard-00000.jsonl").write_bytes((shards / "docs/shard-00000.jsonl").read_bytes())
        return run_stock(tmp_path / "half", index, threads)

    monkeypatch.setattr("lexvl_anserini.engines.pyserini.run_stock", half)
    with pytest.raises(ArtefactError, match="after stock Pyserini .*documents"):
        build_index(tmp_path / "shards", tmp_path / "index", engine="pyserini")
    assert not (tmp_path / "index").exists()
