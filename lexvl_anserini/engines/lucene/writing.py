"""Writes shards to Lucene: one call per piece of a shard; Java's threads index while Python reads the next piece, and
one packs resident postings while another writes Lucene's files.

Finds the types of metadata fields, by reading all values before the first one is indexed. Records in index.json and
manifest.json what an index holds: its sources, counts, fields, options and digest.

| values of a key                 | type    | in Lucene                                  |
|---------------------------------|---------|--------------------------------------------|
| texts, true and false           | keyword | one term, sorted doc values                |
| integers of 64 bits             | long    | point, numeric doc values                  |
| numbers with a fraction         | double  | point, numeric doc values                  |
| YYYY-MM-DD, all of them         | date    | as long: days since 1970-01-01             |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from lexvl_anserini.data.checks import MAX_ID_BYTES, fits_index
from lexvl_anserini.engines.engine import EngineOptions
from lexvl_anserini.engines.index_folder import (
    APPROXIMATE,
    RESIDENT,
    IndexReport,
    format_version,
    is_index,
    measure_folder,
    measure_resident,
    read_commit_id,
    read_report,
    report_digest,
    write_report,
)
from lexvl_anserini.engines.jvm import Exclusive, get_our_class, read_lucene_version
from lexvl_anserini.engines.lucene.fields import (
    META,
    TEXT,
    WholeIndex,
    make_java_map,
    make_similarity,
    make_text_analyzer,
)
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.manifest import MANIFEST, Manifest, read_manifest
from lexvl_anserini.ground.progress import Progress
from lexvl_anserini.ground.records import SCORE_LIMIT, Vocabulary
from lexvl_anserini.shards.layout import source_digest
from lexvl_anserini.shards.reading import Columns, check_shards, expect_counts, read_metadata, read_shard, shard_pieces

COUNTED = ("documents", "empty", "postings")  # the counts of every shard that Java returns, in its order


@dataclass(frozen=True)
class IndexOptions(EngineOptions):
    """What a Lucene index holds besides ids and impacts.

    Attributes:
        text: the documents' texts, analysed, for BM25.
        store_text: the texts as they are, to show them.
        term_vectors: each document's vector, to read it back (feedback).
        resident: the postings once more, in the form that is searched fastest (`engines/resident`).
    """

    text: bool = False
    store_text: bool = False
    term_vectors: bool = False
    metadata: bool = True
    resident: bool = True

    def to_json(self) -> dict[str, bool]:
        """For index.json; without `resident` where it has its default, as older versions wrote it."""
        return {name: value for name, value in asdict(self).items() if name != "resident" or not value}


def write_lucene(
    shards: Path,
    folder: Path,
    manifest: Manifest,
    vocabulary: Vocabulary,
    options: IndexOptions,
    threads: int,
    progress: Progress,
    created: int | None = None,
) -> dict[str, Any]:
    """Writes the shards' documents into `folder`; returns their counts and their fields.

    The index is one segment, with documents in the order of the shards, whatever the number of threads; its resident
    postings are written beside it. `created` is the major version of Lucene that counts as the index's creator, for one
    that joins older indexes; default: that of this process.
    """
    types = read_metadata_types(shards, manifest) if options.metadata else {}
    entries, numbered = [], enumerate(check_shards(shards, manifest))
    resident = folder / RESIDENT if options.resident else None
    creator, file = created or read_lucene_version()[0], resident and str(resident.absolute())
    settings = (make_java_map(types), creator, threads, file)
    with _writer(folder, len(manifest.shards), vocabulary, options, settings) as writer:
        done = 0
        for number, (path, entry) in numbered:
            entries.append((path, entry))
            for piece in shard_pieces(path):
                with _explain_by_python(entries, vocabulary, writer):
                    if isinstance(piece, Columns):
                        writer.addColumns(number, *piece)
                    else:
                        writer.addJson(number, piece)
                before, done = done, int(writer.documents())
                progress(done - before)
        with _explain_by_python(entries, vocabulary, writer):
            counted = np.frombuffer(writer.finish().tostring(), dtype="<i8")
        progress(int(writer.documents()) - done)
    if resident and (slots := writer.slots()):
        from lexvl_anserini.engines.resident.packing import finish_resident

        finish_resident(resident, Exclusive(slots), Exclusive(writer.ids()), int(writer.documents()))
    per_shard = counted[:-2].reshape(-1, len(COUNTED))
    for (path, entry), counts in zip(entries, per_shard.tolist(), strict=True):
        expect_counts(str(path), dict(zip(COUNTED, counts, strict=True)), entry)
    total = dict(zip(COUNTED, per_shard.sum(axis=0).tolist(), strict=True))
    fields = ({TEXT: "text"} if options.text else {}) | {META + key: kind for key, kind in types.items()}
    return {**total, "impacts": int(counted[-2]), "max_impact": int(counted[-1]), "fields": fields}


@contextmanager
def _writer(
    folder: Path, shards: int, vocabulary: Vocabulary, options: IndexOptions, settings: tuple[Any, ...]
) -> Iterator[Any]:
    """Yields the Java writer; an exception releases the folder, so that no lock remains in this process."""
    terms = [term.encode() for term in vocabulary.terms]
    ends = np.cumsum([len(term) for term in terms], dtype="<i4").tobytes()
    arguments = (str(folder.absolute()), make_similarity(), make_text_analyzer(), b"".join(terms), ends, shards)
    flags = (options.text, options.store_text, options.term_vectors)
    writer = Exclusive(get_our_class("ImpactWriter")(*arguments, *flags, *settings))
    try:
        yield writer
    except BaseException:
        writer.abort()
        raise


@contextmanager
def _explain_by_python(entries: list[tuple[Path, Any]], vocabulary: Vocabulary, writer: Any) -> Iterator[None]:
    """After an exception of Java, Python reads the shard again and raises its own error, which names the line."""
    from jnius import JavaException

    try:
        yield
    except JavaException:
        failed = int(writer.failedShard())
        if failed >= 0:
            for _ in read_shard(entries[failed][0], vocabulary):
                pass
        raise


DATE_SUFFIX = "_date"  # keys of dates end so

LONG = range(-(2**63), 2**63)


def read_metadata_types(shards: Path, manifest: Manifest) -> dict[str, str]:
    """Key to type, of all metadata in the shards; keys in alphabetical order."""
    # Shards that encode wrote say whether they have metadata; others have to be read.
    if "shard_format" in manifest.layout and not manifest.layout.get("metadata"):
        return {}
    examples: dict[str, dict[str, Any]] = {}
    for entry in manifest.shards if manifest.may_have_metadata else ():
        for metadata in read_metadata(shards / entry["name"]):
            for key, value in metadata.items():
                if value is not None:
                    examples.setdefault(key, {}).setdefault(find_value_type(key, value), value)
    return {key: find_key_type(key, kinds) for key, kinds in sorted(examples.items())}


def find_value_type(key: str, value: Any) -> str:
    """The type of one value."""
    if isinstance(value, bool):
        return "keyword"
    if isinstance(value, int) and value in LONG:
        return "long"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str) and fits_index(value):
        return "date" if is_date(value) else "keyword"
    if isinstance(value, str):
        raise ArtefactError(
            f"metadata {key!r}: a text of {len(value.encode()):,} bytes, an index holds {MAX_ID_BYTES:,}; shorten it "
            "or index with --no-metadata"
        )
    raise ArtefactError(
        f"metadata {key!r}: {str(value)[:60]!r} is a {type(value).__name__}; expected a text, a number below 2^63 or a "
        "date, or index with --no-metadata"
    )


def is_date(text: str) -> bool:
    """True for YYYY-MM-DD."""
    with suppress(ValueError):
        return len(text) == 10 and date.fromisoformat(text).isoformat() == text
    return False


def find_key_type(key: str, kinds: Mapping[str, Any]) -> str:
    """The type of a key whose values have these types (each with an example); a date among texts is a text."""
    texts = set(kinds) == {"date", "keyword"} and not key.endswith(DATE_SUFFIX)
    if len(kinds) == 1 or texts:
        kind = "keyword" if texts else next(iter(kinds))
        if kind == "keyword" and key.endswith(DATE_SUFFIX):
            raise ArtefactError(
                f"metadata {key!r}: {kinds[kind]!r}, expected a date YYYY-MM-DD, which its name promises"
            )
        return kind
    examples = ", ".join(f"{value!r} ({kind})" for kind, value in sorted(kinds.items()))
    raise ArtefactError(f"metadata {key!r} has values of more than one type: {examples}; give it one type")


# What is wrong with an impact of 2^24 or more, which older versions accepted.
NOT_EXACT = (
    f"above {SCORE_LIMIT - 1:,} up to which Lucene's scores are exact: not searchable exactly; quantise again (encode "
    "the corpus with fewer bits, and index it)"
)

# The key of index.json for deletions and replacements, in their order: the same request again finds itself there.
CHANGES = "changes"


def read_impact_manifest(folder: Path) -> Manifest:
    """The manifest of impact shards, or of their index."""
    manifest = read_manifest(folder)
    if manifest.kind != "impact":
        raise UsageError(f"{folder}: {manifest.kind}; only impact indexes are merged and changed; build it again")
    if is_index(folder) and not set(IndexOptions().to_json()) <= set(read_report(folder).options):
        raise ArtefactError(f"{folder}: an index of an older version, or with a damaged index.json; build it again")
    return manifest


def read_source_manifest(folder: Path) -> Manifest:
    """The manifest of impact shards or of their index, of which documents are to be taken; refuses impacts of 2^24."""
    manifest = read_impact_manifest(folder)
    if (most := manifest.counts.max_impact or 0) >= SCORE_LIMIT:
        raise ArtefactError(f"{folder}: an impact of {most:,}, {NOT_EXACT}")
    return manifest


def list_sources(folder: Path, manifest: Manifest) -> list[Mapping[str, Any]]:
    """The encoded corpora that an index was built from, or that shards hold."""
    if is_index(folder) and (noted := read_report(folder).get("sources")):
        return list(noted)
    return [{"corpus": manifest.corpus.name, "documents": manifest.counts.documents, "shards": source_digest(manifest)}]


def finish_index(
    part: Path,
    whole: WholeIndex,
    manifest: Manifest,
    counts: Mapping[str, Any],
    options: IndexOptions,
    sources: Sequence[Mapping[str, Any]],
    changed: bool = False,
    changes: Sequence[str] = (),
    there: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Writes what an index has beside Lucene's files: its resident postings, if it has enough of them, and index.json.

    `changed` is True if documents of the sources were deleted or replaced, by `changes`; `there` are files of resident
    postings by the segment that each was written from. `whole` is the open index of `part`.
    """
    segments = whole.segments()
    if deleted := sum(segment.deleted for segment in segments):
        counts = {**counts, "deleted": deleted}
    # What was measured of the older one does not hold for this one.
    (part / APPROXIMATE).unlink(missing_ok=True)
    if options.resident:
        from lexvl_anserini.engines.resident.packing import write_files

        files = write_files(part, segments, counts["max_impact"], there)
        counts = {**counts, "resident_bytes": measure_resident(part), **({"resident_files": files} if files else {})}
    report = {"engine": "lucene", "lucene": format_version(read_lucene_version()), **counts}
    report |= {"options": options.to_json(), "sources": sources, "changed": changed}
    report |= {CHANGES: list(changes)} if changes else {}
    report |= {"longest_lists": whole.longest_lists(), "bytes": measure_folder(part), "commit": read_commit_id(part)}
    write_report(part, report, manifest)


def read_written_report(index: Path, manifest: Manifest | None) -> IndexReport:
    """The content of index.json, which goes with manifest.json, by their digest, and with the commit that it names."""
    report = read_report(index)
    if manifest is not None and report.digest and report.digest != report_digest(report, manifest):
        raise ArtefactError(f"{index}: index.json and manifest.json are not as they were written; index again")
    if report.commit and report.commit != read_commit_id(index):
        raise ArtefactError(f"{index}: Lucene's files are not those that index.json was written for; index again")
    return report


def find_manifest(index: Path) -> Manifest | None:
    """The manifest in the folder of an index; None in one that stock Anserini built."""
    path = index / MANIFEST
    return Manifest.from_json(read_json(path, "manifest"), str(path)) if path.is_file() else None
