"""Published numbers as typed cells, read strictly from `runs/expected/<paper>.yaml`; `entries.py` has the form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.data.strict_yaml import Spot, read_yaml, suggestion
from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError

from .entries import PaperEntry, PrintedNumber, PublishedRuns, PublishedSystem, TableEntry
from .quantities import Quantity, parse_quantity


class PublishedCell(NamedTuple):
    """One published number.

    table     name of the table, such as vdr-table4
    row       its heading in the file, and `column`; one of them is the system's, see `label`
    label     the system as the paper names it
    system    what this project runs for it; None for other people's systems
    decimals  that the source prints
    unit      a key of `UNITS`; `status` one of `STATUSES`
    protocol  how the paper measures, and `note`: what is doubtful (both may be empty)
    """

    table: str
    row: str
    column: str
    label: str
    quantity: Quantity
    value: float
    decimals: int
    unit: str
    status: str
    protocol: str
    note: str
    system: PublishedSystem | None


class PublishedTable(NamedTuple):
    """A table: its name, the paper, what it is about, its cells, and why numbers are missing (empty: none are).

    `runs` says where the runs of its rows are published; None where they are not.
    """

    name: str
    paper: str
    title: str
    protocol: str
    cells: tuple[PublishedCell, ...]
    missing: str
    runs: PublishedRuns | None = None


def expected_folder() -> Path:
    """The folder of the files: `expected` within the installed package, `runs/expected` in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "expected"
    return installed if installed.is_dir() else package.parent / "runs" / "expected"


@cache
def published_tables() -> Mapping[str, PublishedTable]:
    """All tables by name, such as vdr-table4, in the order of files and of their entries."""
    return {table.name: table for path in sorted(expected_folder().glob("*.yaml")) for table in read_tables(path)}


def read_tables(path: Path) -> Iterator[PublishedTable]:
    """The tables of one file; their names begin with the name of the file.

    Raises:
        DataError: an unknown key, unit, status, task, data set, measure, encoder, checkpoint or heading; a row of the
            wrong length; what is no number; two values for one cell; a table with neither numbers nor a reason.
    """
    content: PaperEntry = read_yaml(path, PaperEntry)
    for key, entry in content.tables.items():
        name, where = f"{path.stem}-{key}", f"{path.name} (tables: {key})"
        cells = tuple(_cells(name, entry, where))
        if not cells and not entry.missing:
            raise DataError(f"{where}: no numbers; say in `missing` why")
        _check_names(entry, cells, where)
        _check_systems(entry, where)
        yield PublishedTable(name, content.paper, entry.title, entry.protocol, cells, entry.missing, entry.runs)


def _cells(name: str, entry: TableEntry, where: str) -> Iterator[PublishedCell]:
    across = entry.rows_are == "quantities"
    columns = _columns(entry, where)
    quantities = {} if across else {heading: _quantity(heading, spot) for heading, spot in columns.items()}
    for row, (numbers, spot) in entry.rows.items():
        if len(numbers) != len(columns):
            raise DataError(f"{spot}: {len(numbers)} values, expected {len(columns)}, one per column")
        of_row = _quantity(row, spot) if across else None
        for column, number in zip(columns, numbers, strict=True):
            if number:
                yield _cell(name, entry, (row, column), of_row or quantities[column], number)
    for row, terms in entry.terms.items():
        for term, weight in terms.weights.items():
            yield _cell(name, entry, (row, term), Quantity("weight", "", term), weight)


def _columns(entry: TableEntry, where: str) -> dict[str, Spot]:
    """The headings of the columns and their places; a table has columns and rows, or terms."""
    if entry.terms and (entry.rows or entry.columns):
        raise DataError(f"{where}: both rows and terms; make two tables of them")
    columns: dict[str, Spot] = {}
    for names, spot in entry.columns:
        for heading in names:
            if heading in columns:
                raise DataError(f"{spot}: two values for one cell, the column {heading!r} is there twice")
            columns[heading] = spot
    return columns


def _cell(
    name: str, entry: TableEntry, place: tuple[str, str], quantity: Quantity, number: PrintedNumber
) -> PublishedCell:
    row, column = place
    label = column if entry.rows_are == "quantities" else row
    keys = (f"{row} | {column}", row, column)
    return PublishedCell(
        table=name,
        row=row,
        column=column,
        label=label,
        quantity=quantity,
        value=number.value,
        decimals=number.decimals,
        unit=next((entry.units[key] for key in keys if key in entry.units), entry.unit),
        status=next((entry.statuses[key] for key in keys if key in entry.statuses), entry.status),
        protocol=entry.protocol,
        note="; ".join(entry.notes[key] for key in keys if key in entry.notes),
        system=entry.systems.get(label),
    )


def _check_names(entry: TableEntry, cells: tuple[PublishedCell, ...], where: str) -> None:
    """Every key of `units`, `statuses`, `notes` and `systems` is that of a cell."""
    places = {key for cell in cells for key in (cell.row, cell.column, f"{cell.row} | {cell.column}")}
    labels = {cell.label for cell in cells}
    for field, keys, known in (
        *((field, getattr(entry, field), places) for field in ("units", "statuses", "notes")),
        ("systems", entry.systems, labels),
    ):
        for key in keys:
            if key not in known:
                raise DataError(f"{where}: {field} has {key!r}, which is no cell's{suggestion(key, sorted(known))}")


def _check_systems(entry: TableEntry, where: str) -> None:
    """Every system is an encoder of this project and one of its published checkpoints."""
    for label, system in entry.systems.items():
        if system.encoder not in CARDS:
            raise DataError(f"{where}: {label}: {UnknownName('encoder', system.encoder, CARDS)}")
        known = CARDS[system.encoder].checkpoints
        if system.checkpoint and system.checkpoint not in known:
            raise DataError(f"{where}: {label}: {UnknownName('checkpoint', system.checkpoint, known)}")


def _quantity(text: str, spot: Spot) -> Quantity:
    try:
        return parse_quantity(text)
    except UsageError as error:
        raise DataError(f"{spot}: {error}") from None
