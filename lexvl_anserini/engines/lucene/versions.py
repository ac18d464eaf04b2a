"""Lucene's files, read without Java: which Lucene wrote an index, and what follows from that; and which documents of a
segment are deleted.

Lucene opens indexes of its own major version and of the one before; it changes them too, but never joins two that
different major versions created.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from lexvl_anserini.engines.jvm import LUCENE_LINES, find_jar, read_lucene_version
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.machine import find_lucene, find_version

# The start of `segments_N`, the file of a commit, as Lucene's SegmentInfos and CodecUtil document it: magic number,
# codec name; then int32 version and 16 bytes of an id; a suffix; and numbers of 7 bits a byte.
MAGIC = bytes.fromhex("3fd76c17")
CODEC = b"segments"
COMMIT_NAME = re.compile(r"segments_[0-9a-z]+")
VERSION_BYTES = 4
ID_BYTES = 16

# The end of a file of Lucene, as its CodecUtil documents it: magic number, algorithm 0, CRC-32 of all bytes before it.
FOOTER = bytes.fromhex("c02893e8") + bytes(4)
FOOTER_BYTES = 16
CHECKSUM_BYTES = 8

# A file that marks deleted documents: its name, and its codec. Between header and footer it has a bit for each
# document, the lowest of a byte first, in whole 8 bytes; 1 for those that are not deleted.
LIVE_NAME = re.compile(r"_[0-9a-z]+_[0-9a-z]+\.liv")
LIVE_CODEC = b"Lucene90LiveDocs"

# The major version of Lucene in Pyserini's jar, by the major version of Pyserini; others have the newest line.
LINE_OF_PYSERINI = {"1": 9}


class IndexVersion(NamedTuple):
    """The version of Lucene that last wrote an index, and the major one that created it."""

    written: tuple[int, int, int]
    created: int


def read_version(index: Path) -> IndexVersion | None:
    """The versions that an index's last commit names; None if the folder holds no commit that has them."""
    data = _last_commit(index)
    if data is None:
        return None
    at = len(MAGIC) + 1 + len(CODEC) + VERSION_BYTES + ID_BYTES
    numbers = list(islice(_numbers(data[at + 1 + data[at] :]), 4))
    return IndexVersion((numbers[0], numbers[1], numbers[2]), numbers[3]) if len(numbers) == 4 else None


def read_commit_id(index: Path) -> str | None:
    """The id (hex) of an index's last commit, which Lucene draws at random; None if the folder holds no commit.

    A commit names its segments by their ids, and each segment's files carry its id: another index has another one.
    """
    data = _last_commit(index)
    start = len(MAGIC) + 1 + len(CODEC) + VERSION_BYTES
    return None if data is None else data[start : start + ID_BYTES].hex()


def read_live(file: BinaryIO, documents: int) -> np.ndarray | None:
    """Which documents of a segment are not deleted, uint8 [documents]; None for a file of another form."""
    file.seek(0)
    data, size = file.read(), -(-documents // 64) * 8
    head = MAGIC + struct.pack("B", len(LIVE_CODEC)) + LIVE_CODEC
    least = len(head) + VERSION_BYTES + ID_BYTES + 1
    if not data.startswith(head) or len(data) < least or len(data) != least + data[least - 1] + size + FOOTER_BYTES:
        return None
    bits = np.frombuffer(data, np.uint8, size, len(data) - FOOTER_BYTES - size)
    return np.unpackbits(bits, count=documents, bitorder="little")


def format_version(version: Iterable[int]) -> str:
    """`(9, 9, 1)` as `9.9.1`."""
    return ".".join(map(str, version))


def refuse_newer_line(index: Path) -> None:
    """Refuses, without Java, an index of a later major version of Lucene than Pyserini's jar has.

    Some indexes of a later minor version can be read; `refuse_newer` refuses the others when Java opens them.
    """
    version = read_version(index)
    if version is None or version.written[0] <= min(LUCENE_LINES):
        return
    # The table saves reading the directory of the jar, which takes seconds, for an index that fits.
    if version.written[0] <= LINE_OF_PYSERINI.get(
        (find_version("pyserini") or "").partition(".")[0], max(LUCENE_LINES)
    ):
        return
    running = find_lucene(find_jar())
    if running is not None and version.written[0] > int(running.partition(".")[0]):
        raise _too_new(index, version, running)


@contextmanager
def refuse_newer(index: Path) -> Iterator[None]:
    """Explains why an index cannot be opened if a newer Lucene wrote it."""
    from jnius import JavaException

    try:
        yield
    except JavaException as problem:
        version = read_version(index)
        if version is None or version.written <= read_lucene_version():
            raise
        raise _too_new(index, version, format_version(read_lucene_version())) from problem


def read_creator(indexes: Iterable[Path]) -> int:
    """The major version that created all these indexes; that of this process if there is none."""
    first: dict[int, Path] = {}
    for index in indexes:
        if version := read_version(index):
            if version.created > read_lucene_version()[0]:
                raise _too_new(index, version, format_version(read_lucene_version()))
            first.setdefault(version.created, index)
    if len(first) > 1:
        places = " and ".join(f"{path} by Lucene {major}" for major, path in sorted(first.items()))
        raise ArtefactError(f"{places}: created by different versions, which Lucene does not join; use their shards")
    return next(iter(first), read_lucene_version()[0])


def _last_commit(index: Path) -> bytes | None:
    """The content of the last `segments_N`; None if there is none with a whole header."""
    commits = [path for path in index.glob("segments_*") if COMMIT_NAME.fullmatch(path.name) and path.is_file()]
    if not commits:
        return None
    data = max(commits, key=lambda path: int(path.name.removeprefix("segments_"), 36)).read_bytes()
    start = MAGIC + struct.pack("B", len(CODEC)) + CODEC
    whole = data.startswith(start) and len(data) > len(start) + VERSION_BYTES + ID_BYTES
    return data if whole else None


def _too_new(index: Path, version: IndexVersion, running: str) -> ArtefactError:
    return ArtefactError(
        f"{index}: written by Lucene {format_version(version.written)}, which Lucene {running} of this "
        "Pyserini cannot read; use a Pyserini as new as the one that wrote it, or build the index again here"
    )


def _numbers(data: bytes) -> Iterator[int]:
    """Lucene's variable-length integers: 7 bits a byte, the lowest first; a set top bit: more follow."""
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
