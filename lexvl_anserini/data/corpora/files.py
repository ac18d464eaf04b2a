"""The files of a corpus: below a folder, in an uncompressed tar, or one alone; what is no file is counted and named."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

from lexvl_anserini.data.checks import checked_id
from lexvl_anserini.data.entries import HIDDEN, LeftOut, log_once
from lexvl_anserini.data.pictures.archives import open_archive
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.user_folders import expanded_path

# Kinds of skipped files that the log names.
NAMED = 5

# What an entry of a folder is, besides kinds that are left out.
FILE, FOLDER = "a file", "a folder"

# What a plain folder lacks: the option of commands that take it from a file.
REMEDIES = {"topics": "--topics (query_id, tab, text)", "judgements": "--qrels"}


class Files(NamedTuple):
    """The files below a folder or in a tar.

    where  the folder or tar
    names  its files in the order of their paths, without those that belong to another file; what is no file is added
           to the argument
    refer  from a name to the reference of the file: its path, or `archive.tar::member`
    read   from a name to the bytes of the file
    has    whether there is a file of a name, to read or to refuse
    """

    where: Path
    names: Callable[[LeftOut], Iterator[str]]
    refer: Callable[[str], str]
    read: Callable[[str], bytes]
    has: Callable[[str], bool]


# From the names in a folder to those of files that belong to another one, such as captions.
Belonging = Callable[[Iterable[str]], frozenset[str]]


def _none(names: Iterable[str]) -> frozenset[str]:
    return frozenset()


def files_in(where: Path, belonging: Belonging = _none) -> Files:
    """The files below a folder or in a tar.

    Raises:
        DataError: no such folder or tar.
    """
    if where.is_dir():
        return Files(
            where,
            names=partial(_names_below, where, belonging),
            refer=lambda name: str(where / name),
            read=lambda name: (where / name).read_bytes(),
            has=lambda name: _what_is(where / name) == FILE,
        )
    if where.suffix.lower() == ".tar" and where.is_file():
        archive = open_archive(where)
        return Files(
            where,
            names=partial(_names_in, archive.members, belonging),
            refer=lambda name: f"{where}::{name}",
            read=archive.read,
            has=archive.members.__contains__,
        )
    if where.exists():
        raise DataError(f"{where}: neither a folder nor an uncompressed .tar; unpack it, or name the folder it is in")
    raise DataError(f"{where}: no such folder or tar")


def place_of(ref: CorpusRef) -> Path:
    """The path in the name of a corpus, `family:<path>`."""
    family, _, path = ref.name.partition(":")
    if not path:
        raise UsageError(f"{ref.name!r} names no folder; expected {family}:<path>")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError as problem:  # a manifest could not name it
        raise DataError(f"{os.fsencode(path)!r}: the folder's name is not valid UTF-8; rename it") from problem
    return expanded_path(path)


def _names_below(folder: Path, belonging: Belonging, left_out: LeftOut, prefix: str = "") -> Iterator[str]:
    """Names of the files below a folder, sorted by path (code points), holding one folder's names at a time."""
    try:
        entries = sorted(os.scandir(folder), key=_path_order)
    except OSError as problem:
        raise DataError(f"{folder}: cannot be read ({problem.strerror})") from problem
    kinds = [_kind(entry) for entry in entries]
    others = belonging(entry.name for entry, kind in zip(entries, kinds, strict=True) if kind == FILE)
    for entry, kind in zip(entries, kinds, strict=True):
        name = prefix + entry.name
        if entry.name.startswith("."):
            left_out.add(HIDDEN, name)
        elif kind == FOLDER:
            yield from _names_below(folder / entry.name, belonging, left_out, f"{name}/")
        elif kind != FILE:
            left_out.add(kind, name)
        elif entry.name not in others:
            yield name


def _names_in(members: Iterable[str], belonging: Belonging, left_out: LeftOut) -> Iterator[str]:
    others = belonging(members)
    for name in sorted(members):
        if "/." in f"/{name}":
            left_out.add(HIDDEN, name)
        elif name not in others:
            yield name


def _kind(entry: os.DirEntry[str]) -> str:
    """What an entry is; most are files or folders, which the listing itself knows."""
    if entry.is_file(follow_symlinks=False):
        return FILE
    return FOLDER if entry.is_dir(follow_symlinks=False) else _what_is(Path(entry.path)) or FILE


def _what_is(path: Path) -> str | None:
    """What a path is; a link to nothing is a file: reading it raises, so that nothing is skipped silently.

    Links to folders are not followed: they may lead in a circle, and folders below this one are read anyway.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return FILE if path.is_symlink() else None
    if stat.S_ISDIR(mode):
        return "a link to a folder" if path.is_symlink() else FOLDER
    return FILE if stat.S_ISREG(mode) else "a pipe, a socket or a device"


def _path_order(entry: os.DirEntry[str]) -> str:
    """The sort key: a folder's name with its slash, so that nested sorting equals sorting whole paths."""
    return entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name


def checked_name(name: str, where: str, escape_ids: bool) -> str:
    """The id of a file's name."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise DataError(f"{os.fsencode(where)!r}: the file's name is not valid UTF-8; rename it") from problem
    return checked_id(name, where, escape_ids)


def suffix_of(name: str) -> str:
    """The last suffix of a name, as `.jpg`; empty if it has none."""
    return PurePosixPath(name).suffix.lower()


class OtherFiles:
    """Files of kinds that a corpus does not read: counted by suffix."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, name: str) -> None:
        """Counts a file."""
        self._counts[suffix_of(name) or "no suffix"] += 1

    def log(self, where: Path, what: str) -> None:
        """Logs one line, if there are any; `what` says what they are not."""
        if self._counts:
            kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in self._counts.most_common(NAMED))
            log_once(f"{where}: skipped, {what}: {self._counts.total():,} ({kinds})")


def nothing(folder: Path, what: str) -> NoReturn:
    """Refuses to read topics or judgements, which plain folders lack."""
    raise DataError(
        f"{folder}: a plain folder has no {what}; {REMEDIES[what]} names a file of them, in commands that have this "
        "option; others need BEIR's layout, or karpathy:FILE.json,IMAGES for images with captions"
    )
