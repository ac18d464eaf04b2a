"""Compares the files of an open index with their checksums, in a thread of its own while the index is searched.

Every file of Lucene ends with a checksum of its bytes, which Lucene compares when it merges, not when it searches. The
files of a small index are compared before its first answer; those of a large one beside the first searches, whose
command waits for the result before it calls them finished. What was compared is remembered outside the index until
the file system says that the file changed. `change_index` carries it over to the files that a change leaves.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from errno import EMFILE
from functools import partial
from hashlib import sha256
from io import FileIO
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from tempfile import TemporaryDirectory
from threading import Event, Thread
from types import MappingProxyType
from typing import BinaryIO

from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.engines.index_folder import CHECKSUM_BYTES, FOOTER, FOOTER_BYTES, LOCK, REPORT
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import PART, compute_sha256, new_folder
from lexvl_anserini.ground.manifest import MANIFEST

# Up to this size all checksums are compared before the first answer, which takes some tenths of a second at most.
VERIFIED_BYTES = 1 << 30

BLOCK_BYTES = 1 << 20  # what is read of a file at once; between two blocks a closed index stops the comparison

MOST_OPEN = 1 << 16  # where many indexes are open, the limit of open files goes so far up, as Java's does

# What the memory holds for a file whose checksum is right.
SOUND = sha256(b"the checksum at the end of the file is right").digest()


class HeldFiles:
    """The files in a folder as they are now: they stay these if another process replaces the folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        with ExitStack() as opening:
            # Whoever needs one that cannot be read says why.
            paths = [path for path in folder.iterdir() if path.is_file() and os.access(path, os.R_OK)]
            self._files = {path.name: opening.enter_context(_open_one_more(path)) for path in paths}
            self.close = opening.pop_all().close

    def find(self, name: str) -> str:
        """Returns a path to a file."""
        held = self._files.get(name)
        return str(self.folder / name) if held is None else f"/dev/fd/{held.fileno()}"

    def open(self, name: str) -> BinaryIO:
        """Opens a file once more, under its name."""
        place = self.find(name)
        return open(self.folder / name, "rb", opener=lambda _, flags: os.open(place, flags))

    @contextmanager
    def link(self) -> Iterator[Path]:
        """Yields a folder of links to the files, for a library that opens files by their names."""
        with TemporaryDirectory(prefix="lexvl-") as folder:
            for name in self._files:
                Path(folder, name).symlink_to(self.find(name))
            yield Path(folder)


def _open_one_more(path: Path) -> FileIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        if error.errno != EMFILE:
            raise
    soft, hard = getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (max(soft, min(hard, MOST_OPEN)), hard))
    return path.open("rb", buffering=0)


class Verification:
    """Compares files with the checksums at their ends; the comparison begins at once and is made once.

    `remedies` say what to do about a damaged file, by name, other than to build the index again.
    """

    def __init__(self, files: HeldFiles, names: Iterable[str], remedies: Mapping[str, str] = MappingProxyType({})):
        self._files, self._stopped, self._remedies = files, Event(), remedies
        self._problem = ""
        # Files with a remedy come first: what reads one waits for it alone.
        self._names = sorted(names, key=lambda name: (name not in remedies, name))
        self._compared = {name: Event() for name in remedies}
        try:
            self._small = sum(Path(files.find(name)).stat().st_size for name in self._names) <= VERIFIED_BYTES
        except OSError as error:
            raise ArtefactError(f"{files.folder}: a file of the index cannot be read ({error})") from error
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
                for path in map(self._files.folder.joinpath, self._names):
                    with self._files.open(path.name) as file:
                        compare = partial(compare_checksum, file, self._stopped)
                        sound = memory.once(path, file, compare) if memory else compare()
                    if sound is None and not self._stopped.is_set():
                        remedy = self._remedies.get(path.name, "build the index again")
                        self._problem = f"{path}: damaged, not the bytes that were written; {remedy}"
                        return
                    if path.name in self._compared:
                        self._compared[path.name].set()
        except Exception as error:  # an answer counts only if the files were compared, whatever prevents it
            self._problem = f"{self._files.folder}: its files cannot be compared with their checksums ({error})"
        finally:
            for event in self._compared.values():
                event.set()


@contextmanager
def change_index(index: Path) -> Iterator[Path]:
    """Yields `INDEX.lexvl.part` with all that the index has, to be changed; it replaces the index, or nothing changes.

    The files are links, not copies: an engine that never writes to a finished file, such as Lucene, may add and remove
    files. A process that has the older index open continues to read it. What users keep in the folder stays.
    """
    with _links_remembered(index), new_folder(index) as part:
        locks = shutil.ignore_patterns(LOCK, f"*{PART}")
        shutil.copytree(index, part, symlinks=True, copy_function=link_file, ignore=locks, dirs_exist_ok=True)
        for path in (part / REPORT, part / MANIFEST):
            if path.is_symlink():  # they are written, and not what they lead to
                path.unlink()
                shutil.copyfile(index / path.name, path)
        yield part


def link_file(file: str, name: str) -> None:
    """Gives a file a second name; where the file system has no links, a copy has it."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copyfile(file, name)


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
