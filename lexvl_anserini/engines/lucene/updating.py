"""Changing an index: appends, replaces or deletes documents, and merges indexes and shards into one index.

Every change writes a new set of files, which replaces the old one whole or not at all. Both sets share the files that
do not change, so a change costs only what it writes: added documents are a segment of their own, and documents that are
deleted or replaced are marked in their segment (Lucene's live documents). A segment that has few documents beside its
deleted ones, or beside those behind it (`TailMerges.java`), is written again with all behind it, so that documents stay
in the order in which they were added. In an index with texts no document is marked, and its segment is written again:
BM25 scores by Lucene's statistics, which count marked documents. Counts of ours do not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.index_folder import (
    BuiltIndex,
    Unchanged,
    is_index,
    list_resident_paths,
    read_commit_id,
    read_creator,
    read_report,
    refuse_newer,
    write_index,
)
from lexvl_anserini.engines.jvm import Exclusive, get_our_class, raise_java_errors
from lexvl_anserini.engines.lucene.fields import get_reader, make_similarity, open_whole_index
from lexvl_anserini.engines.lucene.writing import (
    CHANGES,
    IndexOptions,
    finish_index,
    list_sources,
    read_impact_manifest,
    read_source_manifest,
    write_lucene,
)
from lexvl_anserini.engines.resident import layout
from lexvl_anserini.engines.resident.choosing import read_resident_files
from lexvl_anserini.engines.verifying import change_index, is_sound
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import PART, sole_writer
from lexvl_anserini.ground.manifest import Counts, EncodedCorpus, Manifest, write_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.shards.layout import combine_manifests
from lexvl_anserini.shards.reading import expect_counts, read_vocabulary

log = logging.getLogger(__name__)

INCOMING = f"incoming{PART}"  # inside the new folder, for shards until they are merged


def merge(
    sources: Sequence[Path],
    index: Path,
    threads: int = 1,
    progress: Progress = silent,
    options: IndexOptions | None = None,
) -> BuiltIndex:
    """One index of several folders, each of shards or an index, of one encoder, vocabulary and quantiser."""
    jvm.start()
    options = options or IndexOptions()
    unchanged = Unchanged(sources)
    manifests = [read_source_manifest(source) for source in sources]
    manifest = combine_manifests(manifests, sources)
    with (
        write_index(index, sources[0], manifest) as part,
        unchanged,
        raise_java_errors(f"{index}: cannot be written"),
    ):
        fields: dict[str, str] = {}
        created = read_creator(filter(is_index, sources))
        with _updater(index, part, created, options) as updater:
            for source, of_source in zip(sources, manifests, strict=True):
                with _as_index(source, of_source, part, created, options, threads, progress) as (folder, has):
                    fields = _join_fields(fields, has, source)
                    updater.add(str(folder.absolute()))
            updater.finish(True)
        with open_whole_index(part) as whole:
            whole.refuse_duplicates()
            held = whole.counts()
            expect_counts(f"{index} after merging", held, manifest.counts)
            counts = {**held, "max_impact": manifest.counts.get("max_impact", 0), "fields": fields}
            changed, changes = _join_notes(sources)
            finish_index(part, whole, manifest, counts, options, _entries(sources, manifests), changed, changes)
    return BuiltIndex(index, manifest)


def append(
    index: Path, sources: Sequence[Path], replacing: bool = False, threads: int = 1, progress: Progress = silent
) -> BuiltIndex:
    """Adds the documents of other folders (shards, or indexes) to an index; skips folders that it holds already.

    With `replacing`, shards that the index holds already restore their documents that were deleted or replaced.
    """
    jvm.start()
    read_source_manifest(index)  # refuses what cannot be searched exactly
    if _new(index, sources, replacing):
        with sole_writer(index, folder=True):
            unchanged = Unchanged(sources)
            # Another process may have appended them since the first look.
            if new := _new(index, sources, replacing):
                request = _replacement(sources) if replacing else None
                return _append(index, new, request, unchanged, threads, progress)
    hint = "; --replace brings back what was deleted of them" if read_report(index).changed and not replacing else ""
    log.info("%s: holds these documents already, nothing to do%s", index, hint)
    return BuiltIndex(index, read_impact_manifest(index))


def _append(
    index: Path, new: Sequence[Path], replacing: str | None, reading: Unchanged, threads: int, progress: Progress
) -> BuiltIndex:
    """Adds the documents of folders of which the index lacks some; `replacing` is the request if they may replace."""
    with change_index(index) as part, reading:
        before, report, there = read_impact_manifest(part), read_report(part), _find_resident_files(index)
        options = IndexOptions(**report.options)
        manifests = [read_source_manifest(source) for source in new]
        again, noted = _digests(new), list_sources(part, before)
        unknown = [n for n, source in enumerate(new) if not _digests([source]) <= {e["shards"] for e in noted}]
        after = combine_manifests([before, *(manifests[n] for n in unknown)], [index, *(new[n] for n in unknown)])
        fields = dict(report.fields)
        created = read_creator([index, *filter(is_index, new)])
        with raise_java_errors(f"{index}: cannot be written"):
            with _updater(index, part, created, options) as updater:
                for source, of_source in zip(new, manifests, strict=True):
                    with _as_index(source, of_source, part, created, options, threads, progress) as (folder, has):
                        fields = _join_fields(fields, has, source)
                        if replacing:
                            updater.deleteThoseOf(str(folder.absolute()))
                        else:
                            _refuse_common(index, folder, source)
                        updater.add(str(folder.absolute()))
                updater.finish(False)
            with open_whole_index(part) as whole:
                whole.refuse_duplicates()
                held = whole.counts()
                gone = after.counts.documents - held["documents"]
                if not replacing:
                    expect_counts(f"{index} after appending", held, after.counts)
                changed, changes = _join_notes([index, *new])
                changed |= bool(replacing) and gone > 0
                # Only a replacement can have taken the greatest impact away.
                most = after.counts.max_impact
                if replacing or most is None:
                    known = [manifest.counts.max_impact for manifest in (before, *manifests)]
                    most = whole.max_impact(max(n for n in known if n is not None) if None not in known else None)
                after = _count_again(after, held, gone, most) if changed else after
                counts = {**held, "max_impact": after.counts.max_impact, "fields": fields}
                # In the order of appending: of two documents with one id, the last one is in the index.
                unchanged = [entry for entry in noted if entry["shards"] not in again]
                changes = _write_notes(changes, replacing if changed else None)
                sources = [*unchanged, *_entries(new, manifests)]
                finish_index(part, whole, after, counts, options, sources, changed, changes, there)
            write_manifest(part, after)
    return BuiltIndex(index, after)


def delete(index: Path, doc_ids: Iterable[str]) -> BuiltIndex:
    """Removes the documents of these ids; the same request again changes nothing."""
    jvm.start()
    distinct = list(dict.fromkeys(doc_ids))
    request = f"delete {_digest(sorted(distinct))}"
    if _present(index, distinct, request):
        with sole_writer(index, folder=True):
            # Another process may have deleted them since the first look.
            if present := _present(index, distinct, request):
                return _delete(index, present, request)
    log.info("%s: these documents are deleted already, nothing to do", index)
    return BuiltIndex(index, read_impact_manifest(index))


def _delete(index: Path, doc_ids: Sequence[str], request: str) -> BuiltIndex:
    """Removes documents that are in the index."""
    lines = _lines(doc_ids)
    with change_index(index) as part, raise_java_errors(f"{index}: cannot be written"):
        before, report, there = read_impact_manifest(part), read_report(part), _find_resident_files(index)
        options = IndexOptions(**report.options)
        with _updater(index, part, read_creator([index]), options) as updater:
            updater.delete(lines)
            updater.finish(False)
        with open_whole_index(part) as whole:
            held = whole.counts()
            gone = len(doc_ids)
            expect_counts(f"{index} after deleting", held, {"documents": before.counts.documents - gone})
            if not held["documents"]:
                raise ArtefactError(f"{index}: no document would be left; remove the folder instead")
            after = _count_again(before, held, gone, whole.max_impact(before.counts.max_impact))
            counts = {**held, "max_impact": after.counts.max_impact, "fields": report.fields}
            changes = _write_notes(report.changes, request)
            sources = list_sources(part, before)
            finish_index(part, whole, after, counts, options, sources, True, changes, there)
        write_manifest(part, after)
    return BuiltIndex(index, after)


def repair(index: Path) -> bool:
    """Writes the resident postings of an index again if they are missing, older than it, or damaged; True if so."""
    jvm.start()
    if _needs_no_repair(index):
        return False
    with sole_writer(index, folder=True):
        # Another process may have repaired it since the first look.
        if _needs_no_repair(index):
            return False
        with raise_java_errors(f"{index}: damaged"), open_whole_index(index) as whole:
            whole.check_integrity()
        with change_index(index) as part, raise_java_errors(f"{index}: cannot be written"):
            manifest, report = read_impact_manifest(part), read_report(part)
            options, sources = IndexOptions(**report.options), list_sources(part, manifest)
            there: Mapping[str, str] = {}
            with suppress(ArtefactError):
                there = {state: name for state, name in _find_resident_files(index).items() if _is_whole(index / name)}
            with open_whole_index(part) as whole:
                counts = {**whole.counts(), "max_impact": whole.max_impact(), "fields": report.fields}
                changes = report.get(CHANGES, ())
                finish_index(part, whole, manifest, counts, options, sources, report.changed, changes, there)
    return True


def _find_resident_files(index: Path) -> dict[str, str]:
    """The files of an index's resident postings by the state of the segment that each has."""
    files = read_resident_files(index)
    with open_whole_index(index) as whole:
        segments = whole.segments()
    if [of.documents for of in files.values()] != [segment.documents for segment in segments]:
        return {}
    # One that was written without deleted documents has not all of its segment.
    pairs = zip(segments, files.items(), strict=True)
    return {segment.state: name for segment, (name, of) in pairs if of.ids == of.documents}


def _needs_no_repair(index: Path) -> bool:
    """Returns True for an index whose resident postings are sound, or that is to have none."""
    report = read_report(index)
    if not IndexOptions(**report.options).resident:
        return not list_resident_paths(index)
    try:
        files = read_resident_files(index)
    except ArtefactError:
        return False
    return bool(files) and all(_is_whole(index / name) for name in files)


def _is_whole(resident: Path) -> bool:
    """Returns True for a file of resident postings that has its checksum, and whose sections fit each other."""
    try:
        with resident.open("rb") as file:
            layout.open_sections(file, resident)
        return is_sound(resident)
    except (ArtefactError, OSError):
        return False


@contextmanager
def _updater(index: Path, part: Path, created: int, options: IndexOptions) -> Iterator[Any]:
    """Yields the Java updater of `part`, the new folder of an index; an exception discards its changes."""
    settings = (str(part.absolute()), make_similarity(), created, not options.text)
    with refuse_newer(index):
        updater = Exclusive(get_our_class("IndexUpdater")(*settings))
    try:
        yield updater
    except BaseException:
        updater.abort()
        raise


@contextmanager
def _as_index(
    source: Path, manifest: Manifest, part: Path, created: int, options: IndexOptions, threads: int, progress: Progress
) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """Yields an index with a source's documents, and its fields; shards are indexed in a temporary folder."""
    if is_index(source):
        report = read_report(source)
        # Resident postings are written for the whole, whatever its parts have.
        if replace(IndexOptions(**report.options), resident=options.resident) != options:
            expected = options.to_json()
            raise ArtefactError(f"{source}: built with {report['options']}, expected {expected}; build it again")
        with refuse_newer(source):
            yield source, report.fields
        progress(manifest.counts.documents)
        return
    folder = part / INCOMING
    folder.mkdir()
    vocabulary = read_vocabulary(source, manifest)
    # Resident postings are written for the whole.
    own = replace(options, resident=False)
    counts = write_lucene(source, folder, manifest, vocabulary, own, threads, progress, created)
    total = {name: counts[name] for name in ("documents", "empty", "postings", "max_impact")}
    expect_counts(str(source), total, manifest.counts)
    yield folder, counts["fields"]
    rmtree(folder)


def _join_fields(fields: Mapping[str, str], more: Mapping[str, str], source: Path) -> dict[str, str]:
    for name, kind in more.items():
        if fields.get(name, kind) != kind:
            raise ArtefactError(f"{source}: {name} is {kind}, in the others {fields[name]}; give it one type")
    return {**fields, **more}


def _new(index: Path, sources: Sequence[Path], replacing: bool) -> list[Path]:
    """The sources that the index does not hold yet, or no longer holds completely."""
    report = read_report(index)
    if replacing and report.changed:
        return [] if report.get(CHANGES, ())[-1:] == [_replacement(sources)] else list(sources)
    there = _digests([index])
    return [source for source in sources if not _digests([source]) <= there]


def _digests(folders: Iterable[Path]) -> set[str]:
    """Digests of the encoded corpora that these folders (indexes or shards) hold."""
    return {entry["shards"] for folder in folders for entry in list_sources(folder, read_impact_manifest(folder))}


def _entries(sources: Sequence[Path], manifests: Sequence[Manifest]) -> list[Mapping[str, Any]]:
    """The encoded corpora that folders hold, with the commit of an index that lost or replaced some of them."""
    commits = [{"commit": read_commit_id(source)} if read_report(source).changed else {} for source in sources]
    triples = zip(sources, manifests, commits, strict=True)
    return [{**entry, **commit} for source, of, commit in triples for entry in list_sources(source, of)]


def _refuse_common(index: Path, other: Path, source: Path) -> None:
    with get_reader(other) as reader, open_whole_index(index) as whole:
        common = whole.common(reader)
    if common is not None:
        raise ArtefactError(f"{source}: document id {common!r} is in {index} already; --replace takes the new one")


def _present(index: Path, doc_ids: Sequence[str], request: str) -> list[str]:
    """Those of the ids that are to be deleted: all of them, or what is there again after this request deleted them."""
    with open_whole_index(index) as whole:
        missing = whole.missing(doc_ids)
    if missing and request not in read_report(index).get(CHANGES, ()):
        raise ArtefactError(f"{index}: no document {missing[0]!r} in it ({len(missing)} such ids); nothing was deleted")
    gone = set(missing)
    return [doc_id for doc_id in doc_ids if doc_id not in gone]


def _join_notes(folders: Iterable[Path]) -> tuple[bool, list[str]]:
    """Whether documents of these folders were deleted or replaced, and by which changes."""
    reports = [read_report(folder) for folder in folders if is_index(folder)]
    return any(report.changed for report in reports), [change for report in reports for change in report.changes]


def _write_notes(changes: Iterable[str], request: str | None) -> list[str]:
    """The changes of an index, each at the place of its last time; a request is the last one."""
    return [*(change for change in changes if change != request), *([request] if request else ())]


def _lines(doc_ids: Iterable[str]) -> bytes:
    return b"".join(f"{doc_id}\n".encode() for doc_id in doc_ids)


def _digest(names: Iterable[str]) -> str:
    """The first 16 hex digits of the SHA-256 of names."""
    return sha256(_lines(names)).hexdigest()[:16]


def _replacement(sources: Sequence[Path]) -> str:
    """A request to replace documents by those of these sources, as index.json records it."""
    return f"replace {_digest(digest for source in sources for digest in sorted(_digests([source])))}"


def _count_again(manifest: Manifest, held: Mapping[str, int], gone: int, most: int) -> Manifest:
    """The manifest after `gone` documents were removed; counts are those of the index, `most` its greatest impact."""
    counts = Counts({name: held[name] for name in ("documents", "empty", "postings")} | {"max_impact": most})
    deleted = manifest.corpus.deleted + gone
    corpus = EncodedCorpus({**manifest.corpus, "documents": held["documents"], "deleted": deleted})
    return replace(manifest, counts=counts, corpus=corpus)
