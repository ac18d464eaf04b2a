"""`Searcher`: an index with its engine and its encoder, opened once for many queries.

Topics are encoded as the index's manifest says, refined, searched, and cut to ranked lists.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, tee
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

from lexvl_anserini.data.lines import log_once
from lexvl_anserini.encoders.cards import remark_on
from lexvl_anserini.encoders.families.plain_text import BM25Settings
from lexvl_anserini.encoders.loading import load_encoder_of
from lexvl_anserini.encoders.parts.fields import FieldsTower
from lexvl_anserini.engines.index_folder import BuiltIndex, index_manifest, read_report
from lexvl_anserini.engines.opening import index_path, open_index
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import EncoderRef, Manifest, expect_lexical
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery, Topic
from lexvl_anserini.ground.typed import MOST, check_count, check_type
from lexvl_anserini.queries.clauses import Query, TreeQuery
from lexvl_anserini.queries.query_source import TYPED
from lexvl_anserini.queries.query_vectors import ShardVectors, encode_queries
from lexvl_anserini.runs.order import RankedList, best_of
from lexvl_anserini.runs.trec import DEFAULT_HITS
from lexvl_anserini.searching.fields import load_fields
from lexvl_anserini.searching.refine import RefinedQuery, Refinement, SearchSettings, refined_queries, search_refined

if TYPE_CHECKING:
    from types import TracebackType

    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.engines.engine import Engine, ImpactEngine, TextEngine
    from lexvl_anserini.queries.query_vectors import VectorOf
    from lexvl_anserini.searching.cuts import Cut

QUERIES = (Topic, ImpactQuery, DenseQuery, TreeQuery)
EXPECTED = "a text, a Topic, an encoded query, a query tree, or an iterable of one of these"


@dataclass
class SearchCost:
    """What a search costs, counted while its streams run; `served` by the form of the index, at their end."""

    queries: int = 0
    terms: int = 0
    encode_s: float = 0.0
    all_s: float = 0.0
    removed: int = 0
    served: Mapping[str, int] = field(default_factory=dict)

    def encoded(self, queries: Iterator[Any]) -> Iterator[Any]:
        """Passes queries on; counts them, their terms, and the seconds that encoding takes."""
        for query, seconds in _timed(queries):
            self.encode_s += seconds
            self.queries += 1
            self.terms += len(query.vector) if isinstance(query, ImpactQuery) else 0
            yield query

    def searched(self, lists: Iterator[RankedList]) -> Iterator[RankedList]:
        """Passes lists on; counts the seconds that they take, encoding included."""
        for hits, seconds in _timed(lists):
            self.all_s += seconds
            yield hits

    def without_query(self, hits: RankedList) -> RankedList:
        """The list without the document whose id is the topic's; counts those that are left out."""
        others = hits.without(hits.query_id)
        self.removed += len(hits) - len(others)
        return others

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


def _timed(stream: Iterator[Any]) -> Iterator[tuple[Any, float]]:
    """Each item of a stream, and the seconds that it took."""
    while True:
        started = time.perf_counter()
        item = next(stream, None)
        if item is None:
            return
        yield item, time.perf_counter() - started


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
        """The encoder of an index, with the changes."""
        if manifest.fields:
            if self.checkpoint or self.tokenizer:
                example = f"--set {manifest.fields[-1]}.checkpoint=FOLDER"
                raise UsageError(f"an index of several fields has several encoders; name the field: {example}")
            return load_fields(manifest.encoder, self.options, self.device)
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


def located(index: BuiltIndex | Path | str, manifest: Path | str | None = None) -> BuiltIndex:
    """An index by its folder, its URL in a store, or another object of it."""
    if isinstance(index, BuiltIndex):
        # Not the object itself: an `Index` that held a searcher that holds it would never close.
        return BuiltIndex(index.path, index.manifest)
    check_type("index", index, Path | str, "an index, its folder, or its URL")
    check_type("manifest", manifest, Path | str | None, "a file")
    folder = index_path(index)
    return BuiltIndex(folder, index_manifest(folder, Path(manifest) if manifest else None))


class Searcher:
    """An index with its engine and its encoder, each opened when it is first needed and kept: one start, many queries.

        with Searcher("indexes/demo") as searcher:
            for text in texts:
                hits = searcher.search(text)

    The end of the block closes the engine; it raises ArtefactError if a file turned out to be damaged, and then no list
    counts. Without a block, the end of the object closes it. Threads may share a searcher. An index that is replaced
    meanwhile is searched as it was.

    Args:
        index: an index, its folder, or its URL in a store.
        model: encodes texts and topics; default the encoder of the index's manifest.
        encoder: changes of that encoder.
        manifest: of the shards, for an index that stock Pyserini built.

    Raises:
        ArtefactError: not an index.
    """

    _engine: Engine | None = None

    def __init__(
        self,
        index: BuiltIndex | Path | str,
        model: Encoder | None = None,
        encoder: EncoderChanges = EncoderChanges(),
        manifest: Path | str | None = None,
    ):
        if model is not None and not hasattr(model, "kind"):  # models of users are encoders too
            raise UsageError(f"model is {model!r:.60}, expected what load_encoder returns")
        self.index = located(index, manifest)
        self._given, self._changes = model, encoder
        self._opening = RLock()
        self._model: Encoder | None = None

    @property
    def model(self) -> Encoder:
        """The encoder of queries, loaded at the first call.

        Raises:
            ArtefactError: it is not the one that made the index.
        """
        with self._opening:
            if self._model is None:
                manifest = self.index.manifest
                model = self._changes.load(manifest) if self._given is None else self._given
                _refuse_other_vocabulary(model, manifest, self.index.path)
                self._model = model
            return self._model

    @property
    def engine(self) -> Engine:
        """The engine, opened at the first call."""
        with self._opening:
            if self._engine is None:
                manifest = self.index.manifest
                if manifest.kind == "text":  # the engine scores with the options of the query side
                    encoder = EncoderRef({**manifest.encoder, "options": dict(self.model.options)})
                    manifest = replace(manifest, encoder=encoder)
                self._engine = open_index(self.index.path, manifest)
            return self._engine

    def opened(self) -> Searcher:
        """Loads the encoder and opens the engine, before the first query; returns the searcher."""
        _ = self.model, self.engine
        return self

    def search(
        self,
        query: Any,
        k: int = 10,
        refinement: Refinement | None = None,
        passages: str | None = None,
        cut: Cut | None = None,
    ) -> Any:
        """The `k` best documents of a text, a topic, an encoded query or a query tree; of several, a list of lists.

        Args:
            passages: `max`, `sum:N` or `sum`, for an index of passages, see `SearchSettings`.
            cut: the least score of a hit.
        """
        lists = list(self.lists(query, k, SearchSettings(refinement=refinement, passages=passages, cut=cut)))
        return lists[0] if isinstance(query, (str, *QUERIES)) else lists

    def lists(
        self,
        topics: str | Query | Iterable[str | Query],
        hits: int = DEFAULT_HITS,
        settings: SearchSettings = SearchSettings(),
        tally: SearchCost | None = None,
    ) -> Iterator[RankedList]:
        """One ranked list per topic, as the lists are taken; `search_index` explains the arguments.

        Wrong arguments raise at the call, before anything is opened.
        """
        check_count("hits", hits)
        manifest = self.index.manifest
        stream = queries_of(topics)
        first = next(stream, None)
        if first is None:
            return iter(())
        queries: Iterator[Any] = chain([first], stream)
        texts: Iterator[Any] | None = None
        by_share = settings.cut is not None and settings.cut.relative
        if settings.refinement is None and (by_share or isinstance(first, TreeQuery)):
            settings = replace(settings, refinement=Refinement())
        if settings.refinement is not None:
            refuse_other_kinds(manifest, self.index.path, settings)
        if isinstance(first, Topic):
            if settings.refinement is not None and settings.refinement.text_weight:
                queries, texts = tee(queries)
            queries = encode_queries(self.model, queries, manifest, settings.batch_size)
        return self._ranked(_of_kind(queries, manifest.kind), texts, hits, settings, tally or SearchCost())

    def _ranked(
        self,
        queries: Iterator[Any],
        texts: Iterator[Any] | None,
        hits: int,
        settings: SearchSettings,
        tally: SearchCost,
    ) -> Iterator[RankedList]:
        """The lists of encoded queries; `texts` yields their topics where the refinement reads texts."""
        fetch = min(hits + settings.remove_query, MOST)
        refinement = settings.refinement
        if refinement is None or refinement.rm3:
            search, best = self.engine.search, best_of(settings.passages)
            search = partial(self.engine.search_passages, best=best) if best else search
            if refinement is not None:
                search = partial(cast("TextEngine", self.engine).search, rm3=refinement.rm3)
            lists = search(tally.encoded(queries), hits=fetch, threads=settings.threads)
            if settings.cut is not None:
                lists = (listed.down_to(settings.cut.value) for listed in lists)
        else:
            counted = tally.encoded(refined_queries(queries, refinement))
            with_texts = (RefinedQuery(query, next(texts).text if texts else None) for query in counted)
            impacts = cast("ImpactEngine", self.engine)  # `refuse_other_kinds` refuses others
            vector_of = _vectors(impacts, self.index.manifest, settings)
            lists = search_refined(impacts, with_texts, settings, fetch, vector_of)
        for listed in tally.searched(lists):
            yield tally.without_query(listed)[:hits] if settings.remove_query else listed
        tally.served = self.engine.served()

    def verified(self) -> None:
        """Waits until the files of the index are compared with their checksums.

        Raises:
            ArtefactError: one is damaged.
        """
        engine = self._engine
        if engine is not None:
            engine.verified()

    def close(self) -> None:
        """Closes the engine, if it was opened; another query opens it again.

        A thread that still searches it gets an error: close a searcher when no thread searches with it any more.
        """
        with self._opening:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __del__(self, leaving: Callable[[], bool] = sys.is_finalizing) -> None:
        # When Python ends, what closing needs may be gone, and the system closes the files.
        if self._engine is not None and not leaving():
            self.close()

    def __repr__(self) -> str:
        """Names the index."""
        return f"Searcher({self.index!r})"

    def __enter__(self) -> Searcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.verified()
        finally:
            self.close()


def queries_of(topics: Any) -> Iterator[Query]:
    """Queries or topics from what a caller gives: one or several, texts too."""
    if isinstance(topics, (str, *QUERIES)):
        return iter([_as_query(topics, TYPED)])
    if not isinstance(topics, Iterable) or isinstance(topics, Mapping | bytes):
        raise UsageError(f"a value of type {type(topics).__name__} is no query; expected {EXPECTED}")
    stream = (_as_query(topic, str(number)) for number, topic in enumerate(topics, start=1))
    first = list(islice(stream, 1))  # checked at the call
    return chain(first, stream)


def _as_query(topic: Any, query_id: str) -> Query:
    if isinstance(topic, str):
        return Topic(query_id, topic)
    if not isinstance(topic, QUERIES):
        raise UsageError(f"query {query_id}: a value of type {type(topic).__name__} is no query; expected {EXPECTED}")
    return topic


def _vectors(engine: ImpactEngine, manifest: Manifest, settings: SearchSettings) -> VectorOf | None:
    """Where feedback reads a document's vector: the shards if the user names them, else the index."""
    if settings.refinement is None or settings.refinement.feedback is None:
        return None
    return engine.vector if settings.feedback_shards is None else ShardVectors(Path(settings.feedback_shards), manifest)


def refuse_other_kinds(manifest: Manifest, index: Path, settings: SearchSettings) -> None:
    """Refuses a refinement that the kind of the index does not have."""
    refinement, by_share = settings.refinement, settings.cut is not None and settings.cut.relative
    if refinement is not None and refinement.rm3 is not None:
        if manifest.kind != "text":
            raise UsageError(f"{index} is {manifest.kind}; RM3 is for BM25, an index of texts; of impacts: feedback")
        if refinement.only_rm3 and not by_share:
            return
    expect_lexical(
        index,
        manifest.kind,
        "terms, filters, feedback and approximate search, and shares of a bound, are for impact indexes",
    )


def _refuse_other_vocabulary(model: Encoder, manifest: Manifest, index: Path) -> None:
    """Refuses a model whose dimensions are not the index's."""
    if model.kind != manifest.kind:
        raise ArtefactError(f"encoder {model.name!r} is {model.kind}, {index} is {manifest.kind}")
    tower = getattr(model, "query", None)  # a model of a user may have the side of documents only
    if manifest.fields or isinstance(tower, FieldsTower):
        names = {field.name for field in tower.fields} if isinstance(tower, FieldsTower) else set[str]()
        if names != set(manifest.fields):
            raise ArtefactError(
                f"encoder {model.name!r} is not that of {index} (fields: {', '.join(manifest.fields) or 'none'}); "
                "search with the encoder of its manifest"
            )
        return
    if model.kind == "text":
        analysis, expected = (BM25Settings.of(ref.options).analysis for ref in (model, manifest.encoder))
        if analysis != expected:
            raise ArtefactError(
                f"the query has the analyser {analysis}, {index} was built with {expected} (language, stemmer, "
                "keep_stopwords); encode and index again with other ones, a search changes k1 and b alone"
            )
    vocabulary = model.vocabulary.digest if model.kind == "impact" else None
    if vocabulary is not None and vocabulary != manifest.vocabulary_digest:
        raise ArtefactError(
            f"encoder {model.name!r} has vocabulary {vocabulary[:16]}, {index} was built with "
            f"{str(manifest.vocabulary_digest)[:16]}; search with the encoder that made the index"
        )


def _of_kind(queries: Iterable[Query], kind: str) -> Iterator[Query]:
    """The queries, each checked to be one that an index of `kind` answers."""
    expected: tuple[type, ...] = {"impact": (ImpactQuery, TreeQuery), "dense": (DenseQuery,), "text": (Topic,)}[kind]
    for query in queries:
        if not isinstance(query, expected):
            raise UsageError(
                f"topic {query.query_id!r}: a {type(query).__name__}; an index of kind {kind} answers "
                f"{expected[0].__name__}"
            )
        yield query
