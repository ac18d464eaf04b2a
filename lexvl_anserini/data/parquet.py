"""Parquet files in batches: every way in which a file can be damaged or foreign is one error that names it.

Pictures inside Parquet tables, as the hub keeps data sets: `table.parquet::17` is the picture of row 17, from 0.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.data.lines import MOST_LINE, FileState, choose_files, read_file_state
from lexvl_anserini.ground.errors import DataError, LexvlError, refuse_pointer

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Schema
    from pyarrow.parquet import ParquetFile

ROWS = 4096
SHOWN = 200  # characters of a message of Arrow, which may have several lines


class Failure(NamedTuple):
    """How an unreadable file is reported: the class of the error, and what the user can do."""

    error: type[LexvlError] = DataError
    remedy: str = "fetch the file again"


def read_batches(
    path: Path,
    columns: Mapping[str, Callable[[Any], bool]],
    optional: Sequence[str] = (),
    failure: Failure = Failure(),  # noqa: B008  (it is immutable)
) -> Iterator[Any]:
    """Record batches of named columns, and of those optional columns that exist; their offsets and texts are valid.

    A name comes with a function that says whether the caller reads a type; optional columns are of any type.
    """
    with _open_table(path, failure) as file:
        schema = file.schema_arrow
        if missing := [name for name in columns if schema.names.count(name) != 1]:
            names = ", ".join(schema.names) or "none"
            raise failure.error(f"{path}: no column {' and '.join(missing)}; columns there: {names}; {failure.remedy}")
        for name, fits in columns.items():
            if not fits(schema.field(name).type):
                raise failure.error(f"{path}: column {name} holds {schema.field(name).type}; {failure.remedy}")
        there = [*columns, *(name for name in optional if schema.names.count(name) == 1)]
        texts = [name for name in there if is_text(schema.field(name).type)]
        with _open_table(path, failure, read_dictionary=texts) if texts else nullcontext(file) as packed:
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(_limit_rows(path, packed, group, texts, failure), [group], there):
                    batch.validate(full=True)
                    yield batch


def _limit_rows(path: Path, packed: ParquetFile, group: int, texts: list[str], failure: Failure) -> int:
    """How many rows of a group are decoded at once: some kB of a dictionary may stand for terabytes of texts."""
    from pyarrow import compute

    size = packed.metadata.row_group(group)
    width: int = size.total_byte_size // max(1, size.num_rows)
    first = next(packed.iter_batches(1, [group], texts), None) if texts else None  # comes with its whole dictionaries
    for column in first.columns if first else ():
        longest = compute.max(compute.binary_length(column.dictionary)).as_py() or 0
        if longest > MOST_LINE:
            raise failure.error(f"{path}: a text of {longest:,} bytes, expected at most {MOST_LINE:,}; shorten it")
        width += longest
    return max(1, min(ROWS, MOST_LINE // max(1, width)))


@contextmanager
def raise_parquet_errors(path: Path, failure: Failure) -> Iterator[None]:
    """Turns what Arrow raises for damaged files, its own exceptions and the system's, into an error of one line."""
    import pyarrow as pa

    try:
        yield
    except LexvlError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as problem:
        refuse_pointer(path, error=failure.error)
        reason = " ".join(str(problem).split())[:SHOWN] or type(problem).__name__
        raise failure.error(f"{path}: not readable as parquet ({reason}); {failure.remedy}") from problem


def is_text(kind: Any) -> bool:
    """Whether a type of Arrow is text, as such or by numbers of a dictionary."""
    from pyarrow import types

    plain = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(plain) or types.is_large_string(plain))


def is_integers(kind: Any, floats: bool = False) -> bool:
    """Whether a type of Arrow is a list of integers, or of numbers with floats, of any length."""
    from pyarrow import types

    item = kind.value_type if types.is_list(kind) or types.is_large_list(kind) else None
    return item is not None and bool(types.is_integer(item) or (floats and types.is_floating(item)))


is_numbers: Callable[[Any], bool] = partial(is_integers, floats=True)


# Row groups held at once, over all tables: readers of neighbouring rows take turns at the border of two.
GROUPS_HELD = 2
GROUP_BYTES = 1 << 31  # of a row group, as its table says

DAMAGED = Failure(remedy="no Parquet table, or a damaged one; fetch it again")
_LOCK = Lock()


def read_schema(path: Path) -> Schema:
    """The columns of a table."""
    with _open_table(path) as file:
        return file.schema_arrow


# A table of the hub has parts: `test-00000-of-00002.parquet`.
PART = re.compile(r"(?P<name>.+)-\d+-of-(?P<parts>\d+)(-[0-9a-f]+)?")


def group_tables(folder: Path) -> dict[str, list[Path]]:
    """The Parquet tables of a folder by their names, each with all of its parts."""
    tables, whole = defaultdict[str, list[Path]](list), dict[str, int]()
    for path in [*choose_files(folder, ".parquet"), *choose_files(folder, ".parquet", "*/[0-9]*")]:
        part = PART.fullmatch(path.stem)
        # In the branch that the hub converts by itself, a table is a folder: `test/0000.parquet`.
        name = path.parent.name if path.parent != folder else part["name"] if part else path.stem
        tables[name].append(path)
        whole[name] = int(part["parts"]) if part else len(tables[name])
    if cut := next((name for name, parts in tables.items() if len(parts) != whole[name]), None):
        raise DataError(f"{folder}: {len(tables[cut])} of the {whole[cut]} parts of {cut!r}; fetch the folder again")
    return tables


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Some columns of each row, of any types but lists and structs; pictures are not decoded."""
    for batch in read_batches(path, dict.fromkeys(columns, lambda kind: not kind.num_fields), failure=DAMAGED):
        yield from batch.to_pylist()


def list_plain_columns(schema: Schema) -> list[str]:
    """The names of the columns of numbers and words."""
    from pyarrow import types

    kinds = (types.is_integer, types.is_floating, types.is_boolean, is_text)
    return [field.name for field in schema if any(kind(field.type) for kind in kinds)]


@contextmanager
def _open_table(path: Path, failure: Failure = DAMAGED, **options: Any) -> Iterator[ParquetFile]:
    from pyarrow.parquet import ParquetFile

    with raise_parquet_errors(path, failure), ParquetFile(path, **options) as file:
        yield file


def find_picture_column(schema: Schema) -> str | None:
    """The name of the column with pictures: bytes, or a struct with `bytes`, as the hub's image columns; else None."""
    from pyarrow import types

    for field in schema:
        kind = field.type
        if types.is_struct(kind) and (place := kind.get_field_index("bytes")) >= 0:
            kind = kind.field(place).type
        if (types.is_binary(kind) or types.is_large_binary(kind)) and field.name.startswith("image"):
            return str(field.name)
    return None


def read_picture(path: Path, row: int) -> bytes:
    """The bytes of the picture in a row. Memory: the pictures of at most `GROUPS_HELD` row groups."""
    state = read_file_state(path)
    starts = _list_starts(path, state)
    if not 0 <= row < starts[-1]:
        raise DataError(f"{path}::{row}: no such row; the table has {starts[-1]:,}")
    group = bisect_right(starts, row) - 1
    with _LOCK:
        value = _read_pictures(path, state, group)[row - starts[group]].as_py()
    content = value.get("bytes") if isinstance(value, dict) else value
    if not content:
        raise DataError(f"{path}::{row}: no picture in this row")
    return bytes(content)


@lru_cache(maxsize=64)
def _list_starts(path: Path, state: FileState) -> Sequence[int]:
    with _open_table(path) as file:
        groups = range(file.metadata.num_row_groups)
        return list(accumulate((file.metadata.row_group(group).num_rows for group in groups), initial=0))


@lru_cache(maxsize=GROUPS_HELD)
def _read_pictures(path: Path, state: FileState, group: int) -> ChunkedArray:
    schema = read_schema(path)
    column = find_picture_column(schema)
    if column is None:
        raise DataError(f"{path}: no column of pictures; it has {', '.join(schema.names)}")
    # Equal pictures are held once: a few kB of a dictionary may stand for gigabytes.
    leaf = f"{column}.bytes" if schema.field(column).type.num_fields else column
    with _open_table(path, read_dictionary=[leaf]) as file:
        if (size := file.metadata.row_group(group).total_byte_size) > GROUP_BYTES:
            remedy = f"expected at most {GROUP_BYTES:,}; write the table with smaller row groups"
            raise DataError(f"{path}: row group {group} has {size:,} bytes, {remedy}")
        return file.read_row_group(group, columns=[column]).column(0)
