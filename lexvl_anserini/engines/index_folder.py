"""The folder of an index: it appears whole or not at all, and records what was built into it.

INDEX/
  manifest.json   of the shards it was built from
  index.json      the engine, its options and counts
  vocab.txt       of the terms, if the shards have one
  ...             the engine's own files
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lexvl_anserini.errors import ArtefactError
from lexvl_anserini.files import disk_errors, exclusive, publish, read_json, sync_folder, write_json
from lexvl_anserini.manifest import MANIFEST, Manifest
from lexvl_anserini.vocabulary import VOCABULARY

REPORT = "index.json"

# Of Linux's renameat2.
AT_FDCWD = -100
RENAME_EXCHANGE = 2


@contextmanager
def new_index(index: Path, shards: Path, manifest: Manifest) -> Iterator[Path]:
    """Yields `INDEX.part` for the engine to fill, then gives it its name; an exception leaves nothing.

    An older index of that name stays until the new one is whole.

    Raises:
        ArtefactError: the disk is full, the folder cannot be written, or another process is writing it.
    """
    with replaced(index) as part:
        yield part
        if (shards / VOCABULARY).is_file():
            shutil.copyfile(shards / VOCABULARY, part / VOCABULARY)
        write_json(part / MANIFEST, manifest.to_json())


@contextmanager
def changed_index(index: Path) -> Iterator[Path]:
    """Yields `INDEX.part` with the index's own files, to be changed; it replaces the index, or nothing changes.

    The files are links, not copies: an engine that never writes to a finished file, such as Lucene, may add and remove
    files. A process that has the older index open continues to read it.

    Raises:
        ArtefactError: as `new_index`.
    """
    with replaced(index) as part:
        for file in index.iterdir():
            if file.is_file() and not file.name.endswith((".lock", ".part")):
                try:
                    os.link(file, part / file.name)
                except OSError:  # a file system without links
                    shutil.copyfile(file, part / file.name)
        yield part


@contextmanager
def replaced(index: Path) -> Iterator[Path]:
    """Yields the empty folder `INDEX.part`, which is renamed at the end; an exception removes it.

    Raises:
        ArtefactError: the disk is full, the folder cannot be written, or another process is writing it.
    """
    part = index.with_name(index.name + ".part")
    with disk_errors(index), _held(part):
        try:
            _clear(part)
            yield part
            _replace(part, index)
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


def clear_remains(index: Path) -> None:
    """Removes what a killed process left beside a finished index, unless another process is writing it."""
    part, old = (index.with_name(index.name + suffix) for suffix in (".part", ".old"))
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
    """Removes what a killed build left; an unfinished index is not resumed: building is fast next to encoding."""
    for left in part.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def _replace(part: Path, index: Path) -> None:
    """Renames `part` to `index`; where the system supports it, the name always has an index."""
    old = index.with_name(index.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if index.exists():
        if _exchange(part, index):
            part.rename(old)
            sync_folder(index.parent)
            shutil.rmtree(old, ignore_errors=True)
            return
        index.rename(old)
    publish(part, index)
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps the names of two folders in one step; False where the system does not support it."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(swap(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def write_report(index: Path, report: Mapping[str, Any]) -> None:
    """Writes index.json."""
    write_json(index / REPORT, report)


def read_report(index: Path) -> dict[str, Any]:
    """The content of index.json; empty for an index that another program built."""
    path = index / REPORT
    return read_json(path, "report of the index") if path.exists() else {}


def is_index(folder: Path) -> bool:
    """True for the folder of an index, False for shards."""
    return (folder / REPORT).is_file()


def folder_bytes(index: Path) -> int:
    """Size of the engine's files, without the manifest and its companions."""
    ours = {MANIFEST, REPORT, VOCABULARY}
    return sum(f.stat().st_size for f in index.rglob("*") if f.is_file() and f.name not in ours)


def index_manifest(index: Path, manifest: Path | None = None) -> Manifest:
    """The manifest of an index, or of the shards a stock index was built from.

    Raises:
        ArtefactError: there is no such index, or no manifest.
    """
    if not index.is_dir():
        raise ArtefactError(f"{index}: no such index; build it with python -m lexvl_anserini.index")
    path = manifest or index / MANIFEST
    if path.is_dir():
        path = path / MANIFEST
    if not path.is_file():
        raise ArtefactError(
            f"{path}: no manifest; for an index that stock Pyserini built, name the manifest.json of its shards with "
            "--manifest"
        )
    return Manifest.from_json(read_json(path, "manifest"), str(path))
