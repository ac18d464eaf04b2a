"""Opens a Lucene index that other processes may change, and verifies what it opened."""

from __future__ import annotations

from pathlib import Path
from time import sleep
from typing import Any

from lexvl_anserini.engines.index_folder import folder_bytes
from lexvl_anserini.engines.jvm import Exclusive, java_errors, our_class
from lexvl_anserini.engines.lucene.fields import close, open_reader
from lexvl_anserini.errors import ArtefactError
from lexvl_anserini.files import read_json
from lexvl_anserini.manifest import MANIFEST, Manifest

# Attempts to open an index that other processes change, and the pause between two of them.
OPENINGS = 20
PAUSE_S = 0.02

# Up to this size all checksums are compared before the first search, which takes some tenths of a second at most.
# Lucene itself reads a posting list only for a query, and does not detect a flipped bit in it.
VERIFIED_BYTES = 1 << 30


def open_verified(index: Path, manifest: Manifest) -> tuple[Any, Manifest]:
    """A reader, and the manifest of its index, which may have changed since `manifest` was read.

    Raises:
        ArtefactError: no Lucene index, a damaged one, or not of these documents.
    """
    for last in (*[False] * OPENINGS, True):
        folder = _folder_of(index)
        try:
            with java_errors(f"{index}: cannot be opened as a Lucene index"):
                reader = _verified(open_reader(index), folder_bytes(index))
            now = _manifest_there(index)
        except (ArtefactError, FileNotFoundError):
            if last or _folder_of(index) == folder:
                raise
        else:
            # Reader and manifest belong to one index only if no process replaced it in between.
            if last or _folder_of(index) == folder:
                break
            close(reader)
        sleep(PAUSE_S)
    if now is not None and _digests(manifest) <= _digests(now):
        manifest = now
    found = int(Exclusive(reader).maxDoc())
    documents, empty = manifest.counts.documents, manifest.counts.get("empty", 0)
    # Stock Anserini skips documents without terms; they cannot be hits.
    if found == documents or now is None and found == documents - empty:
        return reader, manifest
    close(reader)
    raise ArtefactError(
        f"{index}: {found} documents, the manifest says {documents} of which {empty} empty; index again"
    )


def _verified(reader: Any, size: int) -> Any:
    """The reader, after its checksums are compared if the index is at most `VERIFIED_BYTES` large."""
    if size <= VERIFIED_BYTES:
        try:
            Exclusive(our_class("IndexCensus")(reader)).checkIntegrity()
        except BaseException:
            close(reader)
            raise
    return reader


def _folder_of(index: Path) -> int:
    """Identifies the folder that has the name now; 0 if none has."""
    try:
        return index.stat().st_ino
    except FileNotFoundError:
        return 0


def _digests(manifest: Manifest) -> set[str]:
    return {str(shard["sha256"]) for shard in manifest.shards}


def _manifest_there(index: Path) -> Manifest | None:
    path = index / MANIFEST
    return Manifest.from_json(read_json(path, "manifest"), str(path)) if path.is_file() else None
