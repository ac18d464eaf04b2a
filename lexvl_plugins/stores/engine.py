"""`StoreEngine`: the protocol of impact engines over a `ImpactStore`; each store's engine names its class of stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from lexvl_anserini.engines.engine import EngineOptions, ImpactEngine
from lexvl_anserini.engines.index_folder import BuiltIndex, read_report
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery
from lexvl_anserini.ground.typed import MOST_THREADS, check_count
from lexvl_anserini.queries.clauses import Clause, Impacts, bound, check_tree, describe_inexact_score, list_scored_terms
from lexvl_anserini.runs.order import RankedList, rank_hits
from lexvl_anserini.shards.reading import read_vocabulary
from lexvl_plugins.stores import fetching
from lexvl_plugins.stores.building import load
from lexvl_plugins.stores.folder import GREATEST, Notes, read_header, read_notes, write_folder
from lexvl_plugins.stores.store import MISSING, ImpactStore, StorePlace, parse_url

# The keys of index.json, and of the options, that hold the URL and the options of a store.
URL = "url"
STORED = "store"
ALLOW_INEXACT = "allow_inexact"


@dataclass(frozen=True)
class StoreOptions(EngineOptions):
    """How an index in a store is built; `allow_inexact` also where the store rounds impacts or scores."""

    place: StorePlace
    allow_inexact: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The requested options, named as in index.json; the place is the index itself."""
        return {ALLOW_INEXACT: self.allow_inexact, **self.settings}


class StoreEngine(ImpactEngine):
    """An index of impacts in a store; `stores` are its classes of stores by the form of URLs, "" for all others."""

    name: ClassVar[str]
    stores: ClassVar[Mapping[str, type[ImpactStore]]]

    def __init_subclass__(cls) -> None:
        settings = (setting for store in cls.stores.values() for setting in store.settings)
        cls.option_names = frozenset({URL, ALLOW_INEXACT, *settings})

    @classmethod
    def store_class(cls, place: StorePlace) -> type[ImpactStore]:
        """The class of stores of this engine for a place."""
        return cls.stores.get(place.form, cls.stores[""])

    @classmethod
    def read(cls, place: StorePlace) -> Notes | None:
        """The notes of the index at a place; None if the store has nothing of that name."""
        with closing(cls.store_class(place)(place)) as store, store.errors():
            return read_notes(store) if store.open() else None

    def __init__(self, index: Path, manifest: Manifest):
        report = read_report(index)
        if URL not in report:
            raise ArtefactError(f"{index}: index.json names no {URL}; name the index by its URL")
        place = parse_url(report[URL])
        self.place, self.manifest = place, manifest
        self.vocabulary = read_vocabulary(index, manifest)
        self.greatest = [int(line) for line in (index / GREATEST).read_text().split("\n")[:-1]]
        self.exact = not report[STORED][ALLOW_INEXACT]
        self.lock = Lock()
        self.store = self.store_class(place)(place)
        try:
            with self.store.errors():
                if not self.store.open():
                    raise ArtefactError(f"{place}: {MISSING.reason}; {MISSING.remedy}")
                header, notes, _ = read_header(self.store)
                if header != report["token"]:
                    raise ArtefactError(f"{place}: built again since this command began; run it again")
                documents, expected = self.store.count() - notes, manifest.counts.documents
            if documents != expected:
                numbers = f"{documents:,} documents, the manifest says {expected:,}"
                raise ArtefactError(f"{place}: {numbers}; build it again (--overwrite)")
        except BaseException:
            self.store.close()
            raise

    @classmethod
    def options(cls, given: Mapping[str, Any]) -> StoreOptions:
        """The URL, whether a store may round, and what the store has of its own."""
        if URL not in given:
            raise UsageError(f"engine {cls.name} writes to a store; give --index a URL (docs/plugins/stores.md)")
        place = parse_url(given[URL])
        allowed = str(given.get(ALLOW_INEXACT, False)).lower()
        if allowed not in ("true", "false", "1", "0"):
            raise UsageError(f"--set {ALLOW_INEXACT}={given[ALLOW_INEXACT]}: expected true or false")
        settings = {}
        for name, values in cls.store_class(place).settings.items():
            settings[name] = str(given.get(name, values[0]))
            if settings[name] not in values:
                raise UsageError(f"--set {name}={settings[name]}: expected {', '.join(values)}")
        return StoreOptions(place, allowed in ("true", "1"), settings)

    @staticmethod
    def read_options(report: Mapping[str, Any]) -> Mapping[str, Any]:
        """As requested when it was built."""
        stored: Mapping[str, Any] = report.get(STORED) or {}
        return stored

    @staticmethod
    def figures(report: Mapping[str, Any]) -> Mapping[str, Any]:
        """Postings, and what the probe found."""
        return {name: report[name] for name in ("postings", "rounded", "probes", "lists_changed", "largest_difference")}

    @classmethod
    def build(
        cls,
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: StoreOptions | None = None,
    ) -> BuiltIndex:
        """Builds the index in its store, whole or not at all, then its local folder."""
        if options is None:
            raise UsageError(f"engine {cls.name} writes to a store; name it by a URL")
        place = options.place
        with closing(cls.store_class(place)(place, options.settings)) as store, store.errors():
            # A table of that name that is no index of ours stays.
            store.open()
            stored = {"engine": cls.name, STORED: options.to_json()}
            load(store, shards, manifest, options.allow_inexact, progress, stored)
        notes = cls.read(place)
        if notes is None:
            raise ArtefactError(f"{place}: the index is gone; another program removed it")
        write_folder(index, place, notes)
        return BuiltIndex(index, manifest)

    def search(self, queries: Iterable[ImpactQuery], hits: int, threads: int = 1) -> Iterator[RankedList]:
        """One list per query; queries go to the store one after the other."""
        check_count("hits", hits)
        check_count("threads", threads, most=MOST_THREADS)
        for query in queries:
            try:
                vector = Impacts(query.vector).vector
            except UsageError as error:
                raise UsageError(f"topic {query.query_id!r}: {error}") from error
            yield self._search_vector(query.query_id, vector, hits)

    def search_tree(self, query_id: str, clause: Clause, hits: int) -> RankedList:
        """The ranked list of a tree of terms, ids, filters of terms and integer factors."""
        check_count("hits", hits)
        check_tree(clause)
        fetching.refuse_unsearchable(clause, self.name)
        if isinstance(clause, Impacts):
            return self._search_vector(query_id, clause.vector, hits)
        self._refuse_rounding(query_id, bound(clause, self.bound))
        named = fetching.find_ids(clause)
        if named is None and not fetching.has_scored_term(clause):
            what = "documents match that share no scored term with the query"
            raise UsageError(f"topic {query_id!r}: {what}; build an index with --engine lucene for this")
        with self.lock, self.store.errors():  # one thread at a time
            scored = self._find(clause, hits) if named is None else self._score(clause, sorted(named))
        return rank_hits(query_id, scored, hits)

    def _find(self, clause: Clause, hits: int) -> fetching.Scored:
        """Scores of the documents that can be among the best of a tree; the store ranks them by an upper bound."""
        total: dict[str, int] = {}
        for term, weight in list_scored_terms(clause):
            total[term] = total.get(term, 0) + int(weight)
        dims, weights = self._known(total)
        if not dims:
            return []
        scores: dict[str, float | None] = {}

        def select(fetched: fetching.Fetched) -> fetching.Scored | None:
            new = [doc_id for doc_id, _ in fetched.hits if doc_id not in scores]
            scores.update({**dict.fromkeys(new), **dict(self._score(clause, new))})
            matching = [(doc_id, score) for doc_id, score in scores.items() if score is not None]
            best = sorted((score for _, score in matching), reverse=True)
            # Those that were not fetched have at most the last bound.
            certain = fetched.all or (len(best) >= hits and best[hits - 1] > fetched.hits[-1][1])
            return matching if certain else None

        return fetching.fetch_until(lambda count: fetching.fetch_top(self.store, dims, weights, count), select, hits)

    def _score(self, clause: Clause, doc_ids: Sequence[str]) -> fetching.Scored:
        """The scores of a tree for those of some documents that match it."""
        vectors = fetching.fetch_vectors(self.store, doc_ids).items()
        scored = ((doc_id, fetching.score_document(clause, doc_id, self._terms(vector))) for doc_id, vector in vectors)
        return [(doc_id, score) for doc_id, score in scored if score is not None]

    def _search_vector(self, query_id: str, vector: Mapping[str, int], hits: int) -> RankedList:
        self._refuse_rounding(query_id, self.bound(vector))
        dims, weights = self._known(vector)
        if not dims:
            return rank_hits(query_id, [])
        with self.lock, self.store.errors():  # one thread at a time
            best = fetching.fetch_best(self.store, dims, weights, hits)
        if self.exact and (strange := next((hit for hit in best if hit[1] != int(hit[1])), None)):
            what = f"document {strange[0]!r} has the score {strange[1]} in {self.store.title}, expected an integer"
            raise ArtefactError(f"topic {query_id!r}: {what}; the store rounds, build the index with --engine lucene")
        return rank_hits(query_id, best, hits)

    def _known(self, vector: Mapping[str, int]) -> tuple[list[int], list[int]]:
        """Dimensions, ascending, and weights of the terms that have a posting in the index."""
        dimension = self.vocabulary.dimension
        there = {dimension[term]: weight for term, weight in vector.items() if term in dimension}
        dims = sorted(dim for dim in there if self.greatest[dim])
        return dims, [there[dim] for dim in dims]

    def _refuse_rounding(self, query_id: str, most: float) -> None:
        if most >= SCORE_LIMIT:
            remedy = "quantise queries (or documents) with fewer bits"
            raise describe_inexact_score(query_id, most, remedy, f"scores in {self.store.title}")

    def _terms(self, vector: Mapping[int, int]) -> dict[str, int]:
        return {self.vocabulary.terms[dim]: impact for dim, impact in vector.items()}

    def impacts(self, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        """The document's impact for each of `terms` that it has, from its stored vector."""
        vector = self.vector(doc_id)
        return {term: vector[term] for term in terms if term in vector}

    def vector(self, doc_id: str) -> dict[str, int]:
        """The document's whole vector, as the store has it."""
        with self.lock, self.store.errors():  # one thread at a time
            vector = self.store.vectors([doc_id]).get(doc_id)
        if vector is None:
            raise DataError(f"{self.place}: no document {doc_id!r} in the index")
        return self._terms(vector)

    def bound(self, vector: Mapping[str, float]) -> float:
        """The highest score that any document could reach: sum over terms of weight x greatest impact."""
        dimension = self.vocabulary.dimension
        return sum(weight * self.greatest[dimension[term]] for term, weight in vector.items() if term in dimension)

    def close(self) -> None:
        """Closes the connection."""
        self.store.close()
