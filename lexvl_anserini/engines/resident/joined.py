"""Several files of resident postings as one: documents that were added to an index have a file of their own.

Scores are integer dot products, which need no statistics of all documents, so the best of all files are the best of the
lists of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lexvl_anserini.engines.resident.layout import BLOCK
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.batches import QueryBatch
from lexvl_anserini.runs.order import RankedList, merged, ranked
from lexvl_anserini.runs.passages import by_documents


class PostingLists(Protocol):
    """What answers queries from resident postings.

    documents  how many it has, deleted ones included
    """

    name: str
    documents: int

    def lists(
        self,
        queries: QueryBatch | Sequence[ImpactQuery],
        hits: int,
        threads: int,
        allowed: np.ndarray | None = None,
        best: int = 0,
    ) -> list[RankedList]:
        """One ranked list per query; as `searching.ResidentPostings.lists`."""

    def max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""


class JoinedPostings:
    """The postings of several open files, of which each has the documents that follow those of the one before."""

    name = "resident"

    def __init__(self, parts: Sequence[PostingLists]):
        self.parts = parts
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
        batch = QueryBatch.of(queries)
        if best > 1:
            # The best passages of a document may be in several files.
            def passages(some: Sequence[ImpactQuery], depth: int) -> list[RankedList]:
                return self.lists(some, min(depth, self.documents), threads, allowed)

            return list(by_documents(passages, map(ImpactQuery, batch.query_ids, batch.vectors), hits, best))
        found = []
        for part, start, end in zip(self.parts, self.ends, self.ends[1:], strict=False):
            mask = None if allowed is None else allowed[start:end]
            # Few documents take less time than threads do.
            found.append(part.lists(batch, min(hits, end - start), threads if end - start > BLOCK else 1, mask, best))
        return [(best_of_passages if best else merged)(lists, hits) for lists in zip(*found, strict=True)]

    def max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""
        return [max(impacts) for impacts in zip(*(part.max_impacts(terms) for part in self.parts), strict=True)]


def joined(parts: Sequence[PostingLists]) -> PostingLists:
    """The postings of all files; those of one file as they are."""
    return parts[0] if len(parts) == 1 else JoinedPostings(parts)


def best_of_passages(lists: Sequence[RankedList], hits: int) -> RankedList:
    """The documents of several lists, each scored by the best of its passages: a list has its own best ones."""
    scores: dict[str, float] = {}
    for listed in lists:
        for document, score in listed.pairs():
            scores[document] = max(score, scores.get(document, 0))
    return ranked(lists[0].query_id, scores.items(), hits)
