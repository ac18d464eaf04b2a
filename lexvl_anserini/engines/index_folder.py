"""The folder of an index: it appears whole or not at all, and records what was built into it.

INDEX/
  manifest.json   of the shards it was built from
  index.json      the engine, its options and counts
  vocab.txt       of the terms, if the shards have one
  ...             the engine's own files
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.engines.index_files import refuse_newer_line
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import new_folder, read_json, write_json
from lexvl_anserini.ground.manifest import MANIFEST, Manifest, write_manifest
from lexvl_anserini.ground.records import VOCABULARY
from lexvl_anserini.ground.registry import refuse_gone_engine
from lexvl_anserini.ground.typed import Entry, check

REPORT = "index.json"

# An impact index has its postings once more beside Lucene's files, as `engines/resident` reads them; documents that
# were added later have a file of their own.
RESIDENT = "resident.bin"
RESIDENT_NAME = re.compile(r"resident(-[1-9][0-9]*)?\.bin")

APPROXIMATE = "approximate.bin"  # and its documents in groups, where approximate search was prepared

# What a build reads of a folder of shards, or of an index, before it reads documents.
HEADS = (MANIFEST, REPORT, VOCABULARY)

PARTITION = "partition.json"  # in the folder of a partition of an index: which collection it belongs to

# Numbers of the files of an index that change when it is replaced.
IndexState = tuple[int, int, int]


class SourceEntry(Entry):
    """An encoded corpus that an index was built from."""

    corpus: str
    documents: int
    shards: str


class StoredEntry(Entry):
    """How a FAISS index stores its vectors, see `engines/faiss.py`; its other keys are parameters."""

    layout: str


class SettingEntry(Entry):
    """A measured setting of approximate search: `recall` of lists of `hits`, for so many scored documents a query."""

    hits: int
    reach: float
    recall: float
    documents: float


class ApproximationEntry(Entry):
    """What was measured of approximate search, with how many queries, and which."""

    queries: int = 0
    source: str = ""
    settings: tuple[SettingEntry, ...] = ()


class ResidentEntry(Entry):
    """One of several files of resident postings, of the documents that follow those of the file before.

    It was written from Lucene's `commit`; `live` is Lucene's file that marks its deleted documents, empty without one.
    """

    file: str
    commit: str
    live: str = ""


class IndexReport(Entry):
    """The types of index.json; an engine's own keys are in `Engine.build`.

    Attributes:
        deleted: documents that are marked as deleted, whose postings are in the files; no other number counts them.
        approximation: the measurement of approximate search; empty without one.
        resident_files: the files of resident postings; none where one file of the last commit has all documents.
    """

    engine: str = "lucene"
    lucene: str = ""
    documents: int = 0
    empty: int = 0
    deleted: int = 0
    postings: int = 0
    impacts: int = 0
    max_impact: int = 0
    dimensions: int = 0
    bytes: int = 0
    resident_bytes: int = 0
    approximate_bytes: int = 0
    changed: bool = False
    digest: str = ""
    commit: str = ""
    files: Mapping[str, str] = {}
    fields: Mapping[str, str] = {}
    options: Mapping[str, bool] = {}
    changes: tuple[str, ...] = ()
    partitions: int = 0
    collection: str = ""
    sources: tuple[SourceEntry, ...] = ()
    faiss: StoredEntry | None = None
    approximation: ApproximationEntry = ApproximationEntry()
    resident_files: tuple[ResidentEntry, ...] = ()


@dataclass(frozen=True)
class BuiltIndex:
    """A built index: its folder, and the manifest of the shards it was built from."""

    path: Path
    manifest: Manifest

    @property
    def documents(self) -> int:
        """The number of documents."""
        return self.manifest.counts.documents


@contextmanager
def write_index(index: Path, shards: Path, manifest: Manifest) -> Iterator[Path]:
    """Yields `INDEX.part` for the engine to fill, which then replaces the index; an exception changes nothing."""
    with new_folder(index) as part:
        yield part
        if (shards / VOCABULARY).is_file():
            shutil.copyfile(shards / VOCABULARY, part / VOCABULARY)
        write_manifest(part, manifest)


def write_report(index: Path, report: Mapping[str, Any], manifest: Manifest | None = None) -> None:
    """Writes index.json; with the manifest, its digest too."""
    digest = {} if manifest is None else {"digest": report_digest(report, manifest)}
    write_json(index / REPORT, {**report, **digest})


def read_index_state(path: Path) -> IndexState | None:
    """What changes when an index is replaced or changed; None while it is not there."""
    try:
        folder, report = path.stat(), (path / REPORT if (path / REPORT).exists() else path / MANIFEST).stat()
    except OSError:
        return None
    return folder.st_ino, report.st_ino, report.st_mtime_ns


def read_report(index: Path) -> IndexReport:
    """The content of index.json; empty for an index that another program built."""
    path = index / REPORT
    if not path.exists():
        return IndexReport()
    report = read_json(path, "report of the index")
    check(report, IndexReport, str(path), "build the index again")
    refuse_gone_engine(index, report.get("engine"))
    return IndexReport(report)


def report_digest(report: Mapping[str, Any], manifest: Manifest) -> str:
    """SHA-256 (hex) of the contents of index.json and manifest.json."""
    content = [{key: value for key, value in report.items() if key != "digest"}, manifest.to_json()]
    return sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def is_index(folder: Path) -> bool:
    """True for the folder of an index, False for shards."""
    return (folder / REPORT).is_file()


def list_resident_paths(index: Path) -> list[Path]:
    """The files of resident postings that are there, whichever of them the index reads."""
    return sorted(path for path in index.glob("resident*.bin") if RESIDENT_NAME.fullmatch(path.name))


def measure_resident(index: Path) -> int:
    """Size of the resident postings; 0 for an index that has none."""
    return sum(path.stat().st_size for path in list_resident_paths(index))


def measure_folder(index: Path) -> int:
    """Size of the engine's files, without the manifest and its companions and without resident postings."""
    ours = {MANIFEST, REPORT, VOCABULARY, APPROXIMATE, *(path.name for path in list_resident_paths(index))}
    return sum(f.stat().st_size for f in index.rglob("*") if f.is_file() and f.name not in ours)


def index_manifest(index: Path, manifest: Path | None = None) -> Manifest:
    """The manifest of an index, or of the shards a stock index was built from."""
    try:
        present = index.is_dir()
    except OSError:  # a name that no file system takes
        present = False
    if not present:
        raise ArtefactError(f"{index}: no such index; build it with python -m lexvl_anserini.index")
    if (index / PARTITION).is_file():
        raise ArtefactError(
            f"{index}: a partition; search {index.parent}, because queries are quantised for all partitions together"
        )
    if (index / MANIFEST).is_file() and (index / "docs").is_dir() and not (index / REPORT).is_file():
        raise ArtefactError(
            f"{index}: encoded documents, not an index; build one with python -m lexvl_anserini.index {index}"
        )
    refuse_newer_line(index)
    path = manifest or index / MANIFEST
    if path.is_dir():
        path = path / MANIFEST
    if not path.is_file():
        raise ArtefactError(
            f"{path}: no manifest, so {index} is no index of ours; for an index that stock Pyserini built, name the "
            "manifest.json of its shards with --manifest"
        )
    return Manifest.from_json(read_json(path, "manifest"), str(path))
