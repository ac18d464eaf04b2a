"""`search_index`, and the search of one index by the commands, which writes runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from lexvl_anserini.data.dataset import load_reference
from lexvl_anserini.engines.index_folder import BuiltIndex, read_report
from lexvl_anserini.engines.lucene.versions import commit_id
from lexvl_anserini.engines.opening import engine_of
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.machine import list_versions
from lexvl_anserini.ground.manifest import NAMED, Manifest, RunManifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.ground.typed import check_count
from lexvl_anserini.queries.clauses import Clause, Query, TreeQuery
from lexvl_anserini.queries.query_source import TYPED, TopicSource, check_readable, check_terms
from lexvl_anserini.runs.order import RankedList
from lexvl_anserini.runs.trec import DEFAULT_HITS, write_run
from lexvl_anserini.searching.refine import Refinement, SearchSettings
from lexvl_anserini.searching.searcher import EncoderChanges, SearchCost, Searcher, refuse_other_kinds
from lexvl_anserini.shards.manifests import source_digest

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.searching.cuts import Cut

log = logging.getLogger(__name__)

# What decides a score besides our own code.
VERSIONED = ("lexvl-anserini", "pyserini", "faiss-cpu", "torch", "transformers")


def search_index(
    index: BuiltIndex | Path | str,
    topics: str | Query | Iterable[str | Query],
    hits: int = DEFAULT_HITS,
    remove_query: bool = False,
    threads: int = 1,
    model: Encoder | None = None,
    manifest: Path | str | None = None,
    device: str = "auto",
    batch_size: int = 32,
    tally: SearchCost | None = None,
    refinement: Refinement | None = None,
    feedback_shards: Path | str | None = None,
    passages: str | None = None,
    cut: Cut | None = None,
) -> Iterator[RankedList]:
    """Searches an index; yields one ranked list per topic, in their order, empty where nothing matches.

    Args:
        index: an index, its folder, or its URL in a store.
        topics: topics, encoded here; or encoded queries, or query trees. All of one type. One of them may be given by
            itself, and a text in place of a topic; the topics of several texts have the ids 1, 2, ...
        hits: length of a list at most.
        remove_query: leave out a document whose id is the topic's (BEIR's rule), before the cut.
        threads: of the engine, where it can use more than one.
        model: encodes the topics; default the encoder in the index's manifest.
        manifest: of the shards, for an index that stock Pyserini built.
        device: of the default model.
        batch_size: topics per forward pass.
        tally: counts what the search costs.
        refinement: lists of terms, cuts, filters, texts and feedback, for an impact index.
        feedback_shards: the index's shards, for feedback where the index holds no term vectors.
        passages: `max`, `sum:N` or `sum`: hits are the documents of an index of passages, see `SearchSettings`.
        cut: the least score of a hit; the cut at `hits` comes first.

    Raises:
        ArtefactError: not an index, or its vocabulary is not the model's.
        UsageError: a topic that the encoder cannot read, or a query of another kind than the index.
    """
    check_count("hits", hits)
    settings = SearchSettings(remove_query, threads, batch_size, refinement, feedback_shards, passages, cut)
    searcher = Searcher(index, model, EncoderChanges(device=device), manifest)
    return to_the_end(searcher, searcher.lists(topics, hits, settings, tally))


def to_the_end(searcher: Searcher, lists: Iterator[RankedList]) -> Iterator[RankedList]:
    """Passes lists on; closes their searcher after the last, or where they are left."""
    with searcher:
        yield from lists


@dataclass(frozen=True)
class IndexSearch:
    """A search of one index, ready for its queries.

    index             the index
    encoder           changes of its encoder
    settings          of its search
    refinement_note   the user's refinement options, for the run's manifest
    """

    index: BuiltIndex
    encoder: EncoderChanges = EncoderChanges()
    settings: SearchSettings = SearchSettings()
    refinement_note: Mapping[str, Any] = field(default_factory=dict)

    def check(self, vocabulary: Path | None, tree: Clause | None = None) -> None:
        """Checks the refinement, and a query tree, against the index before anything is loaded."""
        refinement = self.settings.refinement
        if refinement is not None:
            refuse_other_kinds(self.index.manifest, self.index.path, self.settings)
        for clause in (tree, refinement and refinement.where):
            if clause:
                check_terms(clause, vocabulary, self.index.manifest)

    def searcher(self) -> Searcher:
        """The index and its encoder, to be opened."""
        return Searcher(self.index, encoder=self.encoder)

    def one(self, query: Clause | Topic, hits: int, searcher: Searcher) -> RankedList:
        """The hits of a typed query: a query tree, or a topic that is encoded first."""
        if isinstance(query, Topic):
            check_readable(query, searcher.model)
        typed = query if isinstance(query, Topic) else TreeQuery(TYPED, query)
        [hits_of_topic] = searcher.lists([typed], hits, self.settings)
        return hits_of_topic

    def run_manifest(
        self, source: TopicSource, hits: int, remove_query: bool, strict_scores: bool, output_format: str
    ) -> RunManifest:
        """The manifest of a run that is to be written."""
        manifest = self.index.manifest
        return RunManifest(
            topics=source.label,
            topics_sha256=source.noted(),
            dataset=source.judged.name if source.judged else "",
            split=(source.judged.split or "") if source.judged else "",
            data_dir=source.judged.data_dir if source.judged else None,
            corpus=manifest.corpus,
            encoder=self.encoder.entry(manifest, self.refinement_note),
            quantiser=manifest.quantiser,
            index=named_content(self.index.path, manifest),
            hits=hits,
            remove_query=remove_query,
            strict_scores=strict_scores,
            output_format=output_format,
            versions=list_versions(VERSIONED),
        )

    def write(self, source: TopicSource, request: RunManifest, run: Path, progress: Progress = silent) -> RunManifest:
        """Searches all topics of a source and writes their run; returns its manifest with counts and efficiency."""
        stream = source.stream()
        first = next(stream, None)
        if first is None:
            raise DataError(f"{source.label}: no topic; nothing to search")
        tally, searcher = SearchCost(), self.searcher()
        settings = replace(self.settings, remove_query=request.remove_query)
        lists = searcher.lists(chain([first], stream), request.hits, settings, tally)

        def measured() -> dict[str, Any]:
            figures = tally.efficiency(self.index.manifest, self.index.path)
            return {"efficiency": figures, "left_out": tally.removed}

        written = write_run(
            run, _watched(to_the_end(searcher, lists), progress), request, request.encoder.name, measured
        )
        if tally.removed:
            log.info(
                "%s: in %d of %d lists the document whose id is the topic's is left out (--no-remove-query keeps it)",
                run,
                tally.removed,
                written.counts.topics,
            )
        return written


def named_content(index: Path, manifest: Manifest) -> str:
    """The name of an index with a digest of what decides its answers, `demo@0123456789ab`; equal for equal answers.

    The shards say what an index holds until documents are deleted or replaced; then the id of Lucene's commit does.
    """
    report = read_report(index)
    content = {
        "shards": [source["shards"] for source in report.get("sources") or ()] or [source_digest(manifest)],
        "commit": commit_id(index) if report.changed or not report else None,
        **{key: report.get(key) for key in ("engine", "options", "faiss", "files", "collection")},
    }
    return f"{index.name}@{sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:NAMED]}"


def texts_of(hits: RankedList, index: BuiltIndex, data_dir: str | None) -> dict[str, str]:
    """The contents of some documents: stored in the index, else found by reading their corpus once."""
    engine = engine_of(index.path, index.manifest.kind)
    if (stored := engine.stored_texts(index.path, hits.doc_ids)) is not None:
        return stored
    dataset = load_reference(index.manifest.corpus.ref.at(data_dir))
    doc_ids = set(hits.doc_ids)
    return {d.doc_id: d.contents or str(d.image or "") for d in dataset.documents() if d.doc_id in doc_ids}


def _watched(lists: Iterable[RankedList], progress: Progress) -> Iterator[RankedList]:
    for hits in lists:
        yield hits
        progress(1)
