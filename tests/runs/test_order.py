"""Ranked lists: their order and their columns, which read like a list; documents scored by their passages."""

import json
import pickle
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from brute_force import by_passages
from hypothesis import given, settings
from hypothesis import strategies as st

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.ground.typed import MOST
from lexvl_anserini.runs import order
from lexvl_anserini.runs.order import (
    RankedList,
    as_frame,
    group_by_documents,
    rank_hits,
    read_best,
    score_by_passages,
    select_top_positions,
)

# Code points, not a locale: capitals before small letters, umlauts after both, digits as text.
IN_ORDER = [("c", 3.0), ("10", 2.0), ("9", 2.0), ("B", 2.0), ("a", 2.0), ("é", 2.0), ("b", -1.0)]
DOCUMENTS = [ScoredDoc("q", doc_id, rank, score) for rank, (doc_id, score) in enumerate(IN_ORDER, 1)]


def spelt() -> RankedList:
    """The list as the kernels return it."""
    return RankedList(
        "q", "".join(f"{doc_id}\n" for doc_id, _ in IN_ORDER).encode(), np.array([s for _, s in IN_ORDER])
    )


def test_pairs_are_ranked_then_cut():
    assert rank_hits("q", IN_ORDER[::-1]) == DOCUMENTS
    assert [d.doc_id for d in rank_hits("q", IN_ORDER[::-1], 3)] == ["c", "10", "9"]
    assert rank_hits("q", []) == []


@pytest.mark.parametrize("make", [spelt, lambda: rank_hits("q", IN_ORDER), lambda: RankedList.of(DOCUMENTS)])
def test_a_ranked_list_reads_like_a_list(make):
    hits, listed = make(), list(DOCUMENTS)
    assert len(hits) == 7 and hits and hits == DOCUMENTS and listed == hits and hits == make()
    assert hits != DOCUMENTS[:-1] and hits != tuple(DOCUMENTS) and hits != "q"
    assert hits[0] == DOCUMENTS[0] and hits[-1] == DOCUMENTS[-1] and list(reversed(hits)) == DOCUMENTS[::-1]
    assert DOCUMENTS[2] in hits and hits.index(DOCUMENTS[2]) == 2 and hits.count(DOCUMENTS[2]) == 1
    assert hits + DOCUMENTS[:1] == [*DOCUMENTS, DOCUMENTS[0]] and sum([hits, hits], []) == 2 * DOCUMENTS
    assert sorted(hits, key=lambda hit: hit.doc_id)[0] == DOCUMENTS[1] and repr(hits) == repr(DOCUMENTS)
    assert pickle.loads(pickle.dumps(hits)) == DOCUMENTS and as_frame(hits).equals(as_frame(DOCUMENTS))
    for values in (hits[3], next(iter(hits))):
        assert [type(value) for value in values] == [str, str, int, float]
    with pytest.raises(IndexError):
        hits[7]
    # Nothing is lost where only a list does: an error, not an empty result.
    with pytest.raises(TypeError):
        json.dumps(hits)
    with pytest.raises(AttributeError):
        hits.append(DOCUMENTS[0])
    assert json.loads(json.dumps(list(hits)))[0] == ["q", "c", 1, 3.0]


@settings(max_examples=200)
@given(st.slices(7))
def test_slices_keep_their_ranks(part: slice):
    assert spelt()[part] == DOCUMENTS[part] == RankedList.of(DOCUMENTS)[part]
    assert spelt()[1:][part] == DOCUMENTS[1:][part]


def test_lists_leave_a_document_out_decode_late_and_have_one_topic():
    hits = spelt()
    without = [ScoredDoc("q", d.doc_id, rank, d.score) for rank, d in enumerate(DOCUMENTS[:3] + DOCUMENTS[4:], 1)]
    assert hits.without("B") == without and hits.without("B")[:2] == DOCUMENTS[:2]
    assert hits.without("nowhere") == DOCUMENTS and hits[2:].without("a")[0].rank == 1
    # Ids are decoded when they are read.
    hits = RankedList("q", b"\xff\n", np.array([1.0]))
    assert len(hits) == 1 and hits.scores.tolist() == [1.0] and hits.ranks == range(1, 2)
    with pytest.raises(UnicodeDecodeError):
        hits[0]
    # A list has one topic.
    with pytest.raises(UsageError, match="a ranked list of 2 topics"):
        RankedList.of([ScoredDoc("q1", "a", 1, 1.0), ScoredDoc("q2", "b", 1, 1.0)])
    assert RankedList.of([]) == [] == RankedList.of(iter([]))


@settings(max_examples=100)
@given(st.lists(st.integers(-1, 4), max_size=30), st.integers(1, 12))
def test_top_positions_is_a_stable_sort_of_the_positive(scores: list[int], k: int):
    expected = [i for i in sorted(range(len(scores)), key=lambda i: -scores[i]) if scores[i] > 0][:k]
    assert select_top_positions(np.array(scores, dtype=np.int64), k).tolist() == expected


# In the order of passages `a!#0` comes before `a#0`, in that of documents `a` before `a!`.
NAMES = ("a", "a!", "a#0", "a#1", "a#2", "a!#0", "a!#1", "ab", "b#x#y", "#", "#1", "é#0", "😀#0", "😀#1")


def test_words_for_the_best_passages() -> None:
    assert [read_best(words) for words in (None, "max", "sum:1", "sum:12", "sum")] == [0, 1, 1, 12, MOST]
    for wrong in ("", "mean", "max:2", "sum:", "sum:0", "sum:-1", "sum:1.5", "sum:x", "sum:99999999999999", "sum:²"):
        with pytest.raises(UsageError, match=f"passages '{wrong}': expected max, sum .*, or sum:N"):
            read_best(wrong)


class Collection:
    """Searches (passage, score) pairs, whatever the query; notes the depths."""

    def __init__(self, scores: Mapping[str, float]):
        self.scores, self.depths = scores, list[int]()

    def __call__(self, queries: Sequence[str], depth: int) -> list[RankedList]:
        self.depths.append(depth)
        return [rank_hits(query, self.scores.items(), depth) for query in queries]


def test_maxima_and_sums_by_hand() -> None:
    search = Collection({"a#0": 5, "b#0": 4, "b#1": 4, "a#1": 1, "c": 3})
    expected = {1: [("a", 5), ("b", 4), ("c", 3)], 2: [("b", 8), ("a", 6), ("c", 3)]}
    for best, pairs in expected.items():
        [documents] = group_by_documents(search, ["q"], 10, best)
        assert documents == rank_hits("q", pairs)
    assert list(group_by_documents(search, [], 10, 1)) == []
    assert list(group_by_documents(Collection({}), ["q", "r"], 10, 1)) == [[], []]


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(-2, 4)), st.integers(1, 9), st.sampled_from([1, 2, 3, MOST]))
def test_lists_equal_all_passages_grouped(scores: dict[str, int], hits: int, best: int) -> None:
    [first, second] = group_by_documents(Collection(scores), ["p", "q"], hits, best)
    assert first == rank_hits("p", by_passages(scores, best).items(), hits)
    assert second == rank_hits("q", by_passages(scores, best).items(), hits)


def test_no_deeper_than_the_list_needs() -> None:
    """1,000 documents of two passages; the two best of all are those of d0, the next two of d1."""
    search = Collection({f"d{n // 2}#{n % 2}": 2000 - n for n in range(2000)})
    assert [d.doc_id for d in next(group_by_documents(search, ["q"], 2, 1))] == ["d0", "d1"]
    # Of 4 passages, the last is as good as one that could follow.
    assert search.depths == [4]
    level = Collection({f"d{n // 2}#{n % 2}": 7 for n in range(2000)})
    assert [d.doc_id for d in next(group_by_documents(level, ["q"], 2, 1))] == ["d0", "d1"]
    assert level.depths[-1] > 2000


def test_the_best_passages_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "LOOKED_AT", 2)
    search = Collection({"a#0": 5, "b#0": 4, "b#1": 6, "a#1": 1, "c": 3, "b#2": 5})
    taken = score_by_passages(search, "q", ["a", "b", "z"], 2)
    assert taken == {"a": ["a#0", "a#1"], "b": ["b#1", "b#2"], "z": []}
    assert search.depths == [2, 8]
    assert score_by_passages(search, "q", ["b"], 1) == {"b": ["b#1"]}
