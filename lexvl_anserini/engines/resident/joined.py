"""Several files of resident postings as one: documents that were added to an index have a file of their own.

Scores are integer dot products, which need no statistics of all documents, so the best of all files are the best of the
lists of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lexvl_anserini.engines.resident.layout import BLOCK
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.query_vectors import QueryBatch
from lexvl_anserini.runs.order import RankedList, group_by_documents, merge_lists, rank_hits

if TYPE_CHECKING:
    from lexvl_anserini.engines.resident.plain import PlainPostings
    from lexvl_anserini.engines.resident.searching import ResidentPostings


class PostingLists(Protocol):
    """What answers queries from resident postings."""

    name: str

    def lists(
        self,
        queries: QueryBatch | Sequence[ImpactQuery],
        hits: int,
        threads: int,
        allowed: np.ndarray | None = None,
        best: int = 0,
    ) -> list[RankedList]:
        """One ranked list per query; as `searching.ResidentPostings.lists`."""

    def find_max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""

    def bounds(self, batch: QueryBatch) -> np.ndarray:
        """An upper bound of the score of any document for each query, float64 [queries]."""


class JoinedPostings:
    """The postings of several open files, of which each has the documents that follow those of the one before.

    Args:
        live: of each part which documents are not deleted, uint8 [documents]; None for all.
    """

    name = "resident"

    def __init__(self, parts: Sequence[PlainPostings] | Sequence[ResidentPostings], live: Sequence[np.ndarray | None]):
        self.parts, self.live = parts, live
        self.ends = np.cumsum([0, *(part.documents for part in parts)]).tolist()
        self.documents = self.ends[-1]

    def lists(
        self,
        queries: QueryBatch | Sequence[ImpactQuery],
        hits: int,
        threads: int,
        allowed: np.ndarray | None = None,
        best: int = 0,
    ) -> list[RankedList]:
        """One ranked list per query; as `searching.ResidentPostings.lists`."""
        batch = QueryBatch.build(queries)
        if len(self.parts) == 1:
            return self.parts[0].lists(batch, hits, threads, self.live[0] if allowed is None else allowed, best)
        if best > 1:
            # The best passages of a document may be in several files.
            def passages(some: Sequence[ImpactQuery], depth: int) -> list[RankedList]:
                return self.lists(some, min(depth, self.documents), threads, allowed)

            return list(group_by_documents(passages, map(ImpactQuery, batch.query_ids, batch.vectors), hits, best))

        def of_part(place: int, some: QueryBatch) -> list[RankedList]:
            documents = slice(self.ends[place], self.ends[place + 1])
            # No deleted document is allowed.
            mask = self.live[place] if allowed is None else allowed[documents]
            size = documents.stop - documents.start
            # Threads cost more than few documents.
            return self.parts[place].lists(some, min(hits, size), threads if size > BLOCK else 1, mask, best)

        ranked_lists = of_part(0, batch)
        for place in range(1, len(self.parts)):
            # Few documents seldom reach a list of the best of many.
            bounds = self.parts[place].bounds(batch).tolist()
            reached = [
                n for n, so_far in enumerate(ranked_lists) if len(so_far) < hits or bounds[n] >= so_far.scores[-1]
            ]
            some = QueryBatch([ImpactQuery(batch.query_ids[n], batch.vectors[n]) for n in reached])
            for number, more in zip(reached, of_part(place, some) if reached else (), strict=True):
                ranked_lists[number] = (best_of_passages if best else merge_lists)([ranked_lists[number], more], hits)
        return ranked_lists

    def find_max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""
        return [max(impacts) for impacts in zip(*(part.find_max_impacts(terms) for part in self.parts), strict=True)]

    def bounds(self, batch: QueryBatch) -> np.ndarray:
        """An upper bound of the score of any document for each query, float64 [queries]."""
        return batch.bounds(self.find_max_impacts)


def join_parts(
    parts: Sequence[PlainPostings] | Sequence[ResidentPostings], live: Sequence[np.ndarray | None]
) -> PostingLists:
    """The postings of all files; those of one file without deleted documents as they are."""
    return parts[0] if len(parts) == 1 and live[0] is None else JoinedPostings(parts, live)


def best_of_passages(lists: Sequence[RankedList], hits: int) -> RankedList:
    """The documents of several lists, each scored by the best of its passages: a list has its own best ones."""
    scores: dict[str, float] = {}
    for listed in lists:
        for document, score in listed.pairs():
            scores[document] = max(score, scores.get(document, 0))
    return rank_hits(lists[0].query_id, scores.items(), hits)
