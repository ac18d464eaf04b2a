"""What was computed from the bytes of files, remembered between commands in one SQLite file outside every artefact.

The file may be missing, damaged, locked or read-only, and may be deleted at any time: then everything is computed
again.
"""

from __future__ import annotations

import sqlite3
from hashlib import blake2b
from pathlib import Path
from typing import Any

# Seconds to wait for another process that is writing.
PATIENCE_S = 1.0

_CHECK_BYTES = 8


class Memory:
    """Values (bytes) by keys (bytes), each stored with a check of key and value; for one thread at a time.

    Args:
        path: the file.
        table: of the values in the file.
        waiting: new values that wait to be written together; `close` writes the rest.
    """

    def __init__(self, path: Path, table: str, waiting: int):
        self._path, self._table, self._waiting = path, table, waiting
        self._memory: sqlite3.Connection | None = None
        self._opened = False
        self._new: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None where it is not known."""
        value = self._new.get(key) or self._stored(key)
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
        self._let_go()

    def _stored(self, key: bytes) -> Any:
        self._open()
        if self._memory is None:
            return None
        try:
            row = self._memory.execute(f"SELECT * FROM {self._table} WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as problem:
            self._give_up(problem)
            return None
        return row and row[1]

    def _open(self) -> None:
        if self._opened:
            return
        self._opened = True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._memory = sqlite3.connect(self._path, timeout=PATIENCE_S, check_same_thread=False)
            self._memory.execute("PRAGMA synchronous = OFF")
            self._memory.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as problem:
            self._give_up(problem)

    def _write(self) -> None:
        self._open()
        if self._memory is None:
            self._new.clear()
            return
        try:
            with self._memory:
                self._memory.executemany(f"INSERT OR REPLACE INTO {self._table} VALUES (?, ?)", self._new.items())
            self._new = {}
        except sqlite3.Error as problem:
            self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        """Goes on without the file, and removes it if it is no memory (any more)."""
        self._let_go()
        if isinstance(problem, sqlite3.DatabaseError) and not isinstance(problem, sqlite3.OperationalError):
            try:
                self._path.unlink(missing_ok=True)
            except OSError:
                return

    def _let_go(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def _check(key: bytes, value: bytes) -> bytes:
    """Shows that a remembered value is whole and belongs to the key."""
    return blake2b(key + value, digest_size=_CHECK_BYTES).digest()
