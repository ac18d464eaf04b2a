"""Changing an index: appends, replaces or deletes documents, merges indexes and shards into one index; and checks it.

Every change writes a new set of files, which replaces the old one whole or not at all. Both sets share the files that
do not change, so a change costs only what it writes: added documents are a segment of their own, and documents that are
deleted or replaced are marked in their segment (Lucene's live documents). A segment that has few documents beside its
deleted ones, or beside those behind it (`TailMerges.java`), is written again with all behind it, so that documents stay
in the order in which they were added. In an index with texts no document is marked, and its segment is written again:
BM25 scores by Lucene's statistics, which count marked documents. Counts of ours do not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.engine import ImpactEngine
from lexvl_anserini.engines.index_folder import (
    APPROXIMATE,
    PREPARE,
    RESIDENT,
    BuiltIndex,
    Unchanged,
    is_index,
    list_resident_paths,
    read_commit_id,
    read_creator,
    read_report,
    refuse_newer,
    report_digest,
    write_index,
)
from lexvl_anserini.engines.jvm import Exclusive, get_our_class, raise_java_errors, set_environment
from lexvl_anserini.engines.lucene.fields import WholeIndex, get_reader, make_similarity, open_whole_index
from lexvl_anserini.engines.lucene.writing import (
    CHANGES,
    NOT_EXACT,
    IndexOptions,
    finish_index,
    list_sources,
    read_impact_manifest,
    read_source_manifest,
    write_lucene,
)
from lexvl_anserini.engines.resident import layout
from lexvl_anserini.engines.resident.choosing import ALWAYS, NEVER, VARIABLE, read_resident_files
from lexvl_anserini.engines.resident.layout import REMEDY
from lexvl_anserini.engines.verifying import change_index, is_sound
from lexvl_anserini.ground.claims import compare_requests
from lexvl_anserini.ground.errors import ArtefactError, LexvlError, UsageError
from lexvl_anserini.ground.files import PART, sole_writer
from lexvl_anserini.ground.manifest import Counts, EncodedCorpus, Manifest, write_manifest
from lexvl_anserini.ground.progress import Progress, make_batches, silent
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactDocument, ImpactQuery
from lexvl_anserini.shards.layout import check_same_meaning, combine_manifests, source_digest
from lexvl_anserini.shards.reading import expect_counts, read_impacts, read_vocabulary

log = logging.getLogger(__name__)

INCOMING = f"incoming{PART}"  # inside the new folder, for shards until they are merged

# Documents whose postings are compared one by one, and how many of these serve as queries.
SAMPLE = 200
QUERIES = 20
SEED = 20240307

# Terms of a sampled document that become a query of weights 1; fewer where their impacts could sum to 2^24.
QUERY_TERMS = 64

HITS = 10_000

ID_BATCH = 1 << 14

# Opens an index.
Open = Callable[[Path, Manifest], ImpactEngine]


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
    with write_index(index, sources[0], manifest) as part, unchanged, raise_java_errors(f"{index}: cannot be written"):
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
            changed, changes = _note_changes(sources)
            finish_index(part, whole, manifest, counts, options, _entries(sources, manifests), changed, changes)
    return BuiltIndex(index, manifest)


def append(
    index: Path, sources: Sequence[Path], replacing: bool = False, threads: int = 1, progress: Progress = silent
) -> BuiltIndex:
    """Adds the documents of other folders (shards, or indexes) to an index; skips folders that it holds already.

    With `replacing`, shards that the index holds already restore their documents that were deleted or replaced.
    """
    jvm.start()
    before = read_source_manifest(index)  # refuses what cannot be searched exactly
    for source in sources:  # equal bytes of shards may be of other terms
        check_same_meaning(before, read_source_manifest(source), source)
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
                    if not of_source.counts.documents:
                        raise ArtefactError(f"{source}: no document; nothing to append")
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
                changed, changes = _note_changes([index, *new], replacing, gone)
                # Only a replacement can have taken the greatest impact away.
                most = after.counts.max_impact
                if replacing or most is None:
                    known = [manifest.counts.max_impact for manifest in (before, *manifests)]
                    most = whole.max_impact(max(n for n in known if n is not None) if None not in known else None)
                after = _count_again(after, held, gone, most) if changed else after
                counts = {**held, "max_impact": after.counts.max_impact, "fields": fields}
                # In the order of appending: of two documents with one id, the last one is in the index.
                unchanged = [entry for entry in noted if entry["shards"] not in again]
                sources = [*unchanged, *_entries(new, manifests)]
                finish_index(part, whole, after, counts, options, sources, changed, changes, there)
            write_manifest(part, after)
    return BuiltIndex(index, after)


def delete(index: Path, doc_ids: Iterable[str]) -> BuiltIndex:
    """Removes the documents of these ids; the same request again changes nothing."""
    jvm.start()
    distinct = list(dict.fromkeys([doc_ids] if isinstance(doc_ids, str) else doc_ids))
    for doc_id in distinct:
        if str(doc_id).encode(errors="replace").decode().split() != [doc_id]:
            raise ArtefactError(f"{index}: no document {doc_id!r} in it; expected ids, texts without white space")
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
            sources = list_sources(part, before)
            finish_index(part, whole, after, counts, options, sources, *_note_changes([index], request, gone), there)
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
    with suppress(ArtefactError):
        return bool(files := read_resident_files(index)) and all(_is_whole(index / name) for name in files)
    return False


def _is_whole(resident: Path) -> bool:
    """Returns True for a file of resident postings that has its checksum, and whose sections fit each other."""
    with suppress(ArtefactError, OSError), resident.open("rb") as file:
        layout.open_sections(file, resident)
        return is_sound(resident)
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


def _note_changes(folders: Iterable[Path], request: str | None = None, gone: int = 0) -> tuple[bool, list[str]]:
    """Whether documents of folders were deleted or replaced, and by which requests, each where it was last made."""
    reports = [read_report(folder) for folder in folders if is_index(folder)]
    changes = [change for report in reports for change in report.changes if change != request]
    changed = gone > 0 or any(report.changed for report in reports)
    return changed, [*changes, request] if changed and request else changes


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


def check_index(index: Path, shards: Sequence[Path], opened: Open, progress: Progress = silent) -> dict[str, Any]:
    """Compares an index with its shards and with its own checksums; returns what was compared.

    All documents' ids, the counts and the digest of the vocabulary are compared; of `SAMPLE` documents every posting,
    and the scores that `QUERIES` of them give to the others.
    """
    jvm.start()
    problems: list[str] = []
    manifest = read_impact_manifest(index)
    _check_vocabulary(index, manifest, problems)
    with raise_java_errors(f"{index}: damaged"), open_whole_index(index) as whole:
        whole.check_integrity()
        if (twice := whole.duplicate()) is not None:
            problems.append(f"document id {twice!r} occurs twice")
        _check_counts(index, whole, manifest, problems)
    sources = [(folder, read_impact_manifest(folder)) for folder in shards]
    noted = [entry["shards"] for entry in list_sources(index, manifest)]
    for folder, source in sources:
        same = compare_requests(manifest.meaning(), source.meaning())
        if not same:
            problems.append(f"{folder} is of another {', '.join(same.differing)}")
        elif source_digest(source) not in noted:
            problems.append(f"{folder} holds other shards than the index was built from")
        _check_vocabulary(folder, source, problems)
    if not problems:
        _check_resident(index)
        # In the order in which the index received them, whatever the order of the arguments.
        sources.sort(key=lambda source: noted.index(source_digest(source[1])))
        if read_report(index).get("changed") and len(sources) < len(noted):
            raise UsageError(
                f"{index}: documents of it were deleted or replaced; name all {len(noted)} folders of shards that it "
                "holds, the last of which decide"
            )
    compared = {"index": str(index), "documents": manifest.counts.documents, "postings": manifest.counts.postings}
    if not problems:
        compared |= _check_documents(index, manifest, sources, problems, opened, progress)
    if problems:
        raise ArtefactError(f"{index}: {'; '.join(problems)}; build the index again")
    return {**compared, "problems": 0}


def _check_vocabulary(folder: Path, manifest: Manifest, problems: list[str]) -> None:
    try:
        read_vocabulary(folder, manifest)
    except (LexvlError, UnicodeDecodeError) as error:
        problems.append(str(error))


def _check_counts(index: Path, whole: WholeIndex, manifest: Manifest, problems: list[str]) -> None:
    """Compares Lucene's statistics with index.json and the manifest, and these with their digest."""
    if (most := whole.max_impact()) >= SCORE_LIMIT:
        raise ArtefactError(f"{index}: an impact of {most:,}, {NOT_EXACT}")
    deleted, report = sum(segment.deleted for segment in whole.segments()), read_report(index)
    held = {**whole.counts(), "max_impact": most, "deleted": deleted}
    if "digest" not in report:
        problems.append("no digest in index.json, which an older version wrote")
    elif report["digest"] != report_digest(report, manifest):
        problems.append("index.json and manifest.json are not as they were written")
    if report.commit and report.commit != read_commit_id(index):
        problems.append("Lucene's files are not those that index.json was written for")
    for name, count in held.items():
        for where, counts in (("index.json", report), ("manifest.json", manifest.counts)):
            if counts.get(name, count) != count:
                problems.append(f"{count} {name} in the index, {where} says {counts[name]}")


def _check_resident(index: Path) -> None:
    """Checks the files of resident postings, if there are any."""
    files, paths = read_resident_files(index), list_resident_paths(index)
    if not paths and read_report(index).options.get("resident", True):
        log.info("%s: no %s, so that Lucene's postings serve; --repair writes it", index, RESIDENT)
    # An older version leaves files that it does not know, when it changes an index.
    for path in map(index.joinpath, files) if files else paths:
        if not (files and is_sound(path)):
            raise ArtefactError(f"{path}: damaged, of an older version, or not of the index as it is now; {REMEDY}")
    groups = index / APPROXIMATE
    if groups.exists() != bool(read_report(index).approximate_bytes) or groups.exists() and not is_sound(groups):
        raise ArtefactError(f"{groups}: damaged, or missing; write it again with {PREPARE}")


def _check_documents(
    index: Path,
    manifest: Manifest,
    sources: Sequence[tuple[Path, Manifest]],
    problems: list[str],
    opened: Open,
    progress: Progress,
) -> dict[str, int]:
    """Compares every id of the shards, and the postings and scores of a sample."""
    changed = bool(read_report(index).get("changed"))
    sample: list[ImpactDocument] = []
    rng = np.random.default_rng(SEED)
    seen, missing, first = 0, 0, ""
    # The index holds a replaced document's version of the later shards.
    superseded: set[str] = set()
    with open_whole_index(index) as whole:
        for folder, source in reversed(sources):
            documents = read_impacts(folder, source, read_vocabulary(folder, source))
            for batch in make_batches(documents, ID_BATCH):
                new = [document for document in batch if document.doc_id not in superseded]
                if changed:
                    superseded.update(document.doc_id for document in new)
                gone = set(whole.missing(document.doc_id for document in new))
                first, missing = first or min(gone, default=""), missing + len(gone)
                for document in new:
                    if document.doc_id in gone:
                        continue
                    seen += 1
                    # Algorithm R: every document has the same chance.
                    place = len(sample) if len(sample) < SAMPLE else int(rng.integers(seen))
                    if place < SAMPLE:
                        sample[place : place + 1] = [document]
                progress(len(batch))
    if missing and not changed:
        problems.append(f"{missing} documents of the shards are not in the index, the first is {first!r}")
    complete = {entry["shards"] for entry in list_sources(index, manifest)} <= {source_digest(of) for _, of in sources}
    if complete and seen != manifest.counts.documents:
        problems.append(f"{manifest.counts['documents']} documents in the index, {seen} of them in the shards")
    # The scores of every form of the postings.
    for form in (ALWAYS, NEVER) if read_resident_files(index) else (NEVER,):
        with set_environment(**{VARIABLE: form}):
            engine = opened(index, manifest)
        with closing(engine):
            problems += [*_differing_postings(engine, sample), *_differing_scores(engine, sample)]
    return {"ids": seen, "sampled_documents": len(sample), "sampled_queries": min(QUERIES, len(sample))}


def _differing_postings(engine: ImpactEngine, sample: Sequence[ImpactDocument]) -> Iterator[str]:
    """Messages about documents whose postings in the index differ from those in the shards."""
    for document in sample:
        held = engine.impacts(document.doc_id, document.vector)
        for term, impact in document.vector.items():
            if held.get(term) != impact:
                yield f"document {document.doc_id!r}: impact {held.get(term)} of term {term!r}, its shard says {impact}"
                break


def _differing_scores(engine: ImpactEngine, sample: Sequence[ImpactDocument]) -> Iterator[str]:
    """Messages about scores of sampled documents that are not dot products."""
    vectors = {document.doc_id: document.vector for document in sample}
    queries = [_query(engine, document) for document in sample[:QUERIES]]
    for query, hits in zip(queries, engine.search(queries, HITS), strict=True):
        scores = {hit.doc_id: hit.score for hit in hits if hit.doc_id in vectors}
        # A full list says nothing about scores below its last one.
        least = hits[-1].score if len(hits) == HITS else 0
        for doc_id, vector in vectors.items():
            score = sum(vector.get(term, 0) for term in query.vector)
            if scores.get(doc_id, 0) != score and (doc_id in scores or score > least):
                yield f"document {doc_id!r}: score {scores.get(doc_id, 0)} for {query.query_id!r}, expected {score}"
                break


def _query(engine: ImpactEngine, document: ImpactDocument) -> ImpactQuery:
    """A document's first terms as a query whose scores are exact."""
    terms = QUERY_TERMS
    while engine.bound(vector := dict.fromkeys(islice(document.vector, terms), 1)) >= SCORE_LIMIT:
        terms //= 2
    return ImpactQuery(document.doc_id, vector)
