"""Which order of equal scores a table has, and what the other one would change.

Integer scores tie often, and a foreign evaluator orders ties in its own way, so one run has two values. A run whose
manifest vouches for it keeps the order of its ranks, which is the order of the index; a run of another system is
measured as its authors measured it, with trec_eval. Values by different rules cannot be compared, so a table has one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import Measurement

from .found import Found, Relevant
from .inputs import RunCard
from .metrics import MeasuringRules, mean, values_of
from .names import Measure
from .ties import check_ties

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
        check_ties(requested)
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
    rows: Sequence[Measurement], found: Found, relevant: Relevant, measures: Sequence[Measure], rules: MeasuringRules
) -> list[OtherValue]:
    """The measurements of a run that the other rule changes by more than `NEGLIGIBLE`.

    Only topics in which a relevant document has another place are measured again.

    Args:
        rows: as `measure` returns them for the other arguments.
    """
    other = OTHER[rules.ties]
    moved = found.documents[found.places[other] != found.places[rules.ties]]
    topics = np.unique(relevant.topics_of(moved))
    if not len(topics):
        return []
    values = values_of(found, relevant, topics, measures, rules._replace(ties=other))
    count = len(relevant.topics)
    paired = list[tuple[Measurement, float]]()
    for number, measure in enumerate(measures):
        of_measure = rows[number * (count + 1) : (number + 1) * (count + 1)]
        by_other = np.array([row.value for row in of_measure[:count]])
        by_other[topics] = values[measure]
        paired += zip(of_measure, [*by_other.tolist(), mean(by_other)], strict=True)
    return [OtherValue(row, value) for row, value in paired if abs(value - row.value) > NEGLIGIBLE]


def report_other_values(changed: Sequence[OtherValue]) -> None:
    """Logs one line if the other rule changes values."""
    if changed:
        row, value = changed[0]
        topic = "" if row.query_id == "all" else f", topic {row.query_id!r}"
        more = f"; other values that differ: {len(changed) - 1}" if len(changed) > 1 else ""
        text = "%s%s: the order of equal scores decides; %s is %.4f by %s and %.4f by %s%s"
        log.warning(text, row.run, topic, row.measure, row.value, row.ties, value, OTHER[row.ties], more)
