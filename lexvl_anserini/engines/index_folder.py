"""The folder of an index: it appears whole or not at all, and records what was built into it; and what Lucene's files
in it say without Java: which Lucene wrote them, and which documents of a segment are deleted.

INDEX/
  manifest.json   of the shards it was built from
  index.json      the engine, its options and counts
  vocab.txt       of the terms, if the shards have one
  ...             the engine's own files

Lucene opens indexes of its own major version and of the one before; it changes them too, but never joins two that
different major versions created.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import orjson

from lexvl_anserini.engines.jvm import LUCENE_LINES, find_jar, read_lucene_version
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import new_folder, read_json, write_json
from lexvl_anserini.ground.machine import find_lucene, find_version
from lexvl_anserini.ground.manifest import MANIFEST, Manifest, write_manifest
from lexvl_anserini.ground.records import VOCABULARY
from lexvl_anserini.ground.registry import refuse_gone_engine
from lexvl_anserini.ground.typed import Entry, check

REPORT = "index.json"

# An impact index has its postings once more beside Lucene's files, as `engines/resident` reads them; documents that
# were added later have a file of their own.
RESIDENT = "resident.bin"
RESIDENT_NAME = re.compile(r"resident(-[1-9][0-9]*)?\.bin")

LOCK = "write.lock"  # Lucene's, which a process holds

APPROXIMATE = "approximate.bin"  # and its documents in groups, where approximate search was prepared

# What a build reads of a folder of shards, or of an index, before it reads documents.
HEADS = (MANIFEST, REPORT, VOCABULARY)

PARTITION = "partition.json"  # in the folder of a partition of an index: which collection it belongs to

# Numbers of the files of an index that change when it is replaced.
IndexState = tuple[int, int, int]

# Attempts to read an index that other processes change, and the pause between two of them.
OPENINGS = 100
PAUSE_S = 0.02

Content = TypeVar("Content")

# Lengths of lists that are measured; other lists have the setting of the next longer ones.
MEASURED_HITS = (10, 100, 1000)

# The shares of the last hit's score that the sum of a group must have (`engines/resident/approximate.py`), which are
# measured one after the other until all hits are found.
REACHES = (1.1, 1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)

PREPARE = "python -m lexvl_anserini.index --approximate --index INDEX"

# The exact hits of a query: their number, and the score of the last.
Exact = tuple[int, float]


class SourceEntry(Entry):
    """An encoded corpus that an index was built from; `commit` is that of a changed index which it was taken from."""

    corpus: str
    documents: int
    shards: str
    commit: str = ""


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
    """The types of index.json, of all engines; an engine's own options are its `EngineOptions`.

    Attributes:
        longest_lists: number of postings and term, of the longest lists of an impact index.
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
    longest_lists: tuple[tuple[Any, ...], ...] = ()
    sources: tuple[SourceEntry, ...] = ()
    faiss: StoredEntry | None = None
    approximation: ApproximationEntry = ApproximationEntry()
    resident_files: tuple[ResidentEntry, ...] = ()

    @property
    def source_commits(self) -> list[str]:
        """The commits of the changed indexes that it was built from."""
        return list(dict.fromkeys(source.commit for source in self.sources if source.commit))


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
    """Yields `INDEX.lexvl.part` for the engine to fill, which then replaces the index; an exception changes nothing."""
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
    except (OSError, ValueError):  # also a name that no file system takes
        return None
    return folder.st_ino, report.st_ino, report.st_mtime_ns


def read_settled(index: Path, read: Callable[[], Content], drop: Callable[[Content], object] = id) -> Content:
    """Reads an index again while another process replaces it meanwhile: what is returned, or raised, is of one state.

    `drop` gets what was read of several states.
    """
    for _ in range(OPENINGS):
        state = read_index_state(index)
        try:
            content = read()
        except Exception:
            if read_index_state(index) == state:
                raise
        else:
            if read_index_state(index) == state:
                return content
            drop(content)
        sleep(PAUSE_S)
    raise ArtefactError(f"{index}: changed {OPENINGS} times while it was opened; search it when its writers have ended")


class Unchanged:
    """A block that raises ArtefactError if another process changed indexes or shards since this was made."""

    def __init__(self, folders: Iterable[Path]):
        self.states = {folder: read_index_state(folder) for folder in folders}

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        for folder, state in self.states.items():
            if read_index_state(folder) != state:
                raise ArtefactError(f"{folder}: another process changed it meanwhile; run the same command again")


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
    return read_settled(index, lambda: _read_manifest(index, manifest))


def _read_manifest(index: Path, manifest: Path | None) -> Manifest:
    if not os.path.isdir(index):  # noqa: PTH112  false for a name that no file system takes
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


def compute_mean_recall(exact: Sequence[Exact], scores: Sequence[np.ndarray]) -> float:
    """Mean over queries of the share of the exact hits whose places are taken by documents of their true `scores`.

    Documents with the score of the last exact hit are as good as it. A query without hits does not count.
    """
    shares = [
        min(1.0, np.count_nonzero(of_query >= least) / count)
        for (count, least), of_query in zip(exact, scores, strict=True)
        if count
    ]
    return float(sum(shares) / len(shares)) if shares else 1.0


def choose_setting(report: IndexReport, index: Path, recall: float, hits: int) -> SettingEntry:
    """The measured setting that scores the fewest documents for this recall."""
    if report.engine != "lucene":
        raise UsageError(f"{index}: an index of the engine {report.engine}; approximate search is for those of lucene")
    settings = [SettingEntry(entry) for entry in report.approximation.get("settings", ())]
    if not settings:
        raise ArtefactError(f"{index}: not prepared for approximate search, or changed since; run {PREPARE}")
    # A list from which the topic's own document is removed has one more hit.
    measured = next((count for count in MEASURED_HITS if hits <= count + 1), None)
    if measured is None:
        raise UsageError(f"approximate search is measured for up to {MEASURED_HITS[-1]:,} hits, not for {hits:,}")
    fitting = [setting for setting in settings if setting.hits == measured]
    if enough := [setting for setting in fitting if setting.recall >= recall]:
        return min(enough, key=lambda setting: setting.documents)
    most = max(setting.recall for setting in fitting)
    raise ArtefactError(
        f"{index}: no setting of approximate search reaches a recall of {recall} for {measured:,} hits, the highest is "
        f"{most}; search exactly"
    )


def read_recall(report: IndexReport, index: Path, recall: float, hits: int) -> str:
    """What a run of approximate search notes: the recall that was measured."""
    setting, measured = choose_setting(report, index, recall, hits), report.approximation
    return f"{recall} (measured {setting.recall} of the first {setting.hits}, {measured.queries} {measured.source})"


# The start of `segments_N`, the file of a commit, as Lucene's SegmentInfos and CodecUtil document it: magic number,
# codec name; then int32 version and 16 bytes of an id; a suffix; and numbers of 7 bits a byte.
MAGIC = bytes.fromhex("3fd76c17")
CODEC = b"segments"
COMMIT_NAME = re.compile(r"segments_[0-9a-z]+")
VERSION_BYTES = 4
ID_BYTES = 16

# The end of a file of Lucene, as its CodecUtil documents it: magic number, algorithm 0, CRC-32 of all bytes before it.
FOOTER = bytes.fromhex("c02893e8") + bytes(4)
FOOTER_BYTES = 16
CHECKSUM_BYTES = 8

# A file that marks deleted documents: its name, and its codec. Between header and footer it has a bit for each
# document, the lowest of a byte first, in whole 8 bytes; 1 for those that are not deleted.
LIVE_NAME = re.compile(r"_[0-9a-z]+_[0-9a-z]+\.liv")
LIVE_CODEC = b"Lucene90LiveDocs"

# The major version of Lucene in Pyserini's jar, by the major version of Pyserini; others have the newest line.
LINE_OF_PYSERINI = {"1": 9}


class IndexVersion(NamedTuple):
    """The version of Lucene that last wrote an index, and the major one that created it."""

    written: tuple[int, int, int]
    created: int


def read_version(index: Path) -> IndexVersion | None:
    """The versions that an index's last commit names; None if the folder holds no commit that has them."""
    data = _last_commit(index)
    if data is None:
        return None
    at = len(MAGIC) + 1 + len(CODEC) + VERSION_BYTES + ID_BYTES
    numbers = list(islice(_numbers(data[at + 1 + data[at] :]), 4))
    return IndexVersion((numbers[0], numbers[1], numbers[2]), numbers[3]) if len(numbers) == 4 else None


def read_commit_id(index: Path) -> str | None:
    """The id (hex) of an index's last commit, which Lucene draws at random; None if the folder holds no commit.

    A commit names its segments by their ids, and each segment's files carry its id: another index has another one.
    """
    data = _last_commit(index)
    start = len(MAGIC) + 1 + len(CODEC) + VERSION_BYTES
    return None if data is None else data[start : start + ID_BYTES].hex()


def list_commits(folder: Path) -> list[str]:
    """The commits that say, beside its shards, what an index holds: its own once it changed, else of its sources."""
    report, commit = read_report(folder), read_commit_id(folder)
    return [commit] if commit and (report.changed or not report) else report.source_commits


def read_live(file: BinaryIO, documents: int) -> np.ndarray | None:
    """Which documents of a segment are not deleted, uint8 [documents]; None for a file of another form."""
    file.seek(0)
    data, size = file.read(), -(-documents // 64) * 8
    head = MAGIC + struct.pack("B", len(LIVE_CODEC)) + LIVE_CODEC
    least = len(head) + VERSION_BYTES + ID_BYTES + 1
    if not data.startswith(head) or len(data) < least or len(data) != least + data[least - 1] + size + FOOTER_BYTES:
        return None
    bits = np.frombuffer(data, np.uint8, size, len(data) - FOOTER_BYTES - size)
    return np.unpackbits(bits, count=documents, bitorder="little")


def format_version(version: Iterable[int]) -> str:
    """`(9, 9, 1)` as `9.9.1`."""
    return ".".join(map(str, version))


def refuse_newer_line(index: Path) -> None:
    """Refuses, without Java, an index of a later major version of Lucene than Pyserini's jar has.

    Some indexes of a later minor version can be read; `refuse_newer` refuses the others when Java opens them.
    """
    version = read_version(index)
    if version is None or version.written[0] <= min(LUCENE_LINES):
        return
    # The table saves reading the directory of the jar, which takes seconds, for an index that fits.
    if version.written[0] <= LINE_OF_PYSERINI.get(
        (find_version("pyserini") or "").partition(".")[0], max(LUCENE_LINES)
    ):
        return
    running = find_lucene(find_jar())
    if running is not None and version.written[0] > int(running.partition(".")[0]):
        raise _too_new(index, version, running)


@contextmanager
def refuse_newer(index: Path) -> Iterator[None]:
    """Explains why an index cannot be opened if a newer Lucene wrote it."""
    from jnius import JavaException

    try:
        yield
    except JavaException as problem:
        version = read_version(index)
        if version is None or version.written <= read_lucene_version():
            raise
        raise _too_new(index, version, format_version(read_lucene_version())) from problem


def read_creator(indexes: Iterable[Path]) -> int:
    """The major version that created all these indexes; that of this process if there is none."""
    first: dict[int, Path] = {}
    for index in indexes:
        if version := read_version(index):
            if version.created > read_lucene_version()[0]:
                raise _too_new(index, version, format_version(read_lucene_version()))
            first.setdefault(version.created, index)
    if len(first) > 1:
        places = " and ".join(f"{path} by Lucene {major}" for major, path in sorted(first.items()))
        raise ArtefactError(f"{places}: created by different versions, which Lucene does not join; use their shards")
    return next(iter(first), read_lucene_version()[0])


def _last_commit(index: Path) -> bytes | None:
    """The content of the last `segments_N`; None if there is none with a whole header."""
    commits = [path for path in index.glob("segments_*") if COMMIT_NAME.fullmatch(path.name) and path.is_file()]
    if not commits:
        return None
    data = max(commits, key=lambda path: int(path.name.removeprefix("segments_"), 36)).read_bytes()
    start = MAGIC + struct.pack("B", len(CODEC)) + CODEC
    whole = data.startswith(start) and len(data) > len(start) + VERSION_BYTES + ID_BYTES
    return data if whole else None


def _too_new(index: Path, version: IndexVersion, running: str) -> ArtefactError:
    return ArtefactError(
        f"{index}: written by Lucene {format_version(version.written)}, which Lucene {running} of this "
        "Pyserini cannot read; use a Pyserini as new as the one that wrote it, or build the index again here"
    )


def _numbers(data: bytes) -> Iterator[int]:
    """Lucene's variable-length integers: 7 bits a byte, the lowest first; a set top bit: more follow."""
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
