"""Whether a store's lists are those of exact dot products: some documents of an index are its queries."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.doors.stores.fetching import best_hits
from lexvl_anserini.doors.stores.store import ImpactStore, StoreRow
from lexvl_anserini.ground.records import SCORE_LIMIT
from lexvl_anserini.runs.order import ranked

if TYPE_CHECKING:
    from lexvl_anserini.ground.records import ScoredDoc

# Documents that become queries, the hits of their lists, and the heaviest terms that they keep.
PROBES = 20
HITS = 10
TERMS = 64

Query = dict[int, int]


class ProbePicker:
    """Picks documents with postings, at equal distances in the order of the shards.

    Args:
        documents: how many there are.
    """

    def __init__(self, documents: int):
        self.step, self.seen = max(1, documents // PROBES), 0
        self.rows: list[StoreRow] = []

    def see(self, rows: Iterable[StoreRow]) -> None:
        """Looks at the next documents."""
        for row in rows:
            if row.dims:
                if self.seen % self.step == 0 and len(self.rows) < PROBES:
                    self.rows.append(row)
                self.seen += 1

    def queries(self, greatest: np.ndarray) -> list[Query]:
        """The picked documents as queries, whose scores stay below 2^24.

        Args:
            greatest: impact of each dimension in the index.
        """
        return [_query(row, greatest) for row in self.rows]


def _query(row: StoreRow, greatest: np.ndarray) -> Query:
    heaviest = sorted(zip(row.dims, row.impacts, strict=True), key=lambda pair: (-pair[1], pair[0]))[:TERMS]
    while True:
        query = {dim: weight for dim, weight in sorted(heaviest) if weight}
        if sum(weight * int(greatest[dim]) for dim, weight in query.items()) < SCORE_LIMIT:
            return query
        # Half of each weight; once all are 1, fewer terms.
        if max(query.values()) > 1:
            heaviest = [(dim, weight // 2) for dim, weight in heaviest]
        else:
            heaviest = heaviest[: len(heaviest) // 2]


def exact_lists(queries: Sequence[Query], batches: Iterable[Sequence[StoreRow]], width: int) -> list[list[ScoredDoc]]:
    """The best documents of each query, by integer dot products over all documents.

    Args:
        batches: all documents of the shards.
        width: the number of dimensions.
    """
    weights = np.zeros((width, len(queries)), np.int64)  # [V, P]
    for column, query in enumerate(queries):
        weights[list(query), column] = list(query.values())
    best: list[list[tuple[int, str]]] = [[] for _ in queries]
    for rows in batches:
        filled = [row for row in rows if row.dims]
        if not filled:
            continue
        dims = np.fromiter((dim for row in filled for dim in row.dims), np.int64)
        impacts = np.fromiter((impact for row in filled for impact in row.impacts), np.int64)
        starts = np.cumsum([0, *(len(row.dims) for row in filled[:-1])])
        scores = np.add.reduceat(weights[dims] * impacts[:, None], starts)  # [B, P]
        for column, kept in enumerate(best):
            found = np.flatnonzero(scores[:, column])
            new = [(-int(scores[place, column]), filled[place].doc_id) for place in found.tolist()]
            best[column] = heapq.nsmallest(HITS, [*kept, *new])
    return [ranked("probe", ((doc_id, -score) for score, doc_id in kept)) for kept in best]


def measured_loss(store: ImpactStore, queries: Sequence[Query], expected: Sequence[list[ScoredDoc]]) -> dict[str, Any]:
    """How a store's lists differ from the exact ones.

    Returns:
        The number of probes, the share of lists that differ in ids, order or scores, and the largest difference of a
        score at one rank.
    """
    changed, largest = 0, 0.0
    for query, exact in zip(queries, expected, strict=True):
        hits = best_hits(store, list(query), list(query.values()), HITS, "a probe")
        found = ranked("probe", hits, HITS)
        changed += found != exact
        # A list that is too short differs by the whole score.
        pairs = zip([*found, *exact[len(found) :]], [*exact, *found[len(exact) :]], strict=True)
        for place, (one, other) in enumerate(pairs):
            both = place < min(len(found), len(exact))
            largest = max(largest, abs(one.score - other.score) if both else one.score)
    share = round(changed / len(queries), 4) if queries else 0.0
    return {"probes": len(queries), "lists_changed": share, "largest_difference": largest}
