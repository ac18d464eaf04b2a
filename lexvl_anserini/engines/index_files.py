"""The files of an index, read without Java: which Lucene wrote them, which documents are deleted, and their checksums.

Lucene opens indexes of its own major version and of the one before; it changes them too, but never joins two that
different major versions created.

Every file of Lucene ends with a checksum of its bytes, which Lucene compares when it merges, not when it searches. Here
a thread of its own compares them while the index is searched: those of a small index before its first answer, those of
a large one beside the first searches, whose command waits for the result before it calls them finished. What was
compared is remembered outside the index until the file system says that the file changed. `change_index` carries it
over to the files that a change leaves.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import numpy as np

from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.engines.jvm import LUCENE_LINES, find_jar, read_lucene_version
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import compute_sha256, new_folder
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


# Up to this size all checksums are compared before the first answer, which takes some tenths of a second at most.
VERIFIED_BYTES = 1 << 30

BLOCK_BYTES = 1 << 20  # what is read of a file at once; between two blocks a closed index stops the comparison

# What the memory holds for a file whose checksum is right.
SOUND = sha256(b"the checksum at the end of the file is right").digest()


class Verification:
    """Compares files with the checksums at their ends; the comparison begins at once and is made once.

    Args:
        names: of Lucene's files in the index, and of other files with such an end. Those of a large index are opened
            here, so that they stay those of this moment if another process replaces the index.
        remedies: what to do about a damaged file, by name, other than to build the index again.
    """

    def __init__(self, index: Path, names: Iterable[str], remedies: Mapping[str, str] = MappingProxyType({})):
        self._index, self._stopped, self._remedies = index, Event(), remedies
        self._problem = ""
        # Files with a remedy come first: what reads one waits for it alone.
        paths = [index / name for name in sorted(names, key=lambda name: (name not in remedies, name))]
        self._compared = {name: Event() for name in remedies}
        try:
            self._small = sum(path.stat().st_size for path in paths) <= VERIFIED_BYTES
            opened = ((path, path.open("rb")) for path in paths)
            self._files = opened if self._small else list(opened)
        except OSError as error:
            raise ArtefactError(f"{index}: a file of the index cannot be read ({error})") from error
        self._thread = Thread(target=self._compare, name="lexvl-verification", daemon=True)
        self._thread.start()
        if self._small:
            self.wait()

    def check(self) -> None:
        """Raises ArtefactError if a file is known to be damaged."""
        if self._problem:
            raise ArtefactError(self._problem)

    def wait(self) -> None:
        """Waits until all files are compared."""
        self._thread.join()
        self.check()

    def wait_for(self, name: str) -> None:
        """Waits until a file of `remedies` is compared."""
        self._compared[name].wait()
        self.check()

    def close(self) -> None:
        """Ends a comparison that still runs."""
        self._stopped.set()
        self._thread.join()

    def _compare(self) -> None:
        try:
            # A small index is compared each time: the memory would save less than it costs.
            with nullcontext() if self._small else FileDigests() as memory:
                for path, file in self._files:
                    with file:
                        compare = partial(compare_checksum, file, self._stopped)
                        sound = memory.once(path, file, compare) if memory else compare()
                    if sound is None and not self._stopped.is_set():
                        remedy = self._remedies.get(path.name, "build the index again")
                        self._problem = f"{path}: damaged, not the bytes that were written; {remedy}"
                        return
                    if path.name in self._compared:
                        self._compared[path.name].set()
        except Exception as error:  # an answer counts only if the files were compared, whatever prevents it
            self._problem = f"{self._index}: its files cannot be compared with their checksums ({error})"
        finally:
            for event in self._compared.values():
                event.set()


@contextmanager
def change_index(index: Path) -> Iterator[Path]:
    """Yields `INDEX.part` with the index's own files, to be changed; it replaces the index, or nothing changes.

    The files are links, not copies: an engine that never writes to a finished file, such as Lucene, may add and remove
    files. A process that has the older index open continues to read it.
    """
    with _links_remembered(index), new_folder(index) as part:
        for file in index.iterdir():
            if file.is_file() and not file.name.endswith((".lock", ".part")):
                try:
                    os.link(file, part / file.name)
                except OSError:  # a file system without links
                    shutil.copyfile(file, part / file.name)
        yield part


@contextmanager
def _links_remembered(index: Path) -> Iterator[None]:
    """Around a change of an index that links its files: a link is no reason to compare a large index's file again."""
    paths = [path for path in index.iterdir() if path.is_file()]
    if sum(path.stat().st_size for path in paths) <= VERIFIED_BYTES:
        yield
        return
    with FileDigests() as memory:
        compared = {path: known for path in paths if (known := memory.known(path))}
        try:
            yield
        finally:
            for path, known in compared.items():
                if path.is_file():
                    memory.keep(path, known)


class Reading:
    """Around reading files: where a damaged one makes that fail, the error is about the file."""

    def __init__(self, verifications: Sequence[Verification]):
        self.verifications = verifications

    def __enter__(self) -> Reading:
        self.check()
        return self

    def check(self) -> None:
        """Raises ArtefactError if a file is known to be damaged."""
        for verification in self.verifications:
            verification.check()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, UsageError):
            for verification in self.verifications:
                verification.wait()


def is_sound(path: Path) -> bool:
    """Returns True if a file has the checksum of its bytes at its end."""
    with path.open("rb") as file:
        return compare_checksum(file, Event()) is not None


def compare_checksum(file: BinaryIO, stopped: Event) -> bytes | None:
    """`SOUND`, or None if the file does not have the checksum at its end, or another thread stopped the comparison."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - FOOTER_BYTES))
    footer = file.read()
    if len(footer) != FOOTER_BYTES or not footer.startswith(FOOTER):
        return None
    file.seek(0)
    checksum, left = 0, size - CHECKSUM_BYTES
    while left and not stopped.is_set():
        block = file.read(min(left, BLOCK_BYTES))
        if not block:
            return None
        checksum, left = zlib.crc32(block, checksum), left - len(block)
    return SOUND if checksum == int.from_bytes(footer[-CHECKSUM_BYTES:], "big") else None


def compare_digests(index: Path, digests: Mapping[str, str]) -> None:
    """Compares files, which are read whole anyway, with their SHA-256 in index.json."""
    for name, digest in digests.items():
        try:
            actual = compute_sha256(index / name)
        except OSError as error:
            raise ArtefactError(f"{index / name}: cannot be read ({error.strerror or error}); index again") from error
        if actual != digest:
            raise ArtefactError(f"{index / name}: damaged, not the bytes that were written; index again")
