"""Parquet files in batches: every way in which a file can be damaged or foreign is one error that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.ground.errors import DataError, LexvlError

ROWS = 4096
# Characters of a message of Arrow, which may have several lines.
SHOWN = 200


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

    Args:
        columns: names, and whether a type is one that the caller reads.
        optional: names of columns of any type.
        failure: what is raised.

    Raises:
        LexvlError: the file cannot be read, is damaged, or lacks a column of a fitting type.
    """
    from pyarrow import parquet

    with parquet_errors(path, failure), parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        if missing := [name for name in columns if schema.names.count(name) != 1]:
            names = ", ".join(schema.names) or "none"
            raise failure.error(f"{path}: no column {' and '.join(missing)}; columns there: {names}; {failure.remedy}")
        for name, fits in columns.items():
            if not fits(schema.field(name).type):
                raise failure.error(f"{path}: column {name} holds {schema.field(name).type}; {failure.remedy}")
        there = [name for name in optional if schema.names.count(name) == 1]
        for batch in file.iter_batches(batch_size=ROWS, columns=[*columns, *there]):
            batch.validate(full=True)
            yield batch


@contextmanager
def parquet_errors(path: Path, failure: Failure) -> Iterator[None]:
    """Turns what Arrow raises for damaged files into an error of one line.

    Arrow raises its own exceptions, but also the system's for what it cannot decompress or deserialise.
    """
    import pyarrow as pa

    try:
        yield
    except LexvlError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as problem:
        reason = " ".join(str(problem).split())[:SHOWN] or type(problem).__name__
        raise failure.error(f"{path}: not readable as parquet ({reason}); {failure.remedy}") from problem


def is_text(kind: Any) -> bool:
    """Whether a type of Arrow is text, as such or by numbers of a dictionary."""
    from pyarrow import types

    plain = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(plain) or types.is_large_string(plain))


def is_list_of(kind: Any, numbers: Callable[[Any], bool]) -> bool:
    """Whether a type of Arrow is a list of such numbers, of any length."""
    from pyarrow import types

    return bool((types.is_list(kind) or types.is_large_list(kind)) and numbers(kind.value_type))


def is_integers(kind: Any) -> bool:
    """Whether a type of Arrow is a list of integers."""
    from pyarrow import types

    return is_list_of(kind, types.is_integer)


def is_numbers(kind: Any) -> bool:
    """Whether a type of Arrow is a list of numbers."""
    from pyarrow import types

    return is_list_of(kind, lambda numbers: types.is_floating(numbers) or types.is_integer(numbers))
