"""What index.json and manifest.json record about a Lucene index: its sources, counts, fields, options and digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lexvl_anserini.engines.index_folder import (
    RESIDENT,
    folder_bytes,
    is_index,
    read_report,
    report_digest,
    write_report,
)
from lexvl_anserini.engines.jvm import lucene_version
from lexvl_anserini.engines.lucene.fields import longest_lists
from lexvl_anserini.engines.lucene.versions import commit_id, dotted
from lexvl_anserini.engines.lucene.writing import IndexOptions
from lexvl_anserini.engines.resident import layout
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import Manifest, read_manifest
from lexvl_anserini.ground.records import SCORE_LIMIT
from lexvl_anserini.shards.collection import source_digest

# What is wrong with an impact of 2^24 or more, which older versions accepted.
NOT_EXACT = (
    f"above {SCORE_LIMIT - 1:,} up to which Lucene's scores are exact: not searchable exactly; quantise again (encode "
    "the corpus with fewer bits, and index it)"
)

# The key of index.json for deletions and replacements, in their order: the same request again finds itself there.
CHANGES = "changes"


def read_impact_manifest(folder: Path) -> Manifest:
    """The manifest of impact shards, or of their index.

    Raises:
        ArtefactError: no such folder, unfinished, or an index of an older version.
        UsageError: it is of another kind.
    """
    manifest = read_manifest(folder)
    if manifest.kind != "impact":
        raise UsageError(f"{folder}: {manifest.kind}; only impact indexes are merged and changed; build it again")
    if is_index(folder) and not set(IndexOptions().to_json()) <= set(read_report(folder).options):
        raise ArtefactError(f"{folder}: an index of an older version, or with a damaged index.json; build it again")
    return manifest


def source_manifest(folder: Path) -> Manifest:
    """The manifest of impact shards or of their index, of which documents are to be taken.

    Raises:
        ArtefactError, UsageError: as `read_impact_manifest`; or it holds impacts of 2^24 or more.
    """
    manifest = read_impact_manifest(folder)
    if (most := manifest.counts.max_impact or 0) >= SCORE_LIMIT:
        raise ArtefactError(f"{folder}: an impact of {most:,}, {NOT_EXACT}")
    return manifest


def sources_of(folder: Path, manifest: Manifest) -> list[Mapping[str, Any]]:
    """The encoded corpora that an index was built from, or that shards hold."""
    if is_index(folder) and (noted := read_report(folder).get("sources")):
        return list(noted)
    return [{"corpus": manifest.corpus.name, "documents": manifest.counts.documents, "shards": source_digest(manifest)}]


def finish_index(
    part: Path,
    manifest: Manifest,
    found: Mapping[str, Any],
    options: IndexOptions,
    sources: Sequence[Mapping[str, Any]],
    changed: bool = False,
    changes: Sequence[str] = (),
) -> None:
    """Writes what an index has beside Lucene's files: its resident postings, if it has enough of them, and index.json.

    `changed` is True if documents of the sources were deleted or replaced, by `changes`.
    """
    # In a changed index the name is a link to the file of the older one.
    (part / RESIDENT).unlink(missing_ok=True)
    if options.resident and found["postings"] >= layout.LEAST_POSTINGS:
        from lexvl_anserini.engines.resident.packing import write_resident

        write_resident(part, found["max_impact"])
        found = {**found, "resident_bytes": (part / RESIDENT).stat().st_size}
    version = dotted(lucene_version())
    about = {
        "engine": "lucene",
        "lucene": version,
        **found,
        "options": options.to_json(),
        "sources": sources,
        "changed": changed,
        **({CHANGES: list(changes)} if changes else {}),
    }
    about |= {"longest_lists": longest_lists(part), "bytes": folder_bytes(part), "commit": commit_id(part)}
    write_report(part, {**about, "digest": report_digest(about, manifest)})
