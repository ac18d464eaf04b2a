"""Lines of a text file with their numbers: plain, gzip or Zstandard, UTF-8, one at a time; lists of words.

Also the state of a file, by which a change is seen, and what a corpus leaves out, which is logged in a line a reason.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import stat
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from lexvl_anserini.ground.errors import DataError, refuse_pointer
from lexvl_anserini.ground.files import BOM, decode_utf8, parse_json

PACKED = (".gz", ".zst")  # suffixes of compressed files
MOST_LINE = 1 << 28  # bytes of a line of a compressed file
MOST_UNPACKED = 50  # a packed file may unpack to at most this many times its size
DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)  # what reading a damaged gzip file raises
# Names of columns of which headers consist: of topics, passages and tables of them.
HEADER = frozenset(
    ("id", "qid", "pid", "docid", "query-id", "topic-id", "doc-id", "passage-id", "corpus-id", "topic", "query")
    + ("question", "text", "title", "passage", "document", "contents", "positive", "negative")
)


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
    return name[: -len(Path(name).suffix)] if Path(name).suffix.lower() in PACKED else name


def open_packed(path: Path) -> BinaryIO:
    """Opens a plain, gzip or Zstandard file; reading a damaged one raises one of `DAMAGED_GZIP`, or OSError."""
    packing = path.suffix.lower()
    refuse_pointer(path, plain=packing not in PACKED)
    if packing == ".gz":
        return _UnpackedReader(cast(io.RawIOBase, gzip.open(path, "rb")), path)
    if packing == ".zst":
        from pyarrow import input_stream

        return _UnpackedReader(input_stream(str(path), compression="zstd"), path)
    return open(path, "rb")


def read_packed(path: Path) -> bytes:
    """A whole plain, gzip or Zstandard file, which unpacks to at most `MOST_UNPACKED` times its size."""
    most = max(MOST_LINE, MOST_UNPACKED * path.stat().st_size) if path.is_file() else MOST_LINE
    try:
        with open_packed(path) as source:
            content = source.read(most + 1)
    except (OSError, *DAMAGED_GZIP) as problem:
        raise describe_unreadable(path, problem) from problem
    if len(content) > most:
        raise DataError(f"{path}: unpacks to more than {most:,} bytes; unpack it")
    return content


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
    """Lines that are not blank, numbered from 1; a byte order mark and carriage returns at ends are dropped.

    Only a line feed ends a line, or carriage returns alone in a file without any: U+2028 is part of a text.
    """
    for _, line in read_placed_lines(path):
        yield line


def _split_lines(source: BinaryIO, path: Path, before: bytes = b"\r") -> Iterator[bytes]:
    """The lines with their ends; `before` is the byte before them."""
    first = source.readline()
    if before == b"\r" and b"\r" in first.rstrip(b"\r") and not first.endswith(b"\n"):
        log_once(f"{path}: carriage returns alone end its lines")
        yield from first.splitlines(keepends=True)
    else:
        yield first
        yield from source


def _trim(path: Path, number: int, data: bytes) -> Line | None:
    """A line without mark and end, None for a blank one; refuses columns after a carriage return inside it."""
    line = Line(path, number, (data.removeprefix(BOM) if number == 1 else data).rstrip(b"\r\n"))
    if b"\t" in line.data.partition(b"\r")[2]:
        raise DataError(f"{line.where}: a carriage return before a tab, expected a line feed; convert: tr '\\r' '\\n'")
    return line if line.data.strip() else None


def read_entries(path: Path, what: str) -> dict[int, str]:
    """The entries of a list, one a line, by the numbers of their lines; blank lines are none."""
    if not (entries := {line.number: decode(line) for line in read_lines(path)}):
        raise DataError(f"{path}: no {what} in it; expected one a line")
    return entries


def is_header(line: Line, columns: Sequence[str], expected: Sequence[str] = ()) -> bool:
    """Whether a file's first line names columns, the expected ones or any; a line is logged if it does."""
    names = [name.strip().lower().replace("_", "-").strip("-") for name in columns]
    header = line.number == 1 and (names == [*expected] if expected else HEADER.issuperset(names))
    if header:
        log_once(f"{line.where}: skipped, a header ({', '.join(map(printable, columns))})")
    return header


def describe_unreadable(path: Path | str, problem: Exception) -> DataError:
    """The error about a file that the system cannot read."""
    return DataError(f"{path}: cannot be read ({getattr(problem, 'strerror', None) or problem})")


def read_placed_lines(path: Path, place: LinePlace = LinePlace()) -> Iterator[tuple[LinePlace, Line]]:
    """The lines as `read_lines`, each with its place; of a plain file, from a place on."""
    number, offset = place
    try:
        with open_packed(path) as source:
            if offset:
                source.seek(offset - 1)
            before = source.read(1) if offset else b"\r"
            for data in _split_lines(source, path, before):
                here = LinePlace(number, offset)
                number, offset = number + 1, offset + len(data)
                if line := _trim(path, number, data):
                    yield here, line
    except DAMAGED_GZIP as problem:
        advice = "fetch or compress it again"
        raise DataError(f"{path} after line {number}: damaged gzip file ({problem}); {advice}") from problem
    except (OSError, ValueError) as problem:  # a ValueError for a name that no file system takes
        raise describe_unreadable(path, problem) from problem


def decode(line: Line) -> str:
    """The line as text."""
    return decode_utf8(line.data, line.where)


def parse_object(line: Line) -> dict[str, Any]:
    """The line as one JSON object, see `parse_json`; `mend` is on, because tools cut texts."""
    record = parse_json(line.data, line.where, mend=True)
    if not isinstance(record, dict):
        form = '{"_id": ..., "text": ...}'
        raise DataError(f"{line.where}: a JSON {_describe_type(record)}, expected an object such as {form}")
    return record


def get_string(record: dict[str, Any], key: str, where: str) -> str | None:
    """A string of the record; None where the key is absent or null, as tables leave it."""
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where}: {key!r} is {_describe_type(value)}, expected a string (an empty one is allowed)")
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


# Suffixes of archives that are not read in place.
PACKED_ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst", ".zip")


def choose_files(folder: Path, suffix: str, pattern: str = "*", left_out: Sequence[str] = ()) -> list[Path]:
    """The files of a folder by a suffix in any case, sorted; hidden ones and `left_out` are counted and named."""
    files, others = [], LeftOut()
    for path in sorted(folder.glob(pattern)):
        name, ends = path.relative_to(folder).as_posix(), path.name.lower().endswith
        if not ends((suffix, *left_out)) or not path.is_file():
            continue
        if "/." in f"/{name}":
            others.add(HIDDEN, name)
        elif ends(suffix):
            files.append(path)
        else:
            others.add(f"no uncompressed {suffix[1:].upper()} (unpack it)", name)
    others.log(str(folder))
    return files


@cache
def log_once(message: str, level: int = logging.INFO) -> None:
    """Logs a message once, although a corpus is read several times."""
    log.log(level, "%s", message)


def some(names: Sequence[str], number: int = NAMED) -> str:
    """The first names, and how many others there are."""
    more = f" and {len(names) - number} more" if len(names) > number else ""
    return ", ".join(names[:number]) + more


def log_unknown(terms: Iterable[str], known: Collection[str], where: str) -> None:
    """Logs listed terms that are not in a vocabulary, and those of another case that are."""
    if strange := sorted(set(terms).difference(known)):
        near = sorted({term.lower() for term in strange}.intersection(known))
        hint = f"; did you mean {some(list(map(repr, near)))}?" if near else ""
        log_once(f"{where}: no terms of its vocabulary: {some(list(map(repr, strange)))}{hint}", logging.WARNING)


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
