"""The folder of an index: it appears whole or not at all, and knows what was put into it.

INDEX/
  manifest.json   of the shards it was built from
  index.json      what the build counted
  vocab.txt       of the terms, if the shards have one
  ...             the engine's own files
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lexvl_anserini.files import exclusive, publish, read_json, told_about_disk, write_json
from lexvl_anserini.records import MANIFEST, Manifest
from lexvl_anserini.vocabulary import VOCABULARY

REPORT = "index.json"


@contextmanager
def new_index(index: Path, shards: Path, manifest: Manifest) -> Iterator[Path]:
    """Yields `INDEX.part` for the engine to fill, then gives it its name; an exception leaves nothing.

    An older index of that name stays until the new one is whole.

    Raises:
        ArtefactError: the disk is full or the folder cannot be written.
    """
    part = index.with_name(index.name + ".part")
    with told_about_disk(index):
        part.mkdir(parents=True, exist_ok=True)
        with exclusive(part):
            try:
                _clear(part)
                yield part
                if (shards / VOCABULARY).is_file():
                    shutil.copyfile(shards / VOCABULARY, part / VOCABULARY)
                write_json(part / MANIFEST, manifest.to_json())
                _replace(part, index)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise


def _clear(part: Path) -> None:
    """Removes what a killed build left; half an index is not resumed, building is quick next to encoding."""
    for left in part.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def _replace(part: Path, index: Path) -> None:
    """Renames `part` to `index`; a folder cannot be renamed over another, so the old one steps aside."""
    old = index.with_name(index.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if index.exists():
        index.rename(old)
    publish(part, index)
    shutil.rmtree(old, ignore_errors=True)


def write_report(index: Path, report: Mapping[str, Any]) -> None:
    """Notes what the build counted."""
    write_json(index / REPORT, report)


def read_report(index: Path) -> dict[str, Any]:
    """What the build counted; empty for an index that was built elsewhere."""
    path = index / REPORT
    return read_json(path, "report of the index") if path.exists() else {}


def folder_bytes(index: Path) -> int:
    """Size of the engine's files, without the manifest and its companions."""
    ours = {MANIFEST, REPORT, VOCABULARY}
    return sum(f.stat().st_size for f in index.rglob("*") if f.is_file() and f.name not in ours)
