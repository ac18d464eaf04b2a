"""`Searcher` and `Index`: an index with its engine and its encoder, opened once for many queries; `search_index`.

Topics are encoded as the index's manifest says, refined, searched, and cut to ranked lists.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, tee
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, cast, overload

from lexvl_anserini.data.lines import log_unknown
from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.engines.engine import Engine, ImpactEngine, TextEngine, index_path, open_index
from lexvl_anserini.engines.index_folder import (
    BuiltIndex,
    IndexState,
    index_manifest,
    is_index,
    read_index_state,
    read_report,
    read_settled,
)
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import EncoderRef, Manifest, expect_lexical
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery, Topic
from lexvl_anserini.ground.typed import MOST, check_count, check_type
from lexvl_anserini.queries.clauses import Query, TreeQuery
from lexvl_anserini.queries.query_source import TYPED, find_vocabulary_file, read_known_terms
from lexvl_anserini.queries.query_vectors import FieldsTower, ShardVectors, VectorOf, encode_queries
from lexvl_anserini.runs.order import RankedList, read_best
from lexvl_anserini.runs.trec import DEFAULT_HITS
from lexvl_anserini.searching.search import EncoderChanges, RefinedQuery, Search, cut_queries, search_refined

if TYPE_CHECKING:
    from types import TracebackType

    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.searching.shared_terms import Explanation

QUERIES = (Topic, ImpactQuery, DenseQuery, TreeQuery)
EXPECTED = "a text, a Topic, an encoded query, a query tree, or an iterable of one of these"

EXPLAINED_HITS = 3  # documents that are explained by default


@dataclass
class SearchCost:
    """What a search costs, counted while its streams run.

    Attributes:
        all_s: seconds of encoding and searching.
        removed: lists that lost the document whose id is the topic's.
        served: queries by the form of the index that answered them, at the end.
    """

    queries: int = 0
    terms: int = 0
    encode_s: float = 0.0
    all_s: float = 0.0
    removed: int = 0
    served: Mapping[str, int] = field(default_factory=dict)

    def count_queries(self, queries: Iterator[Any]) -> Iterator[Any]:
        """Passes queries on and counts them, their terms, and the seconds that encoding takes."""
        for query, seconds in measure_items(queries):
            self.encode_s += seconds
            self.queries += 1
            self.terms += len(query.vector) if isinstance(query, ImpactQuery) else 0
            yield query

    def count_lists(self, lists: Iterator[RankedList]) -> Iterator[RankedList]:
        """Passes lists on and counts the seconds that they take, encoding included."""
        for hits, seconds in measure_items(lists):
            self.all_s += seconds
            yield hits

    def remove_query(self, hits: RankedList) -> RankedList:
        """Removes the document whose id is the topic's from a list, and counts those that are removed."""
        others = hits.without(hits.query_id)
        self.removed += len(hits) - len(others)
        return others

    def compute_figures(self, manifest: Manifest, index: Path) -> dict[str, float]:
        """Computes figures for tables; milliseconds are the engine's alone, without encoding."""
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


def measure_items(stream: Iterator[Any]) -> Iterator[tuple[Any, float]]:
    """Yields each item of a stream, and the seconds that it took."""
    while True:
        started = time.perf_counter()
        item = next(stream, None)
        if item is None:
            return
        yield item, time.perf_counter() - started


def open_built(index: BuiltIndex | Path | str, manifest: Path | str | None = None) -> BuiltIndex:
    """Finds an index by its folder, its URL, or another object of it."""
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
    after its engine was opened is searched as it was, by all kinds of queries.

    Args:
        index: an index, its folder, or its URL.
        model: encodes texts and topics; default the encoder of the index's manifest.
        encoder: changes of that encoder.
        manifest: of the shards, for an index that stock Pyserini built.
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
        self.index = open_built(index, manifest)
        self._has_own = manifest is None and is_index(self.index.path)
        self._given, self.encoder = model, encoder
        self._opening = RLock()
        self._model: Encoder | None = None

    @property
    def model(self) -> Encoder:
        """The encoder of queries, loaded at the first call; an ArtefactError if it did not make the index."""
        with self._opening:
            if self._model is None:
                manifest = self.index.manifest
                model = self.encoder.load(manifest) if self._given is None else self._given
                _refuse_other_vocabulary(model, manifest, self.index.path)
                self._model = model
            return self._model

    @property
    def engine(self) -> Engine:
        """The engine, opened at the first call."""
        with self._opening:
            if self._engine is None:
                self._engine = read_settled(self.index.path, self._open_engine, lambda engine: engine.close())
            return self._engine

    def _open_engine(self) -> Engine:
        """Opens the engine of the index that is in the folder now, and takes over its manifest."""
        before, path = self.index.manifest, self.index.path
        manifest = index_manifest(path) if self._has_own else before
        if manifest != before:
            self.index = BuiltIndex(path, manifest)
            if (manifest.encoder, manifest.vocabulary_digest) != (before.encoder, before.vocabulary_digest):
                self._model = None
        if manifest.kind == "text":  # the engine scores with the options of the query side
            encoder = EncoderRef({**manifest.encoder, "options": dict(self.model.options)})
            manifest = replace(manifest, encoder=encoder)
        return open_index(path, manifest)

    def opened(self) -> Searcher:
        """Loads the encoder and opens the engine, before the first query; returns the searcher."""
        _ = self.model, self.engine, self.model  # opening finds the index of this moment, maybe of another encoder
        return self

    def search(self, query: Any, k: int = 10, **settings: Any) -> Any:
        """Returns the `k` best documents of a text, a topic, an encoded query or a tree; of several, a list of lists.

        The settings are attributes of `Search`, for example `query_terms=8`.
        """
        lists = list(self.lists(query, k, Search(**settings)))
        return lists[0] if isinstance(query, (str, *QUERIES)) else lists

    def lists(
        self,
        topics: str | Query | Iterable[str | Query],
        hits: int = DEFAULT_HITS,
        search: Search = Search(),
        cost: SearchCost | None = None,
    ) -> Iterator[RankedList]:
        """Yields one ranked list per topic; `search_index` explains the arguments.

        Wrong arguments raise at the call, before anything is opened.
        """
        check_count("hits", hits)
        manifest = self.index.manifest
        stream = read_queries(topics)
        first = next(stream, None)
        if first is None:
            return iter(())
        queries: Iterator[Any] = chain([first], stream)
        texts: Iterator[Any] | None = None
        refines = search.refines or isinstance(first, TreeQuery)
        check_kind(manifest, self.index.path, search, refines)
        listed = (search.only_terms or frozenset()) | (search.without_terms or frozenset())
        if listed and (vocabulary := find_vocabulary_file(self.index.path, None)):
            log_unknown(listed, read_known_terms(vocabulary, manifest), str(self.index.path))
        if isinstance(first, Topic):
            if search.text_weight:
                queries, texts = tee(queries)
            queries = encode_queries(self.opened().model, queries, self.index.manifest, search.batch_size)
        queries = check_queries(queries, manifest.kind)
        return self._rank(queries, texts, hits, search, refines, cost or SearchCost())

    def _rank(
        self,
        queries: Iterator[Any],
        texts: Iterator[Any] | None,
        hits: int,
        search: Search,
        refines: bool,
        cost: SearchCost,
    ) -> Iterator[RankedList]:
        """Yields the lists of encoded queries; `texts` yields their topics where the search reads texts."""
        fetch = min(hits + search.remove_query, MOST)
        if refines:
            counted = cost.count_queries(cut_queries(queries, search))
            with_texts = (RefinedQuery(query, next(texts).text if texts else None) for query in counted)
            impacts = cast("ImpactEngine", self.engine)  # `check_kind` refuses others
            vector_of: VectorOf | None = impacts.vector if search.feedback else None
            if search.feedback and search.feedback_shards is not None:
                vector_of = ShardVectors(Path(search.feedback_shards), self.index.manifest)
            lists = search_refined(impacts, with_texts, search, fetch, vector_of)
        else:
            find, best = self.engine.search, read_best(search.passages)
            if search.rm3:
                find = partial(cast("TextEngine", self.engine).search, rm3=search.bm25_expansion)
            elif best:
                find = partial(self.engine.search_passages, best=best)
            lists = find(cost.count_queries(queries), hits=fetch, threads=search.threads)
            if search.min_score is not None:
                least = search.min_score.value
                lists = (listed.down_to(least) for listed in lists)
        for listed in cost.count_lists(lists):
            yield cost.remove_query(listed)[:hits] if search.remove_query else listed
        cost.served = self.engine.served()

    def explain(
        self,
        query: str | Topic | ImpactQuery,
        doc_ids: Iterable[str] | None = None,
        hits: int = EXPLAINED_HITS,
        passages: str | None = None,
    ) -> list[Explanation]:
        """Explains documents' scores for a query, from the postings of its terms.

        Args:
            query: a topic or a text, which is encoded first; or an encoded query.
            doc_ids: the documents, in the order of the explanations; default the best.
            hits: how many of the best.
            passages: `max`, `sum:N` or `sum`, for documents of an index of passages, see `Search`.
        """
        from lexvl_anserini.searching.shared_terms import encode_topic, explain_documents, explain_passages

        check_count("hits", hits)
        check_type("query", query, str | Topic | ImpactQuery, "a text, a Topic or an ImpactQuery")
        best, manifest = read_best(passages), self.index.manifest
        expect_lexical(self.index.path, manifest.kind, "only the score of an impact index is a sum over terms")
        if not isinstance(query, ImpactQuery):
            query = encode_topic(Topic(TYPED, query) if isinstance(query, str) else query, self.model, manifest)
        engine = cast("ImpactEngine", self.engine)
        listed = None if doc_ids is None else list(doc_ids)
        if best:
            return explain_passages(engine, query, listed, hits, best, manifest.fields)
        if listed is None:
            listed = list(next(engine.search([query], hits)).doc_ids)
        return explain_documents(engine, query, listed, fields=manifest.fields)

    def verify(self) -> None:
        """Waits until the files of the index are compared with their checksums; an ArtefactError if one is damaged."""
        if (engine := self._engine) is not None:
            engine.verify()

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
                self.verify()
        finally:
            self.close()


def read_queries(topics: Any) -> Iterator[Query]:
    """Yields the queries or topics that a caller gives: one or several, texts too."""
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


def check_kind(manifest: Manifest, index: Path, search: Search, refines: bool = False) -> None:
    """Refuses settings that the kind of the index does not have."""
    if search.rm3 and manifest.kind != "text":
        raise UsageError(f"{index} is {manifest.kind}; RM3 is for BM25, an index of texts; of impacts: feedback")
    if refines or search.refines:
        refining = "terms, filters, feedback and approximate search, and shares of a bound, are for impact indexes"
        expect_lexical(index, manifest.kind, refining)


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


def check_queries(queries: Iterable[Query], kind: str) -> Iterator[Query]:
    """Yields the queries; each is one that an index of `kind` answers."""
    expected: tuple[type, ...] = {"impact": (ImpactQuery, TreeQuery), "dense": (DenseQuery,), "text": (Topic,)}[kind]
    for query in queries:
        if not isinstance(query, expected):
            raise UsageError(
                f"topic {query.query_id!r}: a {type(query).__name__}; an index of kind {kind} answers "
                f"{expected[0].__name__}"
            )
        yield query


@dataclass(frozen=True)
class Index(BuiltIndex):
    """A built index: its folder, and the manifest of the shards it was built from.

    Threads may share it. The first search opens its engine, which stays open as long as the object lives; a search
    after the index was replaced or changed opens it anew.
    """

    # The newest searcher, by what it belongs to; one that it replaces closes after the last call that searches with it.
    _searchers: dict[Any, Searcher] = field(default_factory=dict, init=False, repr=False, compare=False)
    _opening: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        """Folder, kind, number of documents, and the encoder."""
        encoder = self.manifest.encoder.get("name")
        facts = f"{self.manifest.kind}, {self.documents:,} documents, encoder {encoder!r}"
        return f"Index({str(self.path)!r}, {facts})"

    @overload
    def search(  # type: ignore[overload-overlap]  # a text and a Topic are iterables too; mypy takes the first that fits
        self, query: str | Query, k: int = ..., model: Encoder | None = ..., device: str = ...
    ) -> RankedList: ...

    @overload
    def search(
        self, query: Iterable[str | Query], k: int = ..., model: Encoder | None = ..., device: str = ...
    ) -> list[RankedList]: ...

    def search(
        self,
        query: str | Query | Iterable[str | Query],
        k: int = 10,
        model: Encoder | None = None,
        device: str = "auto",
    ) -> RankedList | list[RankedList]:
        """Returns the `k` best documents of a text, a topic or an encoded query, as a `RankedList`.

        Args:
            query: one of them; of several, the result is a list of such lists. `search_index` explains both.
            k: the length of a list at most.
            model: encodes texts and topics; default the encoder in the index's manifest, which is loaded once.
            device: of the default model.
        """
        searcher = self._open_searcher(read_index_state(self.path), model, device)
        hits: RankedList | list[RankedList] = searcher.search(query, k)
        searcher.verify()
        return hits

    def _open_searcher(self, state: IndexState | None, model: Encoder | None, device: str) -> Searcher:
        """Opens the searcher of a state of the index, a model and its device."""
        key = (state, id(model), device)
        with self._opening:
            if key not in self._searchers:
                searcher = Searcher(self.path if is_index(self.path) else self, model, EncoderChanges(device=device))
                self._searchers.clear()
                self._searchers[key] = searcher
            return self._searchers[key]


def search_index(
    index: BuiltIndex | Path | str,
    topics: str | Query | Iterable[str | Query],
    hits: int = DEFAULT_HITS,
    *,
    model: Encoder | None = None,
    manifest: Path | str | None = None,
    device: str = "auto",
    cost: SearchCost | None = None,
    **settings: Any,
) -> Iterator[RankedList]:
    """Searches an index; yields one ranked list per topic, in their order, empty where nothing matches.

    Args:
        index: an index, its folder, or its URL.
        topics: topics, encoded here; or encoded queries, or query trees. All of one type. One of them may be given by
            itself, and a text in place of a topic; the topics of several texts have the ids 1, 2, ...
        hits: length of a list at most.
        model: encodes the topics; default the encoder in the index's manifest.
        manifest: of the shards, for an index that stock Pyserini built.
        device: of the default model.
        cost: counts what the search costs.
        settings: the attributes of `Search`, for example `remove_query=True`, `threads=4`, `query_terms=16`.
    """
    check_count("hits", hits)
    search = Search(**settings)
    searcher = Searcher(index, model, EncoderChanges(device=device), manifest)
    return close_after(searcher, searcher.lists(topics, hits, search, cost))


def close_after(searcher: Searcher, lists: Iterator[RankedList]) -> Iterator[RankedList]:
    """Passes lists on; closes their searcher after the last, or where the caller leaves them."""
    with searcher:
        yield from lists
