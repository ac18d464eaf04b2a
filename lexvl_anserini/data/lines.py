"""Lines of a text file with their numbers: plain, gzip or Zstandard, UTF-8, one at a time; lists of words.

Also the state of a file, by which a change is seen, and what a corpus leaves out, which is logged in a line a reason.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import re
import stat
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import orjson

from lexvl_anserini.ground.errors import DataError

BOM = b"\xef\xbb\xbf"
REPLACEMENT = "\ufffd"
PACKED = (".gz", ".zst")  # suffixes of compressed files
MOST_LINE = 1 << 28  # bytes of a line of a compressed file
DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)  # what reading a damaged gzip file raises
_SURROGATE = re.compile("[\ud800-\udfff]")


class LinePlace(NamedTuple):
    """Where a line begins in a plain file: the number of lines before it, and of bytes."""

    lines: int = 0
    bytes: int = 0


class Line(NamedTuple):
    """One line without its end; an error about the line begins with `where`."""

    path: Path
    number: int
    data: bytes

    @property
    def where(self) -> str:
        """`PATH line N`."""
        return f"{self.path} line {self.number}"


def get_plain_suffix(path: Path) -> str:
    """The suffix of the format: `.jsonl` of `queries.jsonl.gz`."""
    return Path(remove_packing(path.name)).suffix.lower()


def remove_packing(name: str) -> str:
    """The name of a file without the suffix of its compression."""
    return name.removesuffix(".gz").removesuffix(".zst")


def open_packed(path: Path) -> BinaryIO:
    """Opens a plain, gzip or Zstandard file; reading a damaged one raises one of `DAMAGED_GZIP`, or OSError."""
    if path.suffix == ".gz":
        return _UnpackedReader(cast(io.RawIOBase, gzip.open(path, "rb")), path)
    if path.suffix == ".zst":
        from pyarrow import input_stream

        return _UnpackedReader(input_stream(str(path), compression="zstd"), path)
    return open(path, "rb")


class _UnpackedReader(io.BufferedReader):
    """Unpacked bytes; a line of more than `MOST_LINE` is refused, because some kB may unpack to gigabytes of one."""

    def __init__(self, source: io.RawIOBase, path: Path):
        super().__init__(source, 1 << 16)
        self._path = path

    def readline(self, size: int | None = -1) -> bytes:
        """A line, also of each step over the reader."""
        line = super().readline(MOST_LINE + 1 if size is None or size < 0 else size)
        if len(line) > MOST_LINE:
            raise DataError(f"{self._path}: unpacks to a line of more than {MOST_LINE:,} bytes; expected shorter ones")
        return line


def read_lines(path: Path) -> Iterator[Line]:
    """Lines that are not blank, numbered from 1; a byte order mark and carriage returns are dropped.

    Only a line feed ends a line: U+2028 and similar characters are part of texts.
    """
    number = 0
    try:
        with open_packed(path) as source:
            for number, data in enumerate(source, start=1):
                if number == 1:
                    data = data.removeprefix(BOM)
                data = data.rstrip(b"\r\n")
                if data.strip():
                    yield Line(path, number, data)
    except DAMAGED_GZIP as problem:
        raise DataError(
            f"{path} after line {number}: damaged gzip file ({problem}); fetch or compress it again"
        ) from problem
    except OSError as problem:
        raise describe_unreadable(path, problem) from problem


def describe_unreadable(path: Path | str, problem: Exception) -> DataError:
    """The error about a file that the system cannot read."""
    return DataError(f"{path}: cannot be read ({getattr(problem, 'strerror', None) or problem})")


def read_placed_lines(path: Path, place: LinePlace = LinePlace()) -> Iterator[tuple[LinePlace, Line]]:
    """The lines of a plain file from a place on, as `read_lines`, each with its place."""
    number, offset = place
    try:
        with open(path, "rb") as source:
            source.seek(offset)
            for data in source:
                here = LinePlace(number, offset)
                number, offset = number + 1, offset + len(data)
                data = (data if here.bytes else data.removeprefix(BOM)).rstrip(b"\r\n")
                if data.strip():
                    yield here, Line(path, number, data)
    except OSError as problem:
        raise describe_unreadable(path, problem) from problem


def decode(line: Line) -> str:
    """The line as text."""
    try:
        return line.data.decode("utf-8")
    except UnicodeDecodeError as problem:
        byte = line.data[problem.start]
        raise DataError(
            f"{line.where}: not valid UTF-8 (0x{byte:02x} at byte {problem.start + 1} of the line); convert the file"
        ) from problem


def parse_object(line: Line) -> dict[str, Any]:
    r"""The line as one JSON object.

    A lone surrogate (`"\ud83d"`, left by tools that cut texts by UTF-16 units) becomes U+FFFD, which a tokenizer, an
    index and a UTF-8 file can hold.
    """
    try:
        record = orjson.loads(line.data)
    except orjson.JSONDecodeError:
        # orjson refuses lone surrogates; the standard library keeps them and has better messages about malformed JSON.
        try:
            # It also takes NaN, which is no JSON and which nothing can store.
            record = whole_characters(json.loads(decode(line), parse_constant=lambda name: None))
        except (ValueError, RecursionError) as problem:
            # After a semicolon, Python advises to lift its limit of digits.
            raise DataError(f"{line.where}: malformed JSON ({str(problem).partition(';')[0]})") from problem
    if not isinstance(record, dict):
        raise DataError(
            f'{line.where}: a JSON {_describe_type(record)}, expected an object such as {{"_id": ..., "text": ...}}'
        )
    return record


def get_string(record: dict[str, Any], key: str, where: str) -> str | None:
    """A string of the record; None where the key is absent."""
    if key not in record:
        return None
    value = record[key]
    if not isinstance(value, str):
        raise DataError(f"{where}: {key!r} is {_describe_type(value)}, expected a string (an empty one is allowed)")
    return value


def whole_characters(value: Any) -> Any:
    """A JSON value with U+FFFD for lone surrogates in its strings and keys."""
    if isinstance(value, str):
        return _SURROGATE.sub(REPLACEMENT, value)
    if isinstance(value, list):
        return [whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(item) for key, item in value.items()}
    return value


def _describe_type(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


log = logging.getLogger(__name__)

NAMED = 5  # names in a line
HIDDEN = "hidden"  # a reason that users expect: its line is for information, all others are warnings


class FileState(NamedTuple):
    """Size in bytes, times of the last change of content and of anything (in ns), inode; it is hashable."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    regular: bool = True

    @classmethod
    def read_status(cls, status: os.stat_result) -> FileState:
        """From what the system returns for a path or an open file."""
        regular = stat.S_ISREG(status.st_mode)
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, regular)

    @property
    def changed_ns(self) -> int:
        """The time of the last change; a restored time of the content does not hide it."""
        return max(self.mtime_ns, self.ctime_ns)


def read_file_state(path: Path) -> FileState:
    """The state of a file; links are followed."""
    try:
        status = path.stat()
    except (OSError, ValueError) as problem:  # a ValueError for a name with U+0000
        raise describe_unreadable(path, problem) from problem
    return FileState.read_status(status)


class LeftOut:
    """Entries of a folder or an archive that are no documents; memory: a count and `NAMED` names a reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._names: dict[str, list[str]] = defaultdict(list)

    def add(self, reason: str, name: str) -> None:
        """Counts an entry."""
        self._counts[reason] += 1
        if len(names := self._names[reason]) < NAMED:
            names.append(name)

    def log(self, where: str) -> None:
        """Logs a line for each reason; the same line only once, because a corpus is read several times."""
        for reason, count in self._counts.items():
            names = ", ".join(map(printable, self._names[reason])) + (", ..." if count > NAMED else "")
            level = logging.INFO if reason == HIDDEN else logging.WARNING
            log_once(f"{printable(where)}: skipped, {reason}: {count:,} ({names})", level)


@cache
def log_once(message: str, level: int = logging.INFO) -> None:
    """Logs a message once, although a corpus is read several times."""
    log.log(level, "%s", message)


def some(names: Sequence[str], number: int = NAMED) -> str:
    """The first names, and how many others there are."""
    more = f" and {len(names) - number} more" if len(names) > number else ""
    return ", ".join(names[:number]) + more


def printable(name: str) -> str:
    """A name that fits on a line: characters that cannot be printed are escaped."""
    return name if name.isprintable() else repr(name)[1:-1]


FUNCTION_WORDS = Path(__file__).parents[1] / "assets" / "words" / "function-words.txt"


def load_function_words() -> frozenset[str]:
    """Words that name nothing in an image: articles, pronouns, prepositions and so on."""
    return read_words(FUNCTION_WORDS)


@cache
def read_words(path: Path) -> frozenset[str]:
    """The words of a list, in lower case; a line that begins with # is a comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
