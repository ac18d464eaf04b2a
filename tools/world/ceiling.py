"""The best possible recall on the demo's captions: some of them are true of several images.

A caption mentions a few facts ("two seats near a house"), and each scene that has these wordings for them could be the
described one (see `world.facts`). A perfect reader that uses every mentioned fact, and nothing
else, finds the right one of n such scenes among the first k with probability min(1, k/n): the mean over all captions is
the best R@k, text to image. Facts that a caption omits do not count here, though they make plainer scenes a bit
likelier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

from world.facts import Fact, link, readings
from world.grammar import descriptions
from world.scenes import Scene, scenes

CUTS = (1, 5, 10)


class Ceiling(NamedTuple):
    """The best possible figures of a split.

    alone        share of captions that agree with one scene only
    mean_scenes  mean number of scenes that a caption agrees with
    most_scenes  largest number of scenes that a caption agrees with
    r_at_1, r_at_5, r_at_10  the best R@k, text to image
    """

    split: str
    captions: int
    alone: float
    mean_scenes: float
    most_scenes: int
    r_at_1: float
    r_at_5: float
    r_at_10: float


class FactIndex:
    """An inverted index of scenes by the facts that a caption can state of them.

    A set of scenes is the bits of an integer.
    """

    def __init__(self, listed: Iterable[Scene]):
        # One table for scenes described from their subject, one for scenes described from their landmark.
        self.tables: tuple[dict[Fact, int], ...] = (defaultdict(int), defaultdict(int))
        self.count = 0
        for scene in listed:
            for table, stated in zip(self.tables, readings(scene), strict=False):
                for fact in stated:
                    table[fact] |= 1 << self.count
            self.count += 1

    def agreeing(self, facts: Sequence[Fact]) -> int:
        """The scenes that a caption of these facts agrees with, scene i as bit i."""
        everything = (1 << self.count) - 1
        # A caption starts from the landmark only if it also states the relation between the two.
        tables = self.tables if any(fact.slot is link for fact in facts) else self.tables[:1]
        matches = (reduce(and_, (table.get(fact, 0) for fact in facts), everything) for table in tables)
        return reduce(or_, matches)


def agreeing_counts(listed: Sequence[Scene]) -> Iterator[int]:
    """For every caption of some scenes, the number of them that it agrees with, its own scene included."""
    index = FactIndex(listed)
    for scene in listed:
        for description in descriptions(scene):
            yield index.agreeing(description.facts).bit_count()


def best_recall(counts: Sequence[int], k: int) -> float:
    """Mean chance that the right one of `count` equal scenes is among k.

    >>> best_recall([1, 2, 4], 2)
    0.8333333333333334
    """
    return sum(min(1.0, k / count) for count in counts) / len(counts)


def ceiling(split: str) -> Ceiling:
    """The ceiling of a split of the demo.

    Raises:
        UnknownName: no such split.
    """
    counts = list(agreeing_counts(list(scenes(split))))
    figures = (counts.count(1) / len(counts), sum(counts) / len(counts), max(counts))
    return Ceiling(split, len(counts), *figures, *(best_recall(counts, k) for k in CUTS))
