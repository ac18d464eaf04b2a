"""The names of measures: each measure with its cut, and the names that other tools have for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from lexvl_anserini.errors import UnknownName, UsageError


class Measure(NamedTuple):
    """A measure and its cut: `nDCG@10` is ("nDCG", 10), `AP` is ("AP", None)."""

    name: str
    k: int | None = None

    def __str__(self) -> str:
        return self.name if self.k is None else f"{self.name}@{self.k}"


# (judgements [T, J, 2], rankings [T, depth, 2], cut or 0, relevance level) -> values [T]; `as_arrays` has the layout.
MeasureFunction = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]


class Definition(NamedTuple):
    """How a measure is computed.

    function   the name of a function of `ranx.metrics`, or a function with the same parameters
    needs_cut  the measure needs a cut
    binary     `relevance_level` applies
    about      the measure in words
    """

    function: str | MeasureFunction
    needs_cut: bool
    binary: bool
    about: str


MEASURES: dict[str, Definition] = {
    "nDCG": Definition("ndcg", False, False, "normalised discounted cumulative gain, linear gain"),
    "RR": Definition("reciprocal_rank", False, True, "1 / rank of the first relevant document"),
    "AP": Definition("average_precision", False, True, "mean precision at the relevant documents"),
    "Recall": Definition("recall", True, True, "share of the relevant documents found"),
    "HitRate": Definition("hit_rate", True, True, "1 if any relevant document is found; R@k of the caption papers"),
    "P": Definition("precision", True, True, "share of the first k that is relevant"),
}

# In lower case: the names of other tools for the same measures.
ALIASES: dict[str, str] = {
    **{name.lower(): name for name in MEASURES},
    "mrr": "RR",
    "map": "AP",
    "precision": "P",
    "success": "HitRate",
    "hit": "HitRate",
    "hit_rate": "HitRate",
}


def parse_measure(text: str) -> Measure:
    """Parses a measure's name; case is ignored.

    >>> parse_measure("MRR@10")
    Measure(name='RR', k=10)

    Raises:
        UnknownName: there is no such measure; the message suggests the nearest.
        UsageError: the cut is missing or below 1, or the name means two things (`R@10`).
    """
    shape = re.fullmatch(r"([A-Za-z_]+)(?:@([0-9]+))?", text)
    name, cut = shape.groups() if shape else (text.partition("@")[0], None)
    if name.lower() == "r":
        raise UsageError(
            f"measure {text!r} means two things: HitRate@k (R@k of the caption papers) or Recall@k (trec_eval's)"
        )
    if shape is None or name.lower() not in ALIASES:
        raise UnknownName("measure", text, (f"{known}@k" for known in MEASURES))
    measure = Measure(ALIASES[name.lower()], int(cut) if cut else None)
    if measure.k == 0 or (measure.k is None and MEASURES[measure.name].needs_cut):
        raise UsageError(f"measure {text!r} needs a cut of at least 1, such as {measure.name}@10")
    return measure


def parse_measures(texts: Iterable[str | Measure]) -> tuple[Measure, ...]:
    """Parses several measures, in order, without duplicates.

    Raises:
        UsageError: one of them cannot be parsed, or there is none.
    """
    measures = tuple(dict.fromkeys(parse_measure(str(text)) for text in texts))
    if not measures:
        raise UsageError("no measure given; name one, such as nDCG@10")
    return measures
