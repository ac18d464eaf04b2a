"""Cuts by score: from which score on a document is a hit; without one, a search answers where nothing fits too.

A score by itself says little: a query of more or heavier terms has higher ones. A share of the query's bound, the
greatest score that a document could have, can be compared between queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.queries.clauses import Clause, Text, bound, walk

if TYPE_CHECKING:
    from lexvl_anserini.engines.engine import ImpactEngine

# An engine's bound is its tightest from 2^24 on. A power of two scales weights exactly.
SCALE = float(1 << 48)


@dataclass(frozen=True)
class Cut:
    """The least score of a hit.

    value     a score; or a share of the query's bound, in percent
    relative  whether it is a share, which needs an impact index
    """

    value: float
    relative: bool = False

    def __post_init__(self) -> None:
        if not isfinite(self.value) or self.relative and not 0 <= self.value <= 100:
            raise UsageError(f"least score {self}: expected a score (300), or a share of the bound from 0% to 100%")

    @classmethod
    def of(cls, text: str) -> Cut:
        """The cut that a text names, `300` or `20%`.

        >>> Cut.of("12.5%")
        Cut(value=12.5, relative=True)
        """
        number = text.strip()
        try:
            # Python reads 1_0 as 10.
            value = float("nan" if "_" in number else number.removesuffix("%"))
        except ValueError:
            value = float("nan")
        if value != value:
            raise UsageError(f"least score {text!r}: expected a score (300), or a share of the query's bound (20%)")
        return cls(value, number.endswith("%"))

    def __str__(self) -> str:
        """The text that `of` reads."""
        return f"{self.value:.15g}{'%' * self.relative}"

    def least(self, clause: Clause, engine: ImpactEngine) -> float:
        """The least score of a hit of a query tree.

        Raises:
            UsageError: a share of a bound, and the tree has BM25.
        """
        return self.value * greatest_score(clause, engine) / 100 if self.relative else self.value


def greatest_score(clause: Clause, engine: ImpactEngine) -> float:
    """The greatest score that a document could have: sum over terms of weight x greatest impact in the index.

    It is the same in every exact engine. A document has it if it has the greatest impact of each term.

    Raises:
        UsageError: the tree has BM25, whose greatest score is not known.
    """
    if any(isinstance(node, Text) for node in walk(clause)):
        raise UsageError("a share of the query's bound: BM25 of texts has no bound; give a score instead of a share")
    scaled = bound(clause, lambda vector: engine.bound({term: SCALE * weight for term, weight in vector.items()}))
    return scaled / SCALE
