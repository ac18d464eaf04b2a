"""Lists that people write: tables of a few named columns, one row a line, as `.csv` or `.tsv`."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from lexvl_anserini.ground.errors import DataError

# Suffixes of lists, and what separates their columns.
LISTS = {".csv": ",", ".tsv": "\t"}


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Streams the rows of a list, each with its place for errors; a heading of these columns is skipped.

    Args:
        path: a file with a suffix of `LISTS`, in UTF-8.
        columns: their names.

    Raises:
        DataError: the file cannot be read, or a row has other columns or an empty one.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            for number, row in enumerate(csv.reader(lines, delimiter=LISTS[path.suffix.lower()]), start=1):
                cells = [cell.strip() for cell in row]
                if not row or (number == 1 and cells == list(columns)):
                    continue
                where = f"{path} line {number}"
                if len(cells) != len(columns):
                    raise DataError(f"{where}: {len(cells)} columns, expected {len(columns)} ({', '.join(columns)})")
                if "" in cells:
                    raise DataError(f"{where}: the {columns[cells.index('')]} is empty")
                yield where, cells
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"{path}: cannot be read ({problem})") from problem
