"""Entries of folders and archives: the state of a file, by which a change is seen, and what a corpus leaves out.

What is left out is counted and named by reason, and logged in one line a reason.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.ground.errors import DataError

log = logging.getLogger(__name__)

# Names in a line.
NAMED = 5

# A reason that users expect: the line is for information. All other lines are warnings.
HIDDEN = "hidden"


class FileState(NamedTuple):
    """Size in bytes, times of the last change of content and of anything (in ns), inode; it is hashable."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    regular: bool = True

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """From what the system returns for a path or an open file."""
        regular = stat.S_ISREG(status.st_mode)
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, regular)

    @property
    def changed_ns(self) -> int:
        """The time of the last change; a restored time of the content does not hide it."""
        return max(self.mtime_ns, self.ctime_ns)


def state_of(path: Path) -> FileState:
    """The state of a file; links are followed."""
    try:
        status = path.stat()
    except (OSError, ValueError) as problem:  # a ValueError for a name with U+0000
        raise DataError(f"{path}: cannot be read ({getattr(problem, 'strerror', None) or problem})") from problem
    return FileState.of(status)


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
