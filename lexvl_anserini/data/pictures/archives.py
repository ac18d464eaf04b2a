"""Members of an uncompressed tar read in any order: indexed once, then straight from their offsets.

Every member is a file, a link to one, or is left out with a line that counts and names it. An archive that is cut off,
damaged or followed by other bytes is refused: `tarfile` alone takes the members before the damage for all there are.

References of pictures: a path, `archive.tar::member` or `table.parquet::row`; of a page, `scan.tif#2`. In them, which
are data, `~` is a character.
"""

from __future__ import annotations

import os
import posixpath
import re
import struct
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from weakref import finalize

from lexvl_anserini.data.lines import FileState, LeftOut, describe_unreadable, printable, read_file_state
from lexvl_anserini.ground.errors import DataError, refuse_pointer

# What `tarfile` raises for damaged headers; a size above the memory gives a MemoryError.
_BROKEN = (
    *(tarfile.TarError, EOFError, ValueError, OverflowError, IndexError, KeyError, struct.error),
    *(RecursionError, MemoryError),
)

_END = 2 * tarfile.BLOCKSIZE  # a tar ends with two blocks of zeros
_PIECE = 1 << 20
_OUTSIDE = ""  # the target of a link that leads out of the archive; no file has this name
_SPECIAL = (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)


class Place(NamedTuple):
    """Where a member's bytes are in the archive."""

    offset: int
    size: int


class Archive:
    """An open tar and the places of its files, by name without `.` in its path; of equal names the last counts.

    Reading is thread-safe: no position is shared.
    """

    def __init__(self, path: Path, members: Mapping[str, Place]):
        self.path = path
        self.members = members
        self._handle = os.open(path, os.O_RDONLY)
        finalize(self, os.close, self._handle)

    def place(self, member: str) -> Place:
        """Where the bytes of a member are."""
        place = self.members.get(_normalise_name(member) or member)
        if place is None:
            raise DataError(f"{self.path}: no member {member!r} among its {len(self.members)} files")
        return place

    def read(self, member: str) -> bytes:
        """The bytes of a member."""
        place = self.place(member)
        try:
            data = os.pread(self._handle, place.size, place.offset)
        except OSError as problem:
            raise describe_unreadable(f"{self.path}: member {member!r}", problem) from problem
        if len(data) != place.size:
            raise DataError(f"{self.path}: member {member!r} has {len(data)} bytes, expected {place.size}")
        return data


def open_archive(path: Path) -> Archive:
    """The archive, indexed on the first call and again only if the file has changed."""
    return index_archive(path.absolute(), read_file_state(path))


@lru_cache(maxsize=16)
def index_archive(path: Path, state: FileState) -> Archive:
    """The archive of a file in a state."""
    left_out = LeftOut()
    members = _place_files(_iter_members(path, state.size), left_out)
    left_out.log(str(path))
    return Archive(path, members)


def _place_files(members: Iterable[tarfile.TarInfo], left_out: LeftOut) -> dict[str, Place]:
    files: dict[str, Place] = {}
    links: dict[str, str] = {}
    for member in members:
        if member.isdir():
            continue
        name = _normalise_name(member.name)
        if name is None:
            left_out.add("a name that leads out of the archive", member.name)
            continue
        if name in files or name in links:
            left_out.add("replaced by a later member of its name", name)
            files.pop(name, None)
            links.pop(name, None)
        if member.isreg() and not member.sparse:
            files[name] = Place(member.offset_data, member.size)
        elif member.islnk() and (place := files.get(_normalise_name(member.linkname) or _OUTSIDE)):
            files[name] = place
        elif member.islnk() or member.issym():
            links[name] = _resolve_link(name, member)
        elif member.isreg():
            left_out.add("a sparse file", name)
        else:
            left_out.add("a pipe or a device" if member.type in _SPECIAL else "a member of an unknown kind", name)
    return files | _resolve_links(links, files, left_out)


def _resolve_links(links: Mapping[str, str], files: Mapping[str, Place], left_out: LeftOut) -> dict[str, Place]:
    """The places of links that lead to a file of the archive, through other links or not."""
    followed: dict[str, Place] = {}
    waiting = dict(links)
    for name in links:
        chain, at = [], name
        while at in waiting:
            chain.append(at)
            at = waiting.pop(at)
        place = files.get(at) or followed.get(at)
        for link in chain:
            if place:
                followed[link] = place
            else:
                left_out.add("a link to no file of the archive", link)
    return followed


def _normalise_name(name: str) -> str | None:
    """The name without empty parts and `.`; None if it is absolute, has `..`, or is no name."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if name.startswith("/") or ".." in parts or not parts else "/".join(parts)


def _resolve_link(name: str, link: tarfile.TarInfo) -> str:
    """The name that a link leads to: of a hard link in the archive, of a symbolic one from its own folder."""
    if link.islnk():
        return _normalise_name(link.linkname) or _OUTSIDE
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), link.linkname))
    return _normalise_name(path) or _OUTSIDE


def _iter_members(path: Path, size: int) -> Iterator[tarfile.TarInfo]:
    end, last = 0, "none"
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                # A list of all members would grow with the archive.
                archive.members = []  # type: ignore[attr-defined]
                end = archive.offset
                if member.size < 0:
                    raise DataError(f"{path}: negative size in the header at byte {member.offset:,}; pack it again")
                last = repr(printable(member.name))
                if member.isreg() and member.offset_data + member.size > size:
                    what = f"in member {last}, whose header is at byte {member.offset:,}; fetch or pack it again"
                    raise DataError(f"{path}: cut off at byte {size:,} {what}")
                yield member
    except _BROKEN as problem:
        refuse_pointer(path)
        what = f"damaged header at byte {end:,} after member {last} ({problem}); fetch or pack it again"
        other = f"not an uncompressed tar archive, or a damaged one ({problem}); unpack a compressed one"
        raise DataError(f"{path}: {what if end else other}") from problem
    except OSError as problem:
        raise describe_unreadable(path, problem) from problem
    _check_end(path, end, last)


def _check_end(path: Path, end: int, last: str) -> None:
    with open(path, "rb") as source:
        source.seek(end)
        blocks = source.read(_END)
        if blocks.strip(b"\0"):
            what = f"the archive is damaged after member {last}; fetch or pack it again"
            raise DataError(f"{path}: no valid header at byte {end:,}, {what}")
        if len(blocks) < _END:
            what = f"where a tar has a member or two blocks of zeros after member {last}; fetch or pack it again"
            raise DataError(f"{path}: cut off at byte {end + len(blocks):,}, {what}")
        while piece := source.read(_PIECE):
            if rest := piece.lstrip(b"\0"):
                remedy = "unpack archives that were joined and pack one (tar --concatenate joins them)"
                what = f"after the end of the archive at byte {end:,}; {remedy}"
                raise DataError(f"{path}: other bytes at byte {source.tell() - len(rest):,}, {what}")


MEMBER = re.compile(r"(?P<archive>.+?\.tar)::(?P<member>.+)", re.IGNORECASE | re.DOTALL)  # a member of an archive

# A row of a table, from 0.
CELL = re.compile(r"(?P<table>.+?\.parquet)::(?P<row>[0-9]{1,12})", re.IGNORECASE | re.DOTALL)

# A page of a file: its number follows the suffix of the file.
_PAGE = re.compile(r"(?P<file>.+\.[A-Za-z0-9]+)#(?P<page>[1-9][0-9]{0,8})", re.DOTALL)


class PageReference(NamedTuple):
    """A page: the file (or member of an archive), and the number of the page in it, from 1."""

    file: str
    page: int

    def __str__(self) -> str:
        return f"{self.file}#{self.page}"


def find_page(reference: str) -> PageReference | None:
    """The page that a reference names; None for a whole file."""
    match = _PAGE.fullmatch(reference)
    return PageReference(match["file"], int(match["page"])) if match else None


def find_file(reference: str) -> Path:
    """The file that a reference leads into: of a member of an archive, the archive; of a row, the table."""
    page = find_page(reference)
    whole = page.file if page else reference
    match = MEMBER.fullmatch(whole) or CELL.fullmatch(whole)
    return Path(match[1] if match else whole)
