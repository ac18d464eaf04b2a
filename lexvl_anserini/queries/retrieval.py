"""`search_index` and what it is made of: opens the index and its encoder, then encodes, refines and searches topics."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lexvl_anserini.data.left_out import log_once
from lexvl_anserini.encoders.cards import remark_on
from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.encoders.loading import load_encoder_of
from lexvl_anserini.engines.index_folder import index_manifest, read_report
from lexvl_anserini.engines.opening import engine_of, open_index, verified
from lexvl_anserini.engines.stores.resolving import index_path
from lexvl_anserini.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.installed import versions_of
from lexvl_anserini.manifest import EncoderRef, Manifest, RunManifest
from lexvl_anserini.progress import Progress, silent
from lexvl_anserini.queries.clauses import Clause, Query, TreeQuery
from lexvl_anserini.queries.feedback import ShardVectors
from lexvl_anserini.queries.query_source import TYPED, TopicSource, check_readable, check_terms
from lexvl_anserini.queries.query_vectors import encode_queries
from lexvl_anserini.queries.refine import RefinedQuery, Refinement, refined_queries, search_refined
from lexvl_anserini.ranking.order import with_ranks
from lexvl_anserini.ranking.runs import DEFAULT_HITS, write_run
from lexvl_anserini.records import DenseQuery, ImpactQuery, Index, ScoredDoc, Topic
from lexvl_anserini.typed import MOST, MOST_THREADS, check_count

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.engines.engine import ImpactEngine
    from lexvl_anserini.queries.feedback import VectorOf

QUERIES = (Topic, ImpactQuery, DenseQuery, TreeQuery)
EXPECTED = "a text, a Topic, an encoded query, a query tree, or an iterable of one of these"

# What decides a score besides our own code.
VERSIONED = ("lexvl-anserini", "pyserini", "faiss-cpu", "torch", "transformers")


@dataclass
class SearchCost:
    """What a search costs, counted while its streams run; `served` by the form of the index, at their end."""

    queries: int = 0
    terms: int = 0
    encode_s: float = 0.0
    all_s: float = 0.0
    served: Mapping[str, int] = field(default_factory=dict)

    def encoded(self, queries: Iterator[Any]) -> Iterator[Any]:
        """Passes queries on; counts them, their terms, and the seconds that encoding takes."""
        while True:
            started = time.perf_counter()
            query = next(queries, None)
            self.encode_s += time.perf_counter() - started
            if query is None:
                return
            self.queries += 1
            self.terms += len(query.vector) if isinstance(query, ImpactQuery) else 0
            yield query

    def found(self, lists: Iterator[list[ScoredDoc]]) -> Iterator[list[ScoredDoc]]:
        """Passes lists on; counts the seconds that they take, encoding included."""
        while True:
            started = time.perf_counter()
            documents = next(lists, None)
            self.all_s += time.perf_counter() - started
            if documents is None:
                return
            yield documents

    def efficiency(self, manifest: Manifest, index: Path) -> dict[str, float]:
        """Figures for tables; milliseconds are the engine's alone, without encoding."""
        figures: dict[str, float] = {"index_documents": manifest.counts.documents}
        if "bytes" in (report := read_report(index)):
            figures["index_bytes"] = report["bytes"]
        if self.queries:
            figures["ms_per_query"] = round((self.all_s - self.encode_s) * 1000 / self.queries, 3)
        if manifest.kind == "impact" and self.queries:
            figures["mean_query_terms"] = round(self.terms / self.queries, 2)
            figures |= {f"queries_from_{form}": count for form, count in self.served.items()}
            figures["mean_document_terms"] = round(manifest.counts.postings / manifest.counts.documents, 2)
        return figures


def search_index(
    index: Index | Path | str,
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
) -> Iterator[list[ScoredDoc]]:
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

    Raises:
        ArtefactError: not an index, or its vocabulary is not the model's.
        UsageError: a topic that the encoder cannot read, or a query of another kind than the index.
    """
    check_count("hits", hits)
    check_count("threads", threads, most=MOST_THREADS)
    check_count("batch_size", batch_size)
    path, about = located(index, manifest)
    stream = queries_of(topics)
    first = next(stream, None)
    if first is None:
        return iter(())
    queries: Iterator[Any] = chain([first], stream)
    texts: Iterator[Any] | None = None
    refinement = refinement or (Refinement() if isinstance(first, TreeQuery) else None)
    if refinement is not None:
        refuse_other_kinds(about, path)
    if isinstance(first, Topic):
        model = EncoderChanges(device=device).load(about) if model is None else model
        _refuse_other_vocabulary(model, about, path)
        if refinement is not None and refinement.text_weight:
            queries, texts = tee(queries)
        queries = encode_queries(model, queries, about, batch_size)
    queries, opened, tally = (
        _of_kind(queries, about.kind),
        Index(path, about, about.counts.documents),
        tally or SearchCost(),
    )
    return ranked_lists(opened, queries, texts, hits, remove_query, threads, tally, refinement, feedback_shards)


def queries_of(given: Any) -> Iterator[Query]:
    """Queries or topics from what a caller gives: one or several, texts too.

    Raises:
        UsageError: something else.
    """
    if isinstance(given, str):
        return iter([Topic(TYPED, given)])
    if isinstance(given, QUERIES):
        return iter([given])
    if not isinstance(given, Iterable) or isinstance(given, Mapping | bytes):
        raise UsageError(f"a value of type {type(given).__name__} is no query; expected {EXPECTED}")
    stream = iter(given)
    first = next(stream, None)
    if first is not None and not isinstance(first, (str, *QUERIES)):
        raise UsageError(f"a value of type {type(first).__name__} is no query; expected {EXPECTED}")
    return _as_topics(stream if first is None else chain([first], stream))


def _as_topics(given: Iterable[Any]) -> Iterator[Query]:
    for number, query in enumerate(given, start=1):
        yield Topic(str(number), query) if isinstance(query, str) else query


def ranked_lists(
    index: Index,
    queries: Iterator[Any],
    texts: Iterator[Any] | None,
    hits: int,
    remove_query: bool,
    threads: int,
    tally: SearchCost,
    refinement: Refinement | None,
    feedback_shards: Path | str | None,
) -> Iterator[list[ScoredDoc]]:
    """As `search_index`, for encoded queries; `texts` yields their topics where the refinement needs the texts."""
    fetch = min(hits + remove_query, MOST)
    with verified(open_index(index.path, index.manifest)) as engine:
        if refinement is None:
            lists = engine.search(tally.encoded(queries), fetch, threads)
        else:
            counted = tally.encoded(refined_queries(queries, refinement))
            with_texts = (RefinedQuery(query, next(texts).text if texts else None) for query in counted)
            impacts = cast("ImpactEngine", engine)  # `refuse_other_kinds` refuses others
            vector_of = _vectors(impacts, index.manifest, refinement, feedback_shards)
            lists = search_refined(impacts, with_texts, refinement, fetch, threads, vector_of, remove_query)
        for documents in tally.found(lists):
            yield without_query(documents, hits) if remove_query else documents
        tally.served = engine.served()


def located(index: Index | Path | str, manifest: Path | str | None = None) -> tuple[Path, Manifest]:
    """The folder of an index and its manifest.

    Raises:
        ArtefactError: not an index.
    """
    if isinstance(index, Index):
        return index.path, index.manifest
    folder = index_path(index)
    return folder, index_manifest(folder, Path(manifest) if manifest else None)


def _vectors(
    engine: ImpactEngine, manifest: Manifest, refinement: Refinement, shards: Path | str | None
) -> VectorOf | None:
    """Where feedback reads a document's vector: the shards if the user names them, else the index."""
    if refinement.feedback is None:
        return None
    return engine.vector if shards is None else ShardVectors(Path(shards), manifest)


def without_query(documents: list[ScoredDoc], hits: int) -> list[ScoredDoc]:
    """The list without the document that is the topic itself, cut at `hits`, ranks again from 1."""
    return with_ranks([d for d in documents if d.doc_id != d.query_id][:hits])


@dataclass(frozen=True)
class EncoderChanges:
    """How a search changes the encoder of an index.

    checkpoint, tokenizer   new places of the same files
    options                 of the query side, for example `query_topk`
    device                  auto, cpu, cuda, ...
    """

    checkpoint: str | None = None
    tokenizer: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"

    def load(self, manifest: Manifest) -> Encoder:
        """The encoder of an index, with the changes.

        Raises:
            ArtefactError: the checkpoint or its vocabulary is not the one that made the index.
        """
        if remark := remark_on(manifest.encoder.checkpoint, manifest.corpus.name):
            log_once(remark, logging.WARNING)
        return load_encoder_of(
            manifest.encoder, self.checkpoint, self.tokenizer, self.device, self.options, manifest.vocabulary_digest
        )

    def entry(self, manifest: Manifest, refinement: Mapping[str, Any]) -> EncoderRef:
        """The encoder's entry in a run's manifest: as in the index, with the changes and the refinement's options."""
        moved = {key: value for key, value in (("checkpoint", self.checkpoint), ("tokenizer", self.tokenizer)) if value}
        options = {**manifest.encoder.options, **self.options, **refinement}
        return EncoderRef({**manifest.encoder, **moved, "options": options})


@dataclass(frozen=True)
class IndexSearch:
    """A search of one index, ready for its queries.

    index             the index
    encoder           changes of its encoder
    refinement        of every query; None for none
    refinement_note   the user's refinement options, for the run's manifest
    threads, batch_size, feedback_shards   as for `search_index`
    """

    index: Index
    encoder: EncoderChanges = EncoderChanges()
    refinement: Refinement | None = None
    refinement_note: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    batch_size: int = 32
    feedback_shards: str | None = None

    def check(self, vocabulary: Path | None, tree: Clause | None = None) -> None:
        """Checks the refinement, and a query tree, against the index before anything is loaded.

        Args:
            vocabulary: `vocab.txt` of the index, if there is one.
            tree: a query that the user typed.

        Raises:
            UsageError: the index holds no impacts, or a term that the user named is not in its vocabulary.
        """
        if self.refinement is not None:
            refuse_other_kinds(self.index.manifest, self.index.path)
        for clause in (tree, self.refinement and self.refinement.where):
            if clause:
                check_terms(clause, vocabulary, self.index.manifest)

    def lists(
        self,
        queries: Iterable[Query],
        hits: int,
        remove_query: bool = False,
        model: Encoder | None = None,
        tally: SearchCost | None = None,
    ) -> Iterator[list[ScoredDoc]]:
        """One ranked list per query; as `search_index`."""
        return search_index(
            self.index,
            queries,
            hits,
            remove_query,
            self.threads,
            model,
            refinement=self.refinement,
            batch_size=self.batch_size,
            tally=tally,
            feedback_shards=self.feedback_shards,
        )

    def one(self, query: Clause | Topic, hits: int, model: Encoder | None = None) -> list[ScoredDoc]:
        """The hits of a typed query: a query tree, or a topic that is encoded first, by `model` or the index's encoder.

        Raises:
            UsageError: the encoder's query side does not read such a topic.
        """
        if isinstance(query, Clause):
            [found] = self.lists([TreeQuery(TYPED, query)], hits)
            return found
        model = model or self.encoder.load(self.index.manifest)
        check_readable(query, model)
        [found] = self.lists([query], hits, model=model)
        return found

    def run_manifest(
        self, source: TopicSource, hits: int, remove_query: bool, strict_scores: bool, output_format: str
    ) -> RunManifest:
        """The manifest of a run that is to be written."""
        about = self.index.manifest
        return RunManifest(
            topics=source.label,
            topics_sha256=source.sha256 or source.digest(),
            dataset=source.judged.name if source.judged else "",
            split=(source.judged.split or "") if source.judged else "",
            data_dir=source.judged.data_dir if source.judged else None,
            corpus=about.corpus,
            encoder=self.encoder.entry(about, self.refinement_note),
            quantiser=about.quantiser,
            index=self.index.path.name,
            hits=hits,
            remove_query=remove_query,
            strict_scores=strict_scores,
            output_format=output_format,
            versions=versions_of(VERSIONED),
        )

    def write(self, source: TopicSource, wanted: RunManifest, run: Path, progress: Progress = silent) -> RunManifest:
        """Searches all topics of a source and writes their run; returns its manifest with counts and efficiency.

        Raises:
            DataError: there is no topic.
        """
        stream = source.stream()
        first = next(stream, None)
        if first is None:
            raise DataError(f"{source.label}: no topic; nothing to search")
        model = self.encoder.load(self.index.manifest) if isinstance(first, Topic) else None
        tally = SearchCost()
        lists = self.lists(chain([first], stream), wanted.hits, wanted.remove_query, model, tally)
        figures = partial(tally.efficiency, self.index.manifest, self.index.path)
        return write_run(run, _watched(lists, progress), wanted, wanted.encoder.name, figures)


def texts_of(documents: list[ScoredDoc], index: Index, data_dir: str | None) -> dict[str, str]:
    """The contents of some documents: stored in the index, else found by reading their corpus once.

    Raises:
        LexvlError: the corpus is not where it was.
    """
    from lexvl_anserini.data.dataset import dataset_of

    engine = engine_of(index.path, index.manifest.kind)
    if (stored := engine.stored_texts(index.path, [document.doc_id for document in documents])) is not None:
        return stored
    dataset = dataset_of(index.manifest.corpus.ref.at(data_dir))
    wanted = {document.doc_id for document in documents}
    return {d.doc_id: d.contents or str(d.image or "") for d in dataset.documents() if d.doc_id in wanted}


def refuse_other_kinds(manifest: Manifest, index: Path) -> None:
    """Refuses what only an impact index can do.

    Raises:
        UsageError: the index is of another kind.
    """
    if manifest.kind != "impact":
        raise UsageError(f"{index} is {manifest.kind}; terms, filters and feedback are for impact indexes")


def _watched(lists: Iterable[list[ScoredDoc]], progress: Progress) -> Iterator[list[ScoredDoc]]:
    for documents in lists:
        yield documents
        progress(1)


def _refuse_other_vocabulary(model: Encoder, manifest: Manifest, index: Path) -> None:
    """Refuses a model whose dimensions are not the index's.

    Raises:
        ArtefactError: the model's vocabulary or kind differs.
    """
    if model.kind != manifest.kind:
        raise ArtefactError(f"encoder {model.name!r} is {model.kind}, {index} is {manifest.kind}")
    vocabulary = as_lexical(model.query).vocabulary.digest if model.kind == "impact" else None
    if vocabulary is not None and vocabulary != manifest.vocabulary_digest:
        raise ArtefactError(
            f"encoder {model.name!r} has vocabulary {vocabulary[:16]}, {index} was built with "
            f"{str(manifest.vocabulary_digest)[:16]}; search with the encoder that made the index"
        )


def _of_kind(queries: Iterable[Query], kind: str) -> Iterator[Query]:
    """The queries, each checked to be one that an index of `kind` answers.

    Raises:
        UsageError: one is not.
    """
    expected: tuple[type, ...] = {"impact": (ImpactQuery, TreeQuery), "dense": (DenseQuery,), "text": (Topic,)}[kind]
    for query in queries:
        if not isinstance(query, expected):
            raise UsageError(
                f"topic {query.query_id!r}: a {type(query).__name__}; an index of kind {kind} answers "
                f"{expected[0].__name__}"
            )
        yield query


def found_in(index: Index, query: Any, k: int, model: Encoder | None, device: str) -> Any:
    """The list of one query, or the lists of several; `Index.search` explains the arguments."""
    single = isinstance(query, (str, *QUERIES))
    stream = queries_of(query)
    first = next(stream, None)
    queries = iter(()) if first is None else chain([first], stream)
    if model is None and isinstance(first, Topic):
        model = _loaded_once(str(index.path.absolute()), index.manifest, device)
    lists = list(search_index(index, queries, k, model=model))
    return lists[0] if single else lists


# The encoder of the last index that was searched by its own method: place, manifest, device, encoder.
_last: list[tuple[tuple[str, Manifest, str], Encoder]] = []


def _loaded_once(place: str, manifest: Manifest, device: str) -> Encoder:
    key = (place, manifest, device)
    if not _last or _last[0][0] != key:
        _last[:] = [(key, EncoderChanges(device=device).load(manifest))]
    return _last[0][1]
