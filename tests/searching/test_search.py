"""How queries are searched: by lists of terms, cuts, filters, phases, feedback, and down to a least score."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brute_force import Doc, Oracle
from hypothesis import given
from hypothesis import strategies as st
from shard_folders import write_dense_shards, write_shards

from lexvl_anserini.engines.engine import ImpactEngine, open_impact_index, open_verified
from lexvl_anserini.engines.resident.choosing import VARIABLE
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery, heaviest
from lexvl_anserini.ground.registry import ENGINES, EngineRow
from lexvl_anserini.queries.clauses import AnyOf, Boost, Clause, Impacts, Not, Term, Text, TreeQuery
from lexvl_anserini.runs.order import RankedList, in_order, rank_hits
from lexvl_anserini.searching.building import build_index, delete_documents
from lexvl_anserini.searching.search import (
    Cut,
    RefinedQuery,
    Search,
    compute_greatest_score,
    cut_queries,
    cut_vector,
    parse_cut,
    read_terms,
    search_refined,
)
from lexvl_anserini.searching.searcher import Searcher

DOCUMENTS = [
    Doc("d1", {"a": 3, "b": 1, "x": 9}, "dog"),
    Doc("d2", {"a": 2, "c": 7}, "cat"),
    Doc("d3", {"b": 5, "c": 2}, "dog cat"),
    Doc("d4", {"x": 4}, ""),
]
ORACLE = Oracle(DOCUMENTS)


class Engine:
    """Answers by brute force, as an impact engine does."""

    def __init__(self) -> None:
        self.batches = 0

    def search(self, queries: Iterable[ImpactQuery], hits: int, threads: int = 1) -> Iterator[RankedList]:
        self.batches += 1
        return (self.search_tree(query.query_id, Impacts(query.vector), hits) for query in queries)

    def search_tree(self, query_id: str, clause: Clause, hits: int) -> RankedList:
        found = ORACLE.ranked(clause, hits)
        return in_order(query_id, found)

    search_where = ImpactEngine.search_where

    def bound(self, vector: Mapping[str, int]) -> int:
        return 9 * sum(vector.values())


def vector_of(doc_id: str) -> Mapping[str, int]:
    return next(d.vector for d in DOCUMENTS if d.doc_id == doc_id)


def searched(vector: Any, search: Search, hits: int = 10, text: str | None = None) -> list[tuple[str, float]]:
    query = vector if isinstance(vector, TreeQuery) else ImpactQuery("q", vector)
    [query] = cut_queries([query], search)
    [documents] = search_refined(Engine(), [RefinedQuery(query, text)], search, hits, vector_of)
    return [(d.doc_id, d.score) for d in documents]


@pytest.mark.parametrize(
    ("search", "kept"),
    [
        (Search(), {"a": 9, "b": 3, "c": 3, "d": 1}),
        (Search(query_terms=2), {"a": 9, "b": 3}),
        (Search(query_terms=9), {"a": 9, "b": 3, "c": 3, "d": 1}),
        (Search(threshold=1 / 3), {"a": 9, "b": 3, "c": 3}),
        (Search(threshold=1), {"a": 9}),
        (Search(only_terms=frozenset("abz")), {"a": 9, "b": 3}),
        (Search(without_terms=frozenset("ad"), threshold=1), {"b": 3, "c": 3}),
        (Search(only_terms=frozenset("z")), {}),
    ],
)
def test_lists_and_cuts(search: Search, kept: dict[str, int]) -> None:
    assert cut_vector({"a": 9, "b": 3, "c": 3, "d": 1}, search) == kept
    assert cut_vector({}, search) == {}


def test_a_filter_keeps_the_scores() -> None:
    assert searched({"a": 2, "c": 1}, Search(where=Not(Term("x")))) == [("d2", 11), ("d3", 2)]
    assert searched({}, Search(where=Term("x"))) == []


def test_two_phases_rank_the_candidates_by_the_whole_query() -> None:
    # "a" alone finds d1 and d2; d3, the best for the whole query, is not among them.
    refinement = Search(first_terms=1, candidates=2)
    assert searched({"a": 5, "c": 4, "b": 5}, refinement, hits=2) == [("d2", 38), ("d1", 20)]
    # As many candidates as hits, whatever was asked.
    assert len(searched({"a": 5, "c": 4}, Search(first_terms=1, candidates=1), hits=2)) == 2
    assert searched({"nowhere": 1}, refinement) == []


@given(st.dictionaries(st.sampled_from("abcx"), st.integers(1, 9), min_size=1), st.integers(1, 4), st.integers(1, 5))
def test_two_phases_with_all_candidates_are_exact(vector: dict[str, int], terms: int, hits: int) -> None:
    exact = searched(vector, Search(), hits)
    found = searched(vector, Search(first_terms=max(terms, len(vector)), candidates=10), hits)
    assert found == exact


def test_bm25_beside_impacts() -> None:
    found = dict(searched({"a": 2}, Search(text_weight=4), text="dog"))
    assert found.keys() == {"d1", "d2", "d3"}
    assert found["d2"] == 4 and found["d1"] == pytest.approx(6 + 4 * dict(ORACLE.ranked(Text("dog"), 9))["d1"])
    with pytest.raises(UsageError, match="topic 'q': no text for BM25"):
        searched({"a": 2}, Search(text_weight=1))


def test_feedback_finds_what_shares_no_term() -> None:
    # d1 holds "x" besides "a", and d4 only "x".
    feedback = Search(feedback=1, feedback_terms=1, feedback_alpha=1, feedback_beta=1)
    found = searched({"a": 1}, feedback)
    assert [doc_id for doc_id, _ in found] == ["d1", "d4", "d2"]
    # d1's x is 9 of length sqrt(91), the query's a is 1: as 8 bits 241 and 255.
    assert found[0][1] == 3 * 255 + 9 * round(255 * 9 / 91**0.5)
    without = replace(feedback, without_terms=frozenset("x"))
    assert [doc_id for doc_id, _ in searched({"a": 1}, without)] == ["d1", "d2"]


def test_the_topic_itself_is_no_feedback() -> None:
    query = ImpactQuery("d1", {"a": 1})
    settings = Search(remove_query=True, feedback=1, feedback_terms=1, feedback_alpha=0, feedback_beta=1)
    [documents] = search_refined(Engine(), [RefinedQuery(query)], settings, 10, vector_of)
    # d2's heaviest term is "c".
    assert [d.doc_id for d in documents] == ["d2", "d3"]


def test_trees_are_searched_as_they_are() -> None:
    tree = TreeQuery("q", AnyOf((Term("a"), Term("c"))))
    assert searched(tree, Search(where=Term("b"))) == [("d1", 3), ("d3", 2)]
    with pytest.raises(UsageError, match="topic 'q' is a query tree; feedback, phases and approximate search need"):
        searched(tree, Search(first_terms=1, candidates=1))


def test_what_needs_no_tree_goes_to_the_engine_in_batches() -> None:
    engine = Engine()
    queries = [RefinedQuery(ImpactQuery(f"q{n}", {"a": 1})) for n in range(600)]
    lists = list(search_refined(engine, queries, Search(query_terms=1), 1))
    assert (len(lists), engine.batches) == (600, 3)
    assert {documents[0].doc_id for documents in lists} == {"d1"}


@pytest.mark.parametrize("wrong", [{"query_terms": 0}, {"threshold": 1.5}, {"text_weight": np.nan}, {"first_terms": 0}])
def test_numbers_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Search(**wrong)


def test_files_of_terms(tmp_path: Path) -> None:
    path = tmp_path / "terms.txt"
    for text in ("dog\n\n ##ing \n日本\n", "\ufeffdog\r\n##ing\r\n日本", "dog\r##ing\r日本\r"):
        path.write_bytes(text.encode())
        assert read_terms(str(path)) == {"dog", "##ing", "日本"}
    path.write_text("\n")
    with pytest.raises(DataError, match="no term in it"):
        read_terms(str(path))
    with pytest.raises(DataError, match="cannot be read"):
        read_terms(str(tmp_path / "absent"))


@given(st.dictionaries(st.text(max_size=2), st.integers(1, 5)), st.integers(1, 5))
def test_the_heaviest_terms(vector: dict[str, int], count: int) -> None:
    kept = heaviest(vector, count)
    assert len(kept) == min(count, len(vector)) and kept.items() <= vector.items()
    rest = [weight for term, weight in vector.items() if term not in kept]
    assert not rest or max(rest) <= min(kept.values())


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
    documents = [("d1", {"cat": 2, "dog": 1}), ("d2", {"dog": 3}), ("d3", {"sea": 40})]
    write_shards(tmp_path / "shards", documents, terms=["cat", "dog", "sea"])
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
    assert ["".join(ids(hits.down_to(least))) for least in (4, 3, 2, 1.5, -1)] == ["", "a", "abc", "abc", "abcd"]
    assert hits.down_to(2).query_id == "q" and not rank_hits("q", []).down_to(0)


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        *((cut, ["d2", "d1"]) for cut in ("4", "50%")),
        *((cut, ["d2"]) for cut in ("5", "50.1%", "75%")),
        *((cut, []) for cut in ("7", "76%")),
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


def test_a_share_is_computed_in_whole_numbers(tmp_path: Path) -> None:
    """In floats 1.1% of 3000 is 33.00000000000001."""
    write_shards(tmp_path / "shards", [("d1", {"cat": 3000}), ("d2", {"cat": 33}), ("d3", {"cat": 32})])
    with Searcher(build_index(tmp_path / "shards", tmp_path / "index").path) as searcher:
        assert ids(searcher.search(ImpactQuery("q", {"cat": 1}), min_score=parse_cut("1.1%"))) == ["d1", "d2"]


def test_dense_indexes_have_no_bound(tmp_path: Path) -> None:
    write_dense_shards(tmp_path / "vectors", [("d1", [1.0, 0.0]), ("d2", [0.5, 0.5])])
    query = DenseQuery("q", np.array([1, 0], np.float32))
    with Searcher(build_index(tmp_path / "vectors", tmp_path / "dense").path) as searcher:
        assert ids(searcher.search(query, min_score=Cut(0.75))) == ["d1"]
        with pytest.raises(UsageError, match="dense; .*shares of a bound, are for impact indexes"):
            searcher.search(query, min_score=Cut(20, relative=True))
