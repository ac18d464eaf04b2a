"""What a worker holds: the open indexes of some partitions, which answer as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lexvl_anserini.doors.cluster.partitions.building import check_partition
from lexvl_anserini.engines.engine import ImpactEngine
from lexvl_anserini.engines.opening import open_impact_index
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.places import fetched
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery, ScoredDoc
from lexvl_anserini.queries.clauses import Clause
from lexvl_anserini.runs.order import merged_by_score, with_ranks

Found = TypeVar("Found")


class SearcherRequest(NamedTuple):
    """What a worker needs to open its partitions.

    collection  digest of the collection that queries are quantised for
    """

    folders: tuple[Path, ...]
    collection: str


class SentList(NamedTuple):
    """A ranked list on its way between processes: columns, which are unpacked ten times faster than records."""

    query_id: str
    doc_ids: tuple[str, ...]
    scores: tuple[float, ...]

    @classmethod
    def of(cls, documents: Sequence[ScoredDoc]) -> SentList:
        """A ranked list of one query."""
        query_id = documents[0].query_id if documents else ""
        return cls(query_id, tuple(d.doc_id for d in documents), tuple(d.score for d in documents))

    def documents(self) -> Iterator[ScoredDoc]:
        """The records, made as they are read."""
        for rank, (doc_id, score) in enumerate(zip(self.doc_ids, self.scores, strict=True), start=1):
            yield ScoredDoc(self.query_id, doc_id, rank, score)


def merged(lists: Iterable[Iterable[ScoredDoc]], hits: int) -> list[ScoredDoc]:
    """The best `hits` of several ranked lists of one query, each at least as long or complete.

    Impact scores need no statistics of a collection, so this is the list of one index of all documents.
    """
    return with_ranks(merged_by_score(lists, hits))


class PartitionSearcher:
    """The open indexes of some partitions."""

    def __init__(self, request: SearcherRequest):
        self.engines: list[ImpactEngine] = []
        try:
            for folder in request.folders:
                manifest = check_partition(fetched(folder), request.collection)
                self.engines.append(open_impact_index(folder, manifest))
        except BaseException:
            self.close()
            raise

    def search(self, queries: Sequence[ImpactQuery], hits: int, threads: int) -> list[SentList]:
        """One ranked list per query."""
        found = [list(engine.search(queries, hits, threads)) for engine in self.engines]
        return [SentList.of(merged(lists, hits)) for lists in zip(*found, strict=True)]

    def search_tree(self, query_id: str, clause: Clause, hits: int) -> SentList:
        """The ranked list of a query tree."""
        return SentList.of(merged([engine.search_tree(query_id, clause, hits) for engine in self.engines], hits))

    def impacts(self, doc_id: str, terms: Sequence[str]) -> dict[str, int] | None:
        """The document's impacts of these terms; None if no partition has the document."""
        return self._first(lambda engine: engine.impacts(doc_id, terms))

    def vector(self, doc_id: str) -> dict[str, int] | None:
        """The document's vector; None if no partition has the document."""
        return self._first(lambda engine: engine.vector(doc_id))

    def greatest(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""
        # From 2^24 on, a bound is weight times greatest impact.
        limits = [[int(engine.bound({term: SCORE_LIMIT})) for engine in self.engines] for term in terms]
        return [max(bounds) // SCORE_LIMIT for bounds in limits]

    def served(self) -> Mapping[str, int]:
        """The number of searches that each form of the postings has answered, over all partitions."""
        return dict(sum((Counter(engine.served()) for engine in self.engines), Counter[str]()))

    def verified(self) -> None:
        """Waits until the files of all partitions are compared with their checksums."""
        for engine in self.engines:
            engine.verified()

    def close(self) -> None:
        """Closes the files."""
        for engine in self.engines:
            engine.close()

    def _first(self, read: Callable[[ImpactEngine], Found]) -> Found | None:
        for engine in self.engines:
            try:
                return read(engine)
            except DataError:
                continue
        return None


def open_searcher(request: SearcherRequest) -> Any:
    """Opens partitions; a function of a module, so that another process can be told to call it."""
    return PartitionSearcher(request)
