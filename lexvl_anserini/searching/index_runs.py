"""Runs of an index: their manifests, the search that writes them, and the texts of their documents."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.data.dataset import load_reference
from lexvl_anserini.engines.engine import find_engine
from lexvl_anserini.engines.index_folder import BuiltIndex, list_commits, read_report
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.machine import list_versions
from lexvl_anserini.ground.manifest import NAMED, Manifest, RunManifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.queries.query_source import TopicSource
from lexvl_anserini.runs.order import RankedList
from lexvl_anserini.runs.trec import write_run
from lexvl_anserini.searching.search import Search
from lexvl_anserini.searching.searcher import SearchCost, Searcher, close_after
from lexvl_anserini.shards.layout import source_digest

log = logging.getLogger(__name__)

# What decides a score besides our own code.
VERSIONED = ("lexvl-anserini", "pyserini", "faiss-cpu", "torch", "transformers")


def plan_run(
    searcher: Searcher,
    source: TopicSource,
    hits: int,
    remove_query: bool,
    strict_scores: bool = False,
    output_format: str = "trec",
    note: Mapping[str, Any] = {},
) -> RunManifest:
    """Describes a run that is to be written, with the note of its search."""
    index, manifest = searcher.index, searcher.index.manifest
    return RunManifest(
        topics=source.label,
        topics_sha256=source.noted(),
        dataset=source.judged.name if source.judged else "",
        split=(source.judged.split or "") if source.judged else "",
        data_dir=source.judged.data_dir if source.judged else None,
        corpus=manifest.corpus,
        encoder=searcher.encoder.describe(manifest, note),
        quantiser=manifest.quantiser,
        index=name_content(index.path, manifest),
        hits=hits,
        remove_query=remove_query,
        strict_scores=strict_scores,
        output_format=output_format,
        versions=list_versions(VERSIONED),
    )


def write_index_run(
    searcher: Searcher,
    source: TopicSource,
    search: Search,
    request: RunManifest,
    run: Path,
    progress: Progress = silent,
) -> RunManifest:
    """Searches all topics of a source and writes the planned run; returns its manifest with counts and efficiency."""
    stream = source.stream()
    first = next(stream, None)
    if first is None:
        raise DataError(f"{source.label}: no topic; nothing to search")
    cost, index = SearchCost(), searcher.index
    search = replace(search, remove_query=request.remove_query)
    lists = searcher.lists(chain([first], stream), request.hits, search, cost)

    def measure() -> dict[str, Any]:
        return {"efficiency": cost.compute_figures(index.manifest, index.path), "left_out": cost.removed}

    def watch(lists: Iterable[RankedList]) -> Iterator[RankedList]:
        for hits in lists:
            yield hits
            progress(1)

    watched = watch(close_after(searcher, lists))
    written = write_run(run, watched, request, request.encoder.name, measure)
    if cost.removed:
        log.info(
            "%s: in %d of %d lists the document whose id is the topic's is left out (--no-remove-query keeps it)",
            run,
            cost.removed,
            written.counts.topics,
        )
    return written


def name_content(index: Path, manifest: Manifest) -> str:
    """Names an index with a digest of what decides its answers, `demo@0123456789ab`; equal for equal answers.

    The shards and their vocabulary say what an index holds until documents are deleted or replaced; then the ids of
    Lucene's commits do.
    """
    report = read_report(index)
    content = {
        "shards": [source["shards"] for source in report.get("sources") or ()] or [source_digest(manifest)],
        "vocabulary": manifest.vocabulary_digest,
        "commits": list_commits(index),
        **{key: report.get(key) for key in ("engine", "options", "faiss", "files", "collection")},
    }
    return f"{index.name}@{sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:NAMED]}"


def read_texts(hits: RankedList, index: BuiltIndex, data_dir: str | None) -> dict[str, str]:
    """Reads the contents of some documents: stored in the index, else from their corpus, which it reads once."""
    engine = find_engine(index.path, index.manifest.kind)
    if (stored := engine.load_texts(index.path, hits.doc_ids)) is not None:
        return stored
    dataset = load_reference(index.manifest.corpus.ref.at(data_dir))
    doc_ids = set(hits.doc_ids)
    return {d.doc_id: d.contents or str(d.image or "") for d in dataset.documents() if d.doc_id in doc_ids}
