"""What can be reproduced: per table the cells, weights, data, disk and time, without loading or fetching anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .published import PublishedTable
from .quantities import parts_of
from .rows import Need, PublishedRow, RowPart, Workplace, rows_of
from .ways import way_of


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
