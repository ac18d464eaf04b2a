"""SHA-256 of pictures, members of archives and tables of embeddings, remembered between commands.

A digest is found again by the place of the bytes and by all that the file system says about their file: size, times,
inode. A file that changed within the last two seconds is not remembered, because another change could leave its time as
it is (git calls this racy).

The memory is one SQLite file outside every artefact. It may be missing, damaged, locked or read-only, and may be
deleted at any time: then everything is computed again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b, file_digest, sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lexvl_anserini.data.corpora.embeddings import REFERENCE
from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.data.lines import FileState, read_file_state
from lexvl_anserini.data.pictures.archives import MEMBER, find_page, open_archive
from lexvl_anserini.ground.errors import DataError

MEMORY = "digests.sqlite3"
RACY_NS = 2 * 10**9  # a file that changed less than this time ago can change again without a trace in its times
WAITING = 1000  # new digests that wait to be written together


class FileDigests:
    """The digests of references, with a memory; a context that writes what is new to the memory when it ends."""

    def __init__(self, memory: Path | None = None):
        self.read_bytes = 0
        self._memory = Memory(memory or data_root(None) / MEMORY, "digests", WAITING)
        # The last file of several references: a table of embeddings.
        self._last: tuple[bytes, bytes] = (b"", b"")

    def __enter__(self) -> FileDigests:
        return self

    def __exit__(self, *problem: object) -> None:
        self._memory.close()

    def of(self, reference: str) -> str | None:
        """SHA-256 (hex) of the bytes of a picture's file, a member or an embedding's table; None if unreadable."""
        try:
            source = _find_source(reference)
            digest = self._get_digest(source, lambda: read_file_state(source.path), lambda: self._read(source))
        except (OSError, DataError):
            return None
        return None if digest is None else digest.hex()

    def once(self, path: Path, file: BinaryIO, compute: Callable[[], bytes | None]) -> bytes | None:
        """What `compute` returns for an open file (32 bytes), remembered for the state of the file; None is not."""
        return self._get_digest(_place_file(path), lambda: FileState.read_status(os.fstat(file.fileno())), compute)

    def known(self, path: Path) -> Known | None:
        """What `once` remembers of a file as it is now; None if nothing."""
        state = read_file_state(path)
        digest = self._memory.get(_make_key(_place_file(path), state))
        return None if digest is None else Known(state, digest)

    def keep(self, path: Path, known: Known) -> None:
        """Remembers this of a file of which nothing changed since but the number of its links, which has a time."""
        state = read_file_state(path)
        if state._replace(ctime_ns=known.state.ctime_ns) == known.state:
            self._memory.put(_make_key(_place_file(path), state), known.digest)

    def _get_digest(
        self, source: _Source, state_now: Callable[[], FileState], compute: Callable[[], bytes | None]
    ) -> bytes | None:
        state = state_now()
        key = _make_key(source, state)
        digest = self._last[1] if key == self._last[0] else self._memory.get(key)
        if digest is None and state.regular:
            now = time.time_ns()
            digest = compute()
            if digest is not None and now - state.changed_ns > RACY_NS and state_now() == state:
                self._memory.put(key, digest)
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


class _Source(NamedTuple):
    """Where the bytes of a reference are: a file, or a member of an archive and its place there."""

    path: Path
    member: str = ""
    place: tuple[int, int] = (0, 0)


class Known(NamedTuple):
    """What is remembered of a file, 32 bytes, and the file's state."""

    state: FileState
    digest: bytes


def _place_file(path: Path) -> _Source:
    return _Source(path, place=(-1, -1))


def _find_source(reference: str) -> _Source:
    if match := REFERENCE.fullmatch(reference):
        return _Source(Path(match["table"]))
    if page := find_page(reference):
        return _find_source(page.file)
    if match := MEMBER.fullmatch(reference):
        path = Path(match["archive"])
        return _Source(path, match["member"], open_archive(path).place(match["member"]))
    return _Source(Path(reference))


def _make_key(source: _Source, state: FileState) -> bytes:
    """16 bytes that differ if the place or the file differs."""
    where = os.fsencode(source.path.absolute()), *source.place
    return blake2b(repr((where, *state)).encode(), digest_size=16).digest()


PATIENCE_S = 1.0  # seconds to wait for another process that is writing
_CHECK_BYTES = 8


class Memory:
    """Values (bytes) by keys (bytes), each with a check of both, written `waiting` at a time; for one thread."""

    def __init__(self, path: Path, table: str, waiting: int):
        self._path, self._table, self._waiting = path, table, waiting
        self._memory: sqlite3.Connection | None = None
        self._opened = False
        self._new: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None where it is not known."""
        value = self._new.get(key)
        with self._use() as memory:
            if value is None and memory is not None:
                row = memory.execute(f"SELECT * FROM {self._table} WHERE key = ?", (key,)).fetchone()
                value = row and row[1]
        if not isinstance(value, bytes):
            return None
        content, check = value[:-_CHECK_BYTES], value[-_CHECK_BYTES:]
        return content if check == _check(key, content) else None

    def put(self, key: bytes, value: bytes) -> None:
        """Remembers a value."""
        self._new[key] = value + _check(key, value)
        if len(self._new) >= self._waiting:
            self._write()

    def close(self) -> None:
        """Writes what is new; nothing is remembered from now on."""
        if self._new:
            self._write()
        self._close_memory()

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection | None]:
        """The open memory, None where there is none; an error ends its use."""
        try:
            if not self._opened:
                self._opened = True
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._memory = sqlite3.connect(self._path, timeout=PATIENCE_S, check_same_thread=False)
                self._memory.execute("PRAGMA synchronous = OFF")
                columns = "(key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
                self._memory.execute(f"CREATE TABLE IF NOT EXISTS {self._table} {columns}")
        except (OSError, sqlite3.Error) as problem:
            self._give_up(problem)
        try:
            yield self._memory
        except sqlite3.Error as problem:
            self._give_up(problem)

    def _write(self) -> None:
        with self._use() as memory:
            if memory is not None:
                with memory:
                    memory.executemany(f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?)", self._new.items())
            self._new = {}

    def _give_up(self, problem: Exception) -> None:
        """Goes on without the file, and removes it if it is no memory (any more)."""
        self._close_memory()
        if isinstance(problem, sqlite3.DatabaseError) and not isinstance(problem, sqlite3.OperationalError):
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _close_memory(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def _check(key: bytes, value: bytes) -> bytes:
    """Shows that a remembered value is whole and belongs to the key."""
    return blake2b(key + value, digest_size=_CHECK_BYTES).digest()
