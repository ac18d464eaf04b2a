"""Which order of equal scores a table has, and what the other one would change.

Integer scores tie often, and a foreign evaluator orders ties in its own way, so one run has two values. A run whose
manifest vouches for it keeps the order of its ranks, which is the order of the index; a run of another system is
measured as its authors measured it, with trec_eval. Values by different rules cannot be compared, so a table has one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lexvl_anserini.errors import UnknownName, UsageError
from lexvl_anserini.records import Measurement

from .inputs import RunCard
from .metrics import MeasuringRules, mean, values_of
from .names import Measure
from .ties import TIES, Hits, may_differ

log = logging.getLogger(__name__)

OTHER = {"rank": "trec_eval", "trec_eval": "rank"}

# Two values of a measure differ if they are further apart.
NEGLIGIBLE = 1e-4


def common_ties(cards: Sequence[RunCard], requested: str | None = None) -> str:
    """The one order of equal scores for some runs: the requested one, else the one that all of them ask for.

    Raises:
        UnknownName: no such order.
        UsageError: none is requested, and the runs ask for different ones.
    """
    if requested is not None:
        if requested not in TIES:
            raise UnknownName("order of ties", requested, TIES)
        return requested
    asking = {card.ties: card.path for card in reversed(cards)}
    if len(asking) > 1:
        raise UsageError(
            f"{asking['rank']} has a manifest, so equal scores keep the order of its ranks; {asking['trec_eval']} has "
            "none that fits, so it has trec_eval's order; one table has one order, give --ties rank or --ties trec_eval"
        )
    return next(iter(asking), "rank")


class OtherValue(NamedTuple):
    """A measurement, and the value by the other rule."""

    row: Measurement
    value: float


def other_values(
    rows: Sequence[Measurement],
    hits: Mapping[str, Hits],
    judged: Mapping[str, Mapping[str, int]],
    measures: Sequence[Measure],
    rules: MeasuringRules,
) -> list[OtherValue]:
    """The measurements of a run that the other rule changes by more than `NEGLIGIBLE`.

    Only topics in which a relevant document shares its score are measured again.

    Args:
        rows: as `measure_hits` returns them for the other arguments.
    """
    tied = [topic for topic in judged if topic in hits and may_differ(hits[topic], judged[topic])]
    if not tied:
        return []
    values = values_of(hits, judged, tied, measures, rules._replace(ties=OTHER[rules.ties]))
    by_other = {(str(m), topic): float(v) for m in measures for topic, v in zip(tied, values[m], strict=True)}
    other = [by_other.get((row.measure, row.query_id), row.value) for row in rows if row.query_id != "all"]
    means = (mean(other[n * len(judged) : (n + 1) * len(judged)]) for n in range(len(measures)))
    topics = iter(other)
    paired = [OtherValue(row, next(means if row.query_id == "all" else topics)) for row in rows]
    return [pair for pair in paired if abs(pair.value - pair.row.value) > NEGLIGIBLE]


def report_other_values(changed: Sequence[OtherValue]) -> None:
    """Logs one line if the other rule changes values."""
    if changed:
        row, value = changed[0]
        topic = "" if row.query_id == "all" else f", topic {row.query_id!r}"
        more = f"; other values that differ: {len(changed) - 1}" if len(changed) > 1 else ""
        text = "%s%s: the order of equal scores decides; %s is %.4f by %s and %.4f by %s%s"
        log.warning(text, row.run, topic, row.measure, row.value, row.ties, value, OTHER[row.ties], more)
