"""Files and folders on disk: written whole or not at all, locked, replaced, and read with readable errors."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from lexvl_anserini.errors import ArtefactError, LexvlError

# Errors of an output that is not writable for other reasons than space: permissions, or another file of that name.
UNWRITABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
)


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
