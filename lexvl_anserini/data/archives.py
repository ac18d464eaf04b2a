"""Members of an uncompressed tar read in any order: indexed once, then straight from their offsets."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.errors import DataError


class Place(NamedTuple):
    """Where a member's bytes are in the archive."""

    offset: int
    size: int


class Archive:
    """An open tar and the places of its files, by name (a leading `./` is dropped; of equal names the last counts).

    Reading is thread-safe: no position is shared.
    """

    def __init__(self, path: Path, members: Mapping[str, Place]):
        self.path = path
        self.members = members
        self._handle = os.open(path, os.O_RDONLY)

    def read(self, member: str) -> bytes:
        """The bytes of a member.

        Raises:
            DataError: no such member, or the archive was cut off since it was indexed.
        """
        place = self.members.get(member.removeprefix("./"))
        if place is None:
            raise DataError(f"{self.path}: no member {member!r} among its {len(self.members)} files")
        data = os.pread(self._handle, place.size, place.offset)
        if len(data) != place.size:
            raise DataError(f"{self.path}: member {member!r} has {len(data)} bytes, expected {place.size}")
        return data

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            os.close(handle)


def open_archive(path: Path) -> Archive:
    """The archive, indexed on the first call and again only if the file has changed.

    Raises:
        DataError: not there, compressed, cut off, or no tar at all.
    """
    try:
        stat = path.stat()
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror or problem})") from problem
    return _indexed(path.absolute(), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=16)
def _indexed(path: Path, mtime_ns: int, size: int) -> Archive:
    members = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                # A list of all members would grow with the archive.
                archive.members = []  # type: ignore[attr-defined]
                if member.isreg() and not member.sparse:
                    members[member.name.removeprefix("./")] = Place(member.offset_data, member.size)
                    if member.offset_data + member.size > size:
                        raise DataError(f"{path}: cut off in member {member.name!r}; fetch or pack it again")
    except (tarfile.TarError, EOFError) as problem:
        raise DataError(
            f"{path}: not an uncompressed tar archive, or a damaged one ({problem}); unpack a compressed one"
        ) from problem
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror or problem})") from problem
    return Archive(path, members)
