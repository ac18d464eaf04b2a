"""The order of ranked lists: score descending, then doc_id ascending by code points."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.runs.order import by_score, merged_by_score, ranked, top_positions, with_ranks

# Code points, not a locale: capitals before small letters, umlauts after both, digits as text.
IN_ORDER = [("c", 3.0), ("10", 2.0), ("9", 2.0), ("B", 2.0), ("a", 2.0), ("é", 2.0), ("b", -1.0)]


def test_all_forms_agree():
    shuffled = IN_ORDER[::-1]
    lists = ranked("q", shuffled)
    assert lists == [ScoredDoc("q", doc_id, rank, score) for rank, (doc_id, score) in enumerate(IN_ORDER, 1)]
    documents = [ScoredDoc("q", doc_id, 0, score) for doc_id, score in shuffled]
    assert with_ranks(by_score(documents)) == lists


def test_the_cut_comes_after_the_order():
    assert [d.doc_id for d in ranked("q", IN_ORDER[::-1], 3)] == ["c", "10", "9"]
    assert ranked("q", []) == []
    assert [d.rank for d in with_ranks(ranked("q", IN_ORDER, 2), start=7)] == [7, 8]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-1, 4), max_size=30), st.integers(1, 12))
def test_top_positions_is_a_stable_sort_of_the_positive(scores: list[int], k: int):
    expected = [i for i in sorted(range(len(scores)), key=lambda i: -scores[i]) if scores[i] > 0][:k]
    assert top_positions(np.array(scores, dtype=np.int64), k).tolist() == expected


@given(
    scores=st.lists(st.integers(1, 3), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    hits=st.integers(0, 31),
)
def test_merged_lists_are_one_sorted_list(scores, cuts, hits):
    """Few scores, so that ties lie across every cut."""
    documents = [ScoredDoc("q", f"d{number:02}", 1, float(score)) for number, score in enumerate(scores)]
    bounds = [0, *sorted(min(cut, len(documents)) for cut in cuts), len(documents)]
    lists = [by_score(documents[first:end]) for first, end in zip(bounds, bounds[1:], strict=False)]
    assert merged_by_score(lists, hits) == by_score(documents)[:hits]
