"""The names of measures: each measure with its cut, and the names that other tools have for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from lexvl_anserini.ground.errors import UnknownName, UsageError


class Measure(NamedTuple):
    """A measure, its cut, and the least relevance that counts in it: `AP(rel=2)@100` is ("AP", 100, 2)."""

    name: str
    k: int | None = None
    level: int | None = None

    def __str__(self) -> str:
        level = "" if self.level is None else f"(rel={self.level})"
        return f"{self.name}{level}" if self.k is None else f"{self.name}{level}@{self.k}"


# (judgements [T, J, 2], rankings [T, depth, 2], cut or 0, relevance level) -> values [T]; see `convert_to_arrays`.
MeasureFunction = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]


class Definition(NamedTuple):
    """How a measure is computed.

    Attributes:
        function: the name of a function of `ranx.metrics`, or a function with the same parameters
        needs_cut: the measure needs a cut
        binary: a least relevance decides which documents are relevant; else every relevance counts
        described: the measure in words
    """

    function: str | MeasureFunction
    needs_cut: bool
    binary: bool
    described: str


MEASURES: dict[str, Definition] = {
    "nDCG": Definition("ndcg", False, False, "normalised discounted cumulative gain, linear gain"),
    "RR": Definition("reciprocal_rank", False, True, "1 / rank of the first relevant document"),
    "AP": Definition("average_precision", False, True, "mean precision at the relevant documents"),
    "Recall": Definition("recall", True, True, "share of the relevant documents found"),
    "HitRate": Definition("hit_rate", True, True, "1 if any relevant document is found; R@k of the caption papers"),
    "P": Definition("precision", True, True, "share of the first k that is relevant"),
}


def set_level(measure: Measure, relevance_level: int) -> Measure:
    """The measure with a least relevance that counts, if it has none of its own and not every relevance counts in it.

    Relevance 1 is what all measures begin with, and stays unsaid.

    >>> str(at_level(Measure("AP", 100), 2)), str(at_level(Measure("nDCG", 10), 2)), str(at_level(Measure("AP"), 1))
    ('AP(rel=2)@100', 'nDCG@10', 'AP')
    """
    unsaid = relevance_level == 1 or measure.level is not None or not MEASURES[measure.name].binary
    return measure if unsaid else measure._replace(level=relevance_level)


# In lower case: the names of other tools for the same measures.
ALIASES: dict[str, str] = {
    **{name.lower(): name for name in MEASURES},
    "mrr": "RR",
    "recip_rank": "RR",
    "map": "AP",
    "map_cut": "AP",
    "ndcg_cut": "nDCG",
    "precision": "P",
    "success": "HitRate",
    "hit": "HitRate",
    "hit_rate": "HitRate",
}

# nDCG@10, ndcg_cut_10 and ndcg_cut.10 (trec_eval), ndcg_at_10 (MTEB), AP(rel=2)@100 (ir_measures).
SHAPE = re.compile(r"(?P<name>[A-Za-z_]+?)(?:\((?P<settings>[^()]*)\))?(?:(?:@|_at_|[_.])(?P<cut>[0-9]+))?")


def parse_measure(text: str) -> Measure:
    """Parses a measure's name, ours or that of trec_eval or ir_measures; case is ignored.

    >>> parse_measure("recip_rank"), parse_measure("AP(rel=2)@100")
    (Measure(name='RR', k=None, level=None), Measure(name='AP', k=100, level=2))

    Raises:
        UnknownName: there is no such measure; the message suggests the nearest.
        UsageError: the cut is missing or below 1, a setting is unknown, or the name means two things (`R@10`).
    """
    shape = SHAPE.fullmatch(text)
    name = (shape["name"] if shape else text.partition("@")[0]).lower()
    if name == "r":
        if shape is None or shape["settings"] is None:
            raise UsageError(
                f"measure {text!r} means two things: HitRate@k (R@k of the caption papers) or Recall@k (trec_eval's)"
            )
        name = "recall"  # only ir_measures writes R(rel=2)@100
    if shape is None or name not in ALIASES:
        raise UnknownName("measure", text, (f"{known}@k" for known in MEASURES))
    definition = MEASURES[ALIASES[name]]
    level = None if shape["settings"] is None else _parse_level(text, shape["settings"], definition)
    measure = Measure(ALIASES[name], int(shape["cut"]) if shape["cut"] else None, level)
    if measure.k == 0 or (measure.k is None and definition.needs_cut):
        raise UsageError(f"measure {text!r} needs a cut of at least 1, such as {measure.name}@10")
    return measure


def _parse_level(text: str, settings: str, definition: Definition) -> int:
    """The level of relevance in the brackets of a measure."""
    if not (match := re.fullmatch(r"\s*rel\s*=\s*([0-9]{1,9})\s*", settings)) or int(match[1]) < 1:
        raise UsageError(f"measure {text!r}: ({settings}), expected the least relevance that counts, such as (rel=2)")
    if not definition.binary:
        raise UsageError(f"measure {text!r}: every level of relevance counts in it; leave out ({settings})")
    return int(match[1])


def parse_measures(texts: Iterable[str | Measure], relevance_level: int = 1) -> tuple[Measure, ...]:
    """Parses several measures, in order, without duplicates; those without a level of their own get the least one."""
    if relevance_level < 1:
        raise UsageError(f"relevance level {relevance_level} is below 1; relevance 0 is never relevant")
    measures = tuple(dict.fromkeys(set_level(parse_measure(str(text)), relevance_level) for text in texts))
    if not measures:
        raise UsageError("no measure given; name one, such as nDCG@10")
    return measures
