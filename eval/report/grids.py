"""Tables of measurements: runs by measures, and systems by measures with data sets side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from eval.measures.inputs import RunCard
from eval.measures.metrics import means
from eval.report.render import MISSING, Column, Table
from lexvl_anserini.records import Measurement


class Row(NamedTuple):
    """One system on one data set: what a table of systems is made of."""

    system: str
    dataset: str
    run: str
    measures: Mapping[str, float]
    efficiency: Mapping[str, float]


class Figure(NamedTuple):
    """How a figure of efficiency is shown: heading, factor to its unit, decimals."""

    heading: str
    factor: float
    decimals: int


EFFICIENCY: dict[str, Figure] = {
    "mean_document_terms": Figure("terms/doc", 1, 1),
    "mean_query_terms": Figure("terms/query", 1, 1),
    "index_documents": Figure("documents", 1, 0),
    "index_bytes": Figure("index MB", 1e-6, 1),
    "ms_per_query": Figure("ms/query", 1, 1),
}


def format_value(value: float) -> str:
    """A value of a measure, four decimals."""
    return f"{value:.4f}"


def format_figure(name: str, value: float | None) -> str:
    """A figure of efficiency in its unit; a dash where it is missing."""
    figure = EFFICIENCY[name]
    return MISSING if value is None else f"{value * figure.factor:,.{figure.decimals}f}"


def score_table(measurements: Sequence[Measurement]) -> Table:
    """Runs (and topics, where there are any) as rows, measures as columns."""
    measures = list(dict.fromkeys(row.measure for row in measurements))
    with_topics = any(row.query_id != "all" for row in measurements)
    labels = ("run", "dataset", "topic") if with_topics else ("run", "dataset")
    cells: dict[tuple[str, ...], dict[str, float]] = {}
    for row in measurements:
        cells.setdefault((row.run, row.dataset, row.query_id)[: len(labels)], {})[row.measure] = row.value
    return Table(
        columns=(*(Column(label, number=False) for label in labels), *map(Column, measures)),
        rows=tuple(
            (*key, *(format_value(values[m]) if m in values else MISSING for m in measures))
            for key, values in cells.items()
        ),
    )


def system_row(card: RunCard, measurements: Sequence[Measurement]) -> Row:
    """The row of one run."""
    first = measurements[0]
    return Row(card.system, first.dataset, first.run, means(measurements), card.efficiency)


def distinct_systems(rows: Sequence[Row]) -> list[Row]:
    """Rows of one data set that share a system's name get their run's name added."""
    taken = [(row.dataset, row.system) for row in rows]
    return [
        row._replace(system=f"{row.system} [{row.run}]") if taken.count((row.dataset, row.system)) > 1 else row
        for row in rows
    ]


def system_table(rows: Sequence[Row]) -> Table:
    """Systems as rows; per data set its measures, then the figures of efficiency that any run has."""
    rows = distinct_systems(rows)
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    measures = list(dict.fromkeys(measure for row in rows for measure in row.measures))
    figures = [name for name in EFFICIENCY if any(name in row.efficiency for row in rows)]
    at = {(row.system, row.dataset): row for row in rows}
    systems = list(dict.fromkeys(row.system for row in rows))
    columns = [Column("system", number=False)]
    columns += [
        Column(heading, dataset)
        for dataset in datasets
        for heading in [*measures, *(EFFICIENCY[name].heading for name in figures)]
    ]
    cells = tuple(
        (system, *(cell for dataset in datasets for cell in _cells(at.get((system, dataset)), measures, figures)))
        for system in systems
    )
    best = {
        (r, c)
        for c, column in enumerate(columns)
        if column.heading in measures and len(systems) > 1
        for r, row in enumerate(cells)
        if row[c] == max((other[c] for other in cells if other[c] != MISSING), default=None)
    }
    return Table(tuple(columns), cells, frozenset(best))


def _cells(row: Row | None, measures: Sequence[str], figures: Sequence[str]) -> Iterable[str]:
    for measure in measures:
        yield format_value(row.measures[measure]) if row and measure in row.measures else MISSING
    for name in figures:
        yield format_figure(name, row.efficiency.get(name) if row else None)
