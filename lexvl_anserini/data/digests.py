"""SHA-256 of pictures, members of archives and tables of embeddings, remembered between commands.

The memory is one SQLite file outside every artefact. A digest is found again by the place of the bytes and by all that
the file system says about their file: size, times, inode. A file that changed within the last two seconds is not
remembered, because another change could leave its time as it is (git calls this racy). The memory may be missing,
damaged, locked or read-only, and may be deleted at any time: then the bytes are read again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from hashlib import blake2b, file_digest, sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lexvl_anserini.data.corpora.embeddings import REFERENCE
from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.data.entries import FileState, state_of
from lexvl_anserini.data.pictures.archives import MEMBER, open_archive
from lexvl_anserini.ground.errors import DataError

MEMORY = "digests.sqlite3"

# A file that changed less than this time ago can change again without a trace in its times.
RACY_NS = 2 * 10**9
# New digests that wait to be written together.
WAITING = 1000
# Seconds to wait for another process that is writing.
PATIENCE_S = 1.0

SHA256_BYTES = 32
_CHECK_BYTES = 8


class FileDigests:
    """The digests of references, with a memory; a context that writes what is new to the memory when it ends.

    read_bytes  how many bytes were read so far
    """

    def __init__(self, memory: Path | None = None):
        self.read_bytes = 0
        self._path = memory or data_root(None) / MEMORY
        self._memory: sqlite3.Connection | None = None
        self._opened = False
        self._new: dict[bytes, bytes] = {}
        # The last file of several references: a table of embeddings.
        self._last: tuple[bytes, bytes] = (b"", b"")

    def __enter__(self) -> FileDigests:
        return self

    def __exit__(self, *problem: object) -> None:
        self._write()
        self._close()

    def of(self, reference: str) -> str | None:
        """SHA-256 (hex) of the bytes of a picture (a path or `archive.tar::member`) or of the table of an embedding.

        None if they cannot be read.
        """
        try:
            source = _source(reference)
            digest = self._digest(source, lambda: state_of(source.path), lambda: self._read(source))
        except (OSError, RuntimeError, DataError):  # a RuntimeError for the home of an unknown user
            return None
        return None if digest is None else digest.hex()

    def once(self, path: Path, file: BinaryIO, compute: Callable[[], bytes | None]) -> bytes | None:
        """What `compute` returns for an open file (32 bytes), remembered for the state of the file; None is not."""
        source = _Source(path, place=(-1, -1))  # of no member of an archive
        return self._digest(source, lambda: FileState.of(os.fstat(file.fileno())), compute)

    def _digest(
        self, source: _Source, state_now: Callable[[], FileState], compute: Callable[[], bytes | None]
    ) -> bytes | None:
        state = state_now()
        key = _key(source, state)
        digest = self._last[1] if key == self._last[0] else self._remembered(key)
        if digest is None and state.regular:
            now = time.time_ns()
            digest = compute()
            if digest is not None and now - state.changed_ns > RACY_NS and state_now() == state:
                self._new[key] = digest + _check(key, digest)
        if len(self._new) >= WAITING:
            self._write()
        if digest is not None:
            self._last = (key, digest)
        return digest

    def _read(self, source: _Source) -> bytes:
        if source.member:
            data = open_archive(source.path).read(source.member)
            self.read_bytes += len(data)
            return sha256(data).digest()
        with open(source.path, "rb") as file:
            digest = file_digest(file, "sha256").digest()
            self.read_bytes += file.tell()
        return digest

    # --- the memory ---

    def _remembered(self, key: bytes) -> bytes | None:
        value = self._new.get(key) or self._stored(key)
        if not isinstance(value, bytes):
            return None
        digest, check = value[:SHA256_BYTES], value[SHA256_BYTES:]
        return digest if check == _check(key, digest) else None

    def _stored(self, key: bytes) -> Any:
        self._open()
        if self._memory is None:
            return None
        try:
            row = self._memory.execute("SELECT digest FROM digests WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as problem:
            self._give_up(problem)
            return None
        return row and row[0]

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._memory = sqlite3.connect(self._path, timeout=PATIENCE_S)
            self._memory.execute("PRAGMA synchronous = OFF")
            self._memory.execute(
                "CREATE TABLE IF NOT EXISTS digests (key BLOB PRIMARY KEY, digest BLOB NOT NULL) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as problem:
            self._give_up(problem)

    def _write(self) -> None:
        if self._memory is None:
            return
        try:
            with self._memory:
                self._memory.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?)", self._new.items())
            self._new = {}
        except sqlite3.Error as problem:
            self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        """Goes on without the memory, and removes it if it is no memory (any more)."""
        self._close()
        if isinstance(problem, sqlite3.DatabaseError) and not isinstance(problem, sqlite3.OperationalError):
            try:
                self._path.unlink(missing_ok=True)
            except OSError:
                return

    def _close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None


class _Source(NamedTuple):
    """Where the bytes of a reference are: a file, or a member of an archive and its place there."""

    path: Path
    member: str = ""
    place: tuple[int, int] = (0, 0)


def _source(reference: str) -> _Source:
    if match := MEMBER.fullmatch(reference):
        path = Path(match["archive"]).expanduser()
        return _Source(path, match["member"], open_archive(path).place(match["member"]))
    if match := REFERENCE.fullmatch(reference):
        return _Source(Path(match["table"]))
    return _Source(Path(reference).expanduser())


def _key(source: _Source, state: FileState) -> bytes:
    """16 bytes that differ if the place or the file differs."""
    where = os.fsencode(source.path.absolute()), *source.place
    return blake2b(repr((where, *state)).encode(), digest_size=16).digest()


def _check(key: bytes, digest: bytes) -> bytes:
    """Shows that a remembered digest is whole and belongs to the key."""
    return blake2b(key + digest, digest_size=_CHECK_BYTES).digest()
