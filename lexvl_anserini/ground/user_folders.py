"""The folders of the user who runs a command: home, caches, and a temporary folder where neither can be written."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

log = logging.getLogger(__name__)

# The folder of caches below a home folder.
CACHE = Path(".cache/lexvl")


def home_folder() -> Path:
    """The user's home folder; the private temporary folder for a user of whom the system knows none."""
    try:
        return Path.home()
    except RuntimeError:  # neither $HOME nor an entry of the user
        return private_folder()


def expanded_path(path: str | Path) -> Path:
    """A path whose first part `~` is the home folder, and `~name` that of a user; the path itself for no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        first, *others = Path(path).parts
        return home_folder().joinpath(*others) if first == "~" else Path(path)


def cache_folder() -> Path:
    """The folder of what commands keep: ~/.cache/lexvl, or a private one where there is none and none can be made."""
    folder = home_folder() / CACHE
    return folder if os.access(folder, os.F_OK) or can_write(folder) else private_folder() / CACHE


def kernels_folder() -> Path:
    """The folder of compiled functions: `$NUMBA_CACHE_DIR`, else one among the caches that can be written."""
    named = os.environ.get("NUMBA_CACHE_DIR", "")
    if named and can_write(Path(named)):
        return Path(named)
    folder = cache_folder()
    return (folder if can_write(folder) else private_folder() / CACHE) / "kernels"


def can_write(folder: Path) -> bool:
    """True if this user can write into a folder, or can make it."""
    nearest = next(path for path in (folder, *folder.parents) if os.access(path, os.F_OK))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


@cache
def private_folder() -> Path:
    """A temporary folder of this user alone, the same one in each process; logs one line that names what to set.

    Where another user made the folder of its name, it is one of this process alone, and where nothing can be written, a
    path at which no folder can be.
    """
    name = f"lexvl-{os.geteuid()}"
    try:
        folder = Path(gettempdir(), name)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            folder = Path(mkdtemp(prefix=f"{name}-"))
    except OSError:
        folder = Path(os.devnull, name)
    log.warning("%s: keeps what belongs in a home folder; set HOME to a folder that can be written", folder)
    return folder
