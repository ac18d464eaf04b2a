"""What can be reproduced: per table the cells, weights, data, disk and time, without loading or fetching anything.

How this version measures a task: one row per task, so that a new task is one function and one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .classification import measure_classification
from .counts import can_be_counted, count_parameters
from .published import PublishedTable
from .published_runs import measure_published, needed_files
from .quantities import parts_of
from .requirements import (
    cost_of_classification,
    cost_of_retrieval,
    needs_of_classification,
    needs_of_retrieval,
)
from .retrieval import measure_retrieval
from .rows import Finding, Need, PartCost, PublishedRow, RowPart, Workplace, rows_of


class TablePlan(NamedTuple):
    """What this version does with a table.

    cells     published numbers
    runs      of these: it measures, with published weights and data, or without any
    own       of these: it measures with weights or data that the user names, because they are not published
    later     of these: of systems of this project, but it does not measure them
    needs     weights and data of `runs` and `own`, each once
    bytes     of shards and indexes of `runs`, about
    seconds   of one CPU core for `runs`, about
    missing   what the table lacks, or why it has no numbers
    """

    table: str
    title: str
    paper: str
    cells: int
    runs: int
    own: int
    later: int
    needs: tuple[Need, ...]
    bytes: float
    seconds: float
    missing: str

    @property
    def others(self) -> int:
        """Cells of other people's systems."""
        return self.cells - self.runs - self.own - self.later

    @property
    def lacking(self) -> tuple[Need, ...]:
        """What is published and not on this machine."""
        return tuple(need for need in self.needs if need.public and not need.here)


def plan_of(table: PublishedTable, place: Workplace, pattern: str = "*") -> TablePlan:
    """The plan of the rows of a table that match the pattern."""
    counts: Counter[str] = Counter()
    needs: dict[str, Need] = {}
    runnable: list[RowPart] = []
    for row in rows_of(table, pattern):
        found = list(needs_of(row, place))
        needs |= {need.name: need for _, wanted in found for need in wanted}
        runnable += [part for part, wanted in found if all(need.public for need in wanted)]
        counts.update(kinds_of(row, found))
    size, seconds = cost_of(runnable, place)
    return TablePlan(
        table=table.name,
        title=table.title,
        paper=table.paper,
        cells=counts.total(),
        runs=counts["runs"],
        own=counts["own"],
        later=counts["later"],
        needs=tuple(needs.values()),
        bytes=size,
        seconds=seconds,
        missing=table.missing,
    )


def needs_of(row: PublishedRow, place: Workplace) -> Iterator[tuple[RowPart, list[Need]]]:
    """The parts of a row that this version measures, and what each needs."""
    for part in row.parts():
        if way := way_of(part):
            yield part, way.needs(part, place)


def kinds_of(row: PublishedRow, needs: Sequence[tuple[RowPart, list[Need]]]) -> Iterator[str]:
    """What happens to each cell of a row: runs, own, later or others, as in `TablePlan`."""
    public = {(part.task, part.data): all(need.public for need in wanted) for part, wanted in needs}
    measured = {(part.task, part.data, measure) for part, _ in needs for measure in part.measures}
    for cell in row.cells:
        parts = parts_of(cell.quantity)
        if not row.is_ours:
            yield "others"
        elif not measured.issuperset(parts):
            yield "later"
        else:
            yield "runs" if all(public[part.task, part.data] for part in parts) else "own"


def cost_of(parts: Iterable[RowPart], place: Workplace) -> tuple[float, float]:
    """Bytes and CPU seconds of some parts; documents that several share are counted once."""
    encoded: dict[str, tuple[float, float]] = {}
    topics = 0.0
    for part in parts:
        way = way_of(part)
        if way and (cost := way.cost(part, place)):
            encoded[cost.documents] = (cost.bytes, cost.encoding_s)
            topics += cost.topics_s
    return sum(size for size, _ in encoded.values()), sum(time for _, time in encoded.values()) + topics


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
