"""Opens a Lucene index that other processes may change, and verifies what it opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

from lexvl_anserini.engines.index_folder import read_report, report_digest
from lexvl_anserini.engines.jvm import Exclusive, java_errors
from lexvl_anserini.engines.lucene.fields import close, commit_files, open_reader
from lexvl_anserini.engines.lucene.versions import commit_id
from lexvl_anserini.engines.resident.choosing import Resident, usable
from lexvl_anserini.engines.resident.layout import REMEDY, RESIDENT
from lexvl_anserini.engines.verifying import Verification
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.manifest import MANIFEST, Manifest

# Attempts to open an index that other processes change, and the pause between two of them.
OPENINGS = 20
PAUSE_S = 0.02


class OpenLucene(NamedTuple):
    """An open index; `resident` is None where its resident postings do not serve."""

    reader: Any
    manifest: Manifest
    verification: Verification
    resident: Resident | None

    def close(self) -> None:
        """Closes the files."""
        if self.resident is not None:
            self.resident.close()
        self.verification.close()
        close(self.reader)


def open_verified(index: Path, manifest: Manifest) -> OpenLucene:
    """Opens an index, whose manifest may have changed since `manifest` was read.

    Raises:
        ArtefactError: no Lucene index, a damaged one, or not of these documents.
    """
    for last in (*[False] * OPENINGS, True):
        folder = _folder_of(index)
        try:
            with java_errors(f"{index}: cannot be opened as a Lucene index"):
                reader = open_reader(index)
            with _closed_on_errors(reader):
                now = manifest_there(index)
                as_written(index, now)
                served = usable(index)
                names = [*commit_files(reader), *([RESIDENT] if served else [])]
                verification = Verification(index, names, {RESIDENT: REMEDY} if served else {})
                resident = Resident(index, verification) if served else None
        except (ArtefactError, FileNotFoundError):
            if last or _folder_of(index) == folder:
                raise
        else:
            # Reader and manifest belong to one index only if no process replaced it in between.
            if last or _folder_of(index) == folder:
                break
            OpenLucene(reader, manifest, verification, resident).close()
        sleep(PAUSE_S)
    if now is not None and _digests(manifest) <= _digests(now):
        manifest = now
    opened = OpenLucene(reader, manifest, verification, resident)
    found = int(Exclusive(reader).maxDoc())
    documents, empty = manifest.counts.documents, manifest.counts.get("empty", 0)
    # Stock Anserini skips documents without terms; they cannot be hits.
    stock = now is None or read_report(index).engine == "pyserini"
    if found == documents or stock and found == documents - empty:
        return opened
    opened.close()
    raise ArtefactError(
        f"{index}: {found} documents, the manifest says {documents} of which {empty} empty; index again"
    )


def as_written(index: Path, manifest: Manifest | None) -> None:
    """Compares index.json and manifest.json with their digest, and the commit with the one that index.json names.

    Raises:
        ArtefactError: they were changed, or Lucene's files are of another index.
    """
    report = read_report(index)
    if manifest is not None and report.digest and report.digest != report_digest(report, manifest):
        raise ArtefactError(f"{index}: index.json and manifest.json are not as they were written; index again")
    if report.commit and report.commit != commit_id(index):
        raise ArtefactError(f"{index}: Lucene's files are not those that index.json was written for; index again")


@contextmanager
def _closed_on_errors(reader: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        close(reader)
        raise


def _folder_of(index: Path) -> int:
    """Identifies the folder that has the name now; 0 if none has."""
    try:
        return index.stat().st_ino
    except FileNotFoundError:
        return 0


def _digests(manifest: Manifest) -> set[str]:
    return {str(shard["sha256"]) for shard in manifest.shards}


def manifest_there(index: Path) -> Manifest | None:
    """The manifest in the folder of an index; None in one that stock Anserini built."""
    path = index / MANIFEST
    return Manifest.from_json(read_json(path, "manifest"), str(path)) if path.is_file() else None
