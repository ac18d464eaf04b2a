"""Documents scored by their passages, over any search: equal to all passages grouped, for every depth and tie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from brute_force import by_passages
from hypothesis import given
from hypothesis import strategies as st

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.typed import MOST
from lexvl_anserini.runs import order as passages
from lexvl_anserini.runs.order import RankedList, group_by_documents, rank_hits, read_best, score_by_passages

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
    monkeypatch.setattr(passages, "LOOKED_AT", 2)
    search = Collection({"a#0": 5, "b#0": 4, "b#1": 6, "a#1": 1, "c": 3, "b#2": 5})
    taken = score_by_passages(search, "q", ["a", "b", "z"], 2)
    assert taken == {"a": ["a#0", "a#1"], "b": ["b#1", "b#2"], "z": []}
    assert search.depths == [2, 8]
    assert score_by_passages(search, "q", ["b"], 1) == {"b": ["b#1"]}
