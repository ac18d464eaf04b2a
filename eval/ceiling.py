"""How well the demo's captions could be answered at best: some are true of several pictures.

A caption mentions a few facts ("two seats near a house"), and every scene that has these wordings for them could be the
one that is meant (see `lexvl_anserini.data.world.facts`). Whoever understands everything that is said, and nothing
else, finds the right one of n such scenes among the first k with probability min(1, k/n): the mean over all captions is
the best R@k, text to image. What is left unsaid counts for nothing here, though it makes plainer scenes a bit likelier.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import and_, or_
from typing import Annotated, NamedTuple

import typer

from eval.report.render import FORMATS as TABLE_FORMATS
from eval.report.render import Column, Table, check_format, json_rows
from lexvl_anserini.cli import Verbose, run
from lexvl_anserini.data.demo import scenes
from lexvl_anserini.data.world.facts import Fact, link, readings
from lexvl_anserini.data.world.grammar import descriptions
from lexvl_anserini.data.world.scenes import Scene

FORMATS = (*TABLE_FORMATS, "json")
CUTS = (1, 5, 10)


class Ceiling(NamedTuple):
    """The best possible figures of a split.

    alone        share of captions that agree with one scene only
    mean_scenes  scenes that a caption agrees with, on average
    most_scenes  of a caption at most
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


class Tellable:
    """An inverted index of scenes by the facts that can be told of them; sets of scenes are bits of an integer."""

    def __init__(self, listed: Iterable[Scene]):
        # One table for scenes told from their subject, one for those told from their landmark.
        self.tables: tuple[dict[Fact, int], ...] = (defaultdict(int), defaultdict(int))
        self.count = 0
        for scene in listed:
            for table, told in zip(self.tables, readings(scene), strict=False):
                for fact in told:
                    table[fact] |= 1 << self.count
            self.count += 1

    def agreeing(self, facts: Sequence[Fact]) -> int:
        """The scenes that a caption of these facts agrees with, scene i as bit i."""
        everything = (1 << self.count) - 1
        # From its landmark a scene is told only together with how the two stand to each other.
        tables = self.tables if any(fact.slot is link for fact in facts) else self.tables[:1]
        told = (reduce(and_, (table.get(fact, 0) for fact in facts), everything) for table in tables)
        return reduce(or_, told)


def agreeing_counts(listed: Sequence[Scene]) -> Iterator[int]:
    """For every caption of some scenes, with how many of them it agrees: its own and others."""
    index = Tellable(listed)
    for scene in listed:
        for description in descriptions(scene):
            yield index.agreeing(description.facts).bit_count()


def best_recall(counts: Sequence[int], k: int) -> float:
    """Mean chance to have the right one of `count` equal scenes among k.

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


def ceiling_table(rows: Sequence[Ceiling]) -> Table:
    """One row per split, shares in percent."""
    headings = ("captions", "alone %", "mean scenes", "most scenes", *(f"R@{k}" for k in CUTS))
    cells = (
        (
            row.split,
            f"{row.captions:,}",
            f"{100 * row.alone:.1f}",
            f"{row.mean_scenes:.2f}",
            str(row.most_scenes),
            *(f"{100 * value:.1f}" for value in (row.r_at_1, row.r_at_5, row.r_at_10)),
        )
        for row in rows
    )
    return Table((Column("split", number=False), *map(Column, headings)), tuple(cells))


def command(
    split: Annotated[list[str] | None, typer.Option(help="train, val or test; repeatable. Default test.")] = None,
    output_format: Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or json.")] = "text",
    verbose: Verbose = False,
) -> None:
    """Tell the best R@1, R@5 and R@10 that the demo's captions allow, text to image.

    Example: python -m eval.ceiling --split val --split test
    """
    check_format(output_format, FORMATS)
    rows = [ceiling(name) for name in split or ["test"]]
    sys.stdout.write(json_rows(rows) if output_format == "json" else TABLE_FORMATS[output_format](ceiling_table(rows)))


if __name__ == "__main__":
    run(command)
