"""What the file system says about a file, by which a change of the file is seen without reading it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.ground.errors import DataError


class FileState(NamedTuple):
    """Size in bytes, times of the last change of content and of anything (in ns), inode; it is hashable."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    regular: bool = True

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        """From what the system returns for a path or an open file."""
        regular = stat.S_ISREG(found.st_mode)
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, regular)

    @property
    def changed_ns(self) -> int:
        """The time of the last change; a restored time of the content does not hide it."""
        return max(self.mtime_ns, self.ctime_ns)


def state_of(path: Path) -> FileState:
    """The state of a file; links are followed.

    Raises:
        DataError: it does not exist or cannot be read.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as problem:  # a ValueError for a name with U+0000
        raise DataError(f"{path}: cannot be read ({getattr(problem, 'strerror', None) or problem})") from problem
    return FileState.of(status)
