"""Files and folders on disk: written whole or not at all, locked, replaced, and read with readable errors."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gzip
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from lexvl_anserini.errors import ArtefactError, LexvlError

# Errors of an output that is not writable for other reasons than space: permissions, or another file of that name.
UNWRITABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
)

# Arguments of Linux's renameat2: paths are relative to the working directory; swap the two names.
AT_FDCWD = -100
RENAME_EXCHANGE = 2


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns the system's error about a full disk or an unwritable path into an error of one line.

    Raises:
        ArtefactError: the disk or the quota is full, permission is missing, or something else has that name.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ArtefactError(f"{path}: the disk is full; free some space and run the same command again") from error
        if error.errno == errno.EFBIG:
            raise ArtefactError(f"{path}: larger than this disk or `ulimit -f` allows a file to be") from error
        if error.errno in UNWRITABLE:
            raise ArtefactError(f"{path}: cannot be written ({error.strerror}); choose another output") from error
        raise


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_to(out: BinaryIO) -> None:
    """Flushes a file to the disk itself."""
    out.flush()
    os.fsync(out.fileno())


@contextmanager
def exclusive(folder: Path, wait: bool = False) -> Iterator[None]:
    """Holds a folder for this process; the lock ends with the process, even a killed one.

    Args:
        folder: exists.
        wait: waits for another process that holds it, instead of raising an error.

    Raises:
        ArtefactError: another process holds it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise ArtefactError(
                f"{folder}: another process is writing it; wait for it or name another output"
            ) from error
        yield
    finally:
        os.close(handle)


def publish(part: Path, path: Path) -> None:
    """Gives a finished temporary file its final name."""
    part.replace(path)
    sync_folder(path.parent)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Writes `path` through `path.part`, fsync and rename; an exception leaves neither.

    Raises:
        ArtefactError: the disk is full or the folder cannot be written.
    """
    part = path.with_name(path.name + ".part")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "wb") as out:
                yield out
                sync_to(out)
            publish(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields the empty folder `FOLDER.part`, which replaces `folder` at the end; an exception removes it.

    An older folder of that name stays until the new one is complete.

    Raises:
        ArtefactError: the disk is full, the folder cannot be written, or another process is writing it.
    """
    part = folder.with_name(folder.name + ".part")
    with disk_errors(folder), _held(part):
        try:
            _clear(part)
            yield part
            _replace(part, folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


@contextmanager
def _held(part: Path) -> Iterator[None]:
    """Creates the folder and locks it for this process.

    Raises:
        ArtefactError: another process locked it, or finished it between creation and lock.
    """
    part.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            made = part.stat().st_ino
            stack.enter_context(exclusive(part))
            ours = part.stat().st_ino == made
        except FileNotFoundError:
            ours = False
        if not ours:
            raise ArtefactError(f"{part}: another process has just finished it; run the same command again")
        yield


def clear_remains(folder: Path) -> None:
    """Removes what a killed `new_folder` left beside a finished folder, unless another process is writing it."""
    part, old = (folder.with_name(folder.name + suffix) for suffix in (".part", ".old"))
    if not part.is_dir():
        shutil.rmtree(old, ignore_errors=True)
        return
    try:
        with exclusive(part):
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
    except (ArtefactError, FileNotFoundError):
        return


def _clear(part: Path) -> None:
    """Removes what a killed process left: an unfinished folder of this kind is not resumed."""
    for left in part.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def _replace(part: Path, folder: Path) -> None:
    """Renames `part` to `folder`; where the system supports it, a complete folder has the name at every moment."""
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        if _exchange(part, folder):
            part.rename(old)
            sync_folder(folder.parent)
            shutil.rmtree(old, ignore_errors=True)
            return
        folder.rename(old)
    publish(part, folder)
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps the names of two folders in one step; False where the system does not support it."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(swap(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


@contextmanager
def packed(out: BinaryIO, compress: bool) -> Iterator[BinaryIO]:
    """`out` itself, or a gzip stream into it without time stamp and name: equal contents give equal bytes."""
    if compress:
        with gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as stream:
            yield cast(BinaryIO, stream)
    else:
        yield out


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Indented JSON, keys in the order given, one line feed at the end."""
    with atomic_write(path) as out:
        out.write(orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read_json(path: Path, what: str, error: type[LexvlError] = ArtefactError) -> dict[str, Any]:
    """Reads one JSON object.

    Raises:
        error: the file is absent, unreadable, not JSON or not an object.
    """
    try:
        data = orjson.loads(path.read_bytes())
    except OSError as problem:
        raise error(f"{path}: no {what} ({problem.strerror or problem})") from problem
    except ValueError as problem:
        raise error(f"{path}: the {what} is not valid JSON ({problem})") from problem
    if not isinstance(data, dict):
        raise error(f"{path}: the {what} is a JSON {type(data).__name__}, expected an object")
    return data


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes, read in pieces."""
    digest = sha256()
    with open(path, "rb") as source:
        while piece := source.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
