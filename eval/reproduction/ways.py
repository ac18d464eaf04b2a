"""How this version measures a task: one row per task, so that a new task is one function and one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from .classification import measure_classification
from .counts import can_be_counted, count_parameters
from .published_runs import measure_published, needed_files
from .requirements import (
    cost_of_classification,
    cost_of_retrieval,
    needs_of_classification,
    needs_of_retrieval,
)
from .retrieval import measure_retrieval
from .rows import Finding, Need, PartCost, RowPart, Workplace


class Way(NamedTuple):
    """How a part of a row is measured.

    measure  measures it; raises CheckpointError or DataError where weights or data are missing
    needs    what it reads, without reading it
    cost     what it costs; None where that is nothing, or not known
    """

    measure: Callable[[RowPart, Workplace], Finding]
    needs: Callable[[RowPart, Workplace], list[Need]]
    cost: Callable[[RowPart, Workplace], PartCost | None]


def nothing_needed(part: RowPart, place: Workplace) -> list[Need]:
    """For what is computed from a configuration."""
    return []


def no_cost(part: RowPart, place: Workplace) -> None:
    """For what takes seconds and writes nothing."""


RETRIEVAL = Way(measure_retrieval, needs_of_retrieval, cost_of_retrieval)
CLASSIFICATION = Way(measure_classification, needs_of_classification, cost_of_classification)
PUBLISHED_RUN = Way(measure_published, needed_files, no_cost)
COUNT = Way(count_parameters, nothing_needed, no_cost)

# Task -> how it is measured. Tasks that are no key are not measured by this version.
WAYS: Mapping[str, Way] = {
    "text-to-text": RETRIEVAL,
    "text-to-image": RETRIEVAL,
    "image-to-text": RETRIEVAL,
    "zero-shot": CLASSIFICATION,
    "linear-probe": CLASSIFICATION,
    "words": CLASSIFICATION,
    "model": COUNT,
}


def way_of(part: RowPart) -> Way | None:
    """How a part is measured; None if this version does not measure it, or its system is not ours."""
    if part.runs is not None:
        return PUBLISHED_RUN
    if part.system is None or (part.task == "model" and not can_be_counted(part)):
        return None
    return WAYS.get(part.task)
