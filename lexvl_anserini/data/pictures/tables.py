"""Pictures inside Parquet tables, as the hub keeps data sets: `table.parquet::17` is the picture of row 17, from 0."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from lexvl_anserini.data.entries import FileState, state_of
from lexvl_anserini.data.parquet import Failure, parquet_errors
from lexvl_anserini.ground.errors import DataError

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Schema
    from pyarrow.parquet import ParquetFile

# Row groups held at once, over all tables: readers of neighbouring rows take turns at the border of two.
GROUPS_HELD = 2

DAMAGED = Failure(remedy="no Parquet table, or a damaged one; fetch it again")

_LOCK = Lock()


def schema_of(path: Path) -> Schema:
    """The columns of a table.

    Raises:
        DataError: it cannot be read, or is no Parquet.
    """
    with _opened(path) as file:
        return file.schema_arrow


@contextmanager
def _opened(path: Path) -> Iterator[ParquetFile]:
    from pyarrow.parquet import ParquetFile

    with parquet_errors(path, DAMAGED), ParquetFile(path) as file:
        yield file


def picture_column(schema: Schema) -> str | None:
    """The name of the column with pictures: bytes, or a struct with `bytes`, as the hub's image columns; else None."""
    from pyarrow import types

    def is_bytes(kind: Any) -> bool:
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    for field in schema:
        kind = field.type
        if types.is_struct(kind) and (place := kind.get_field_index("bytes")) >= 0:
            kind = kind.field(place).type
        if is_bytes(kind) and field.name.startswith("image"):
            return str(field.name)
    return None


def read_picture(path: Path, row: int) -> bytes:
    """The bytes of the picture in a row. Memory: the pictures of at most `GROUPS_HELD` row groups.

    Raises:
        DataError: no such table, row or picture, or a damaged table.
    """
    state = state_of(path)
    starts = _starts(path, state)
    if not 0 <= row < starts[-1]:
        raise DataError(f"{path}::{row}: no such row; the table has {starts[-1]:,}")
    group = bisect_right(starts, row) - 1
    with _LOCK:
        value = _pictures(path, state, group)[row - starts[group]].as_py()
    content = value.get("bytes") if isinstance(value, dict) else value
    if not content:
        raise DataError(f"{path}::{row}: no picture in this row")
    return bytes(content)


@lru_cache(maxsize=64)
def _starts(path: Path, state: FileState) -> Sequence[int]:
    """The first row of each group, and the number of rows."""
    with _opened(path) as file:
        groups = range(file.metadata.num_row_groups)
        return list(accumulate((file.metadata.row_group(group).num_rows for group in groups), initial=0))


@lru_cache(maxsize=GROUPS_HELD)
def _pictures(path: Path, state: FileState, group: int) -> ChunkedArray:
    with _opened(path) as file:
        column = picture_column(file.schema_arrow)
        if column is None:
            raise DataError(f"{path}: no column of pictures; it has {', '.join(file.schema_arrow.names)}")
        return file.read_row_group(group, columns=[column]).column(0)
