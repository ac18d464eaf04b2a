"""A least score of hits: as a score, and as a share of the query's bound, which is the same in every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shard_folders import Documents, write_dense_shards, write_shards

from lexvl_anserini.engines.engine import open_impact_index, open_verified
from lexvl_anserini.engines.resident.choosing import VARIABLE
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery
from lexvl_anserini.ground.registry import ENGINES, EngineRow
from lexvl_anserini.queries.clauses import AnyOf, Boost, Impacts, Term, Text, TreeQuery
from lexvl_anserini.runs.order import rank_hits
from lexvl_anserini.searching.building import build_index, delete_documents
from lexvl_anserini.searching.search import Cut, Search, compute_greatest_score, parse_cut
from lexvl_anserini.searching.searcher import Searcher

TERMS = ["cat", "dog", "sea"]
DOCUMENTS: Documents = [("d1", {"cat": 2, "dog": 1}), ("d2", {"dog": 3}), ("d3", {"sea": 40})]
# The bound is 1 x 2 + 2 x 3 = 8; d2 has 6 of it, and d1 has 4.
QUERY = ImpactQuery("q", {"cat": 1, "dog": 2})

BOUNDS = (
    (Impacts(QUERY.vector), 8),
    (AnyOf((Term("sea"), Boost(Term("dog"), 0.25))), 40.75),
    (Impacts({"nowhere": 3}), 0),
    (Impacts({}), 0),
)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    write_shards(tmp_path / "shards", DOCUMENTS, terms=TERMS)
    return build_index(tmp_path / "shards", tmp_path / "index", term_vectors=True, text=True).path


def ids(hits: Any) -> list[str]:
    return [hit.doc_id for hit in hits]


@pytest.mark.parametrize(("text", "cut"), [("300", Cut(300)), (" 12.5% ", Cut(12.5, True)), ("-0.5", Cut(-0.5))])
def test_a_cut_is_read_and_written(text: str, cut: Cut) -> None:
    assert parse_cut(text) == cut and parse_cut(str(cut)) == cut
    assert str(Cut(16_777_215.5)) == "16777215.5"


@pytest.mark.parametrize("text", ["", "%", "much", "1_0", "nan", "inf", "-1%", "100.5%", "5%%"])
def test_other_texts_are_no_cut(text: str) -> None:
    with pytest.raises(UsageError, match="least score .*: expected a score"):
        parse_cut(text)


def test_a_list_ends_before_the_first_lower_score() -> None:
    hits = rank_hits("q", [("a", 3), ("b", 2), ("c", 2), ("d", -1)])
    assert [ids(hits.down_to(least)) for least in (4, 3, 2, 1.5, -1)] == [
        [],
        ["a"],
        ["a", "b", "c"],
        ["a", "b", "c"],
        [*"abcd"],
    ]
    assert hits.down_to(2).query_id == "q" and not rank_hits("q", []).down_to(0)


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ("4", ["d2", "d1"]),
        ("5", ["d2"]),
        ("7", []),
        ("50%", ["d2", "d1"]),
        ("50.1%", ["d2"]),
        ("75%", ["d2"]),
        ("76%", []),
    ],
)
def test_hits_have_the_least_score(index: Path, cut: str, kept: list[str]) -> None:
    with Searcher(index) as searcher:
        assert ids(searcher.search(QUERY, min_score=parse_cut(cut))) == kept
        assert [ids(hits) for hits in searcher.search([QUERY] * 2, min_score=parse_cut(cut))] == [kept] * 2
        assert ids(searcher.search(TreeQuery("q", Impacts(QUERY.vector)), min_score=parse_cut(cut))) == kept
        assert searcher.search(ImpactQuery("q", {}), min_score=parse_cut(cut)) == []


def test_a_share_is_of_the_refined_query(index: Path) -> None:
    share = Cut(100, relative=True)
    with Searcher(index) as searcher:
        # "dog" alone has a bound of 6, which d2 reaches; the phases do not change the query.
        assert ids(searcher.search(QUERY, query_terms=1, min_score=share)) == ["d2"]
        assert ids(searcher.search(QUERY, first_terms=1, min_score=share)) == []
        # Feedback by d2 adds to "dog" what it divides: the query and its scores are other ones.
        assert ids(
            searcher.search(QUERY, feedback=1, feedback_terms=1, feedback_alpha=0, feedback_beta=1, min_score=share)
        ) == ["d2"]
        half = TreeQuery("q", Boost(AnyOf((Term("cat"), Term("dog", 2))), 0.5))
        assert ids(searcher.search(half, min_score=Cut(75, relative=True))) == ["d2"]
        with pytest.raises(UsageError, match="BM25 of texts has no bound; give a score"):
            searcher.search(TreeQuery("q", AnyOf((Term("cat"), Text("dog")))), min_score=share)
    with pytest.raises(UsageError, match="a sum over passages has no bound; give a score"):
        Search(min_score=share, passages="sum:2")


def test_the_bound_is_the_same_in_every_engine(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES.core, "memory", EngineRow("memory_engine:MemoryEngine", ("impact",)))
    indexes = [index, index]
    indexes += [build_index(tmp_path / "shards", tmp_path / name, engine=name).path for name in ("memory", "pyserini")]
    for folder, form in zip(indexes, ("lucene", "resident", "auto", "auto"), strict=True):
        monkeypatch.setenv(VARIABLE, form)
        with open_verified(open_impact_index(folder, read_manifest(folder))) as engine:
            for clause, most in BOUNDS:
                assert compute_greatest_score(clause, engine) == most


def test_a_bound_without_deleted_documents(index: Path) -> None:
    delete_documents(index, ["d2"])
    with Searcher(index) as searcher:
        assert ids(searcher.search(QUERY, min_score=Cut(100, relative=True))) == ["d1"]


def test_dense_indexes_have_no_bound(tmp_path: Path) -> None:
    write_dense_shards(tmp_path / "vectors", [("d1", [1.0, 0.0]), ("d2", [0.5, 0.5])])
    query = DenseQuery("q", np.array([1, 0], np.float32))
    with Searcher(build_index(tmp_path / "vectors", tmp_path / "dense").path) as searcher:
        assert ids(searcher.search(query, min_score=Cut(0.75))) == ["d1"]
        with pytest.raises(UsageError, match="dense; .*shares of a bound, are for impact indexes"):
            searcher.search(query, min_score=Cut(20, relative=True))
