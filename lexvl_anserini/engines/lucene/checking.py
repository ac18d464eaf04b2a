"""Checks that an index holds what its shards hold, and that its files are as they were written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.engine import ImpactEngine
from lexvl_anserini.engines.index_folder import (
    APPROXIMATE,
    PREPARE,
    RESIDENT,
    list_resident_paths,
    read_commit_id,
    read_report,
    report_digest,
)
from lexvl_anserini.engines.jvm import raise_java_errors, set_environment
from lexvl_anserini.engines.lucene.fields import WholeIndex, open_whole_index
from lexvl_anserini.engines.lucene.writing import NOT_EXACT, list_sources, read_impact_manifest
from lexvl_anserini.engines.resident.choosing import ALWAYS, NEVER, VARIABLE, read_resident_files
from lexvl_anserini.engines.resident.layout import REMEDY
from lexvl_anserini.engines.verifying import is_sound
from lexvl_anserini.ground.claims import compare_requests
from lexvl_anserini.ground.errors import ArtefactError, LexvlError, UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, make_batches, silent
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactDocument, ImpactQuery
from lexvl_anserini.shards.layout import source_digest
from lexvl_anserini.shards.reading import read_impacts, read_vocabulary

log = logging.getLogger(__name__)

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
