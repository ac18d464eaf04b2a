"""Encoded queries of a batch as columns, with weights that are checked for all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery
from lexvl_anserini.ground.vocabulary import TermWeights
from lexvl_anserini.queries.clauses import Impacts

NO_WEIGHTS = np.zeros(0, np.int64)


class QueryBatch:
    """Queries that an engine answers together; the terms of query q are numbers ends[q] to ends[q + 1].

    query_ids  of the topics
    vectors    term -> weight, as Python's own integers
    ends       int64 [Q + 1]
    weights    int64 [ends[Q]], 1 to 2^24 - 1

    Raises:
        UsageError: a weight is no integer from 1 to 2^24 - 1.
    """

    def __init__(self, queries: Sequence[ImpactQuery]):
        self.query_ids, self.vectors = list[str](), list[Mapping[str, int]]()
        for query_id, vector in queries:
            plain = isinstance(vector, TermWeights) or set(map(type, vector.values())) <= {int}
            self.query_ids.append(query_id)
            self.vectors.append(vector if plain else _integers(query_id, vector))
        self.ends = np.fromiter(accumulate(map(len, self.vectors), initial=0), np.int64, len(self.vectors) + 1)
        try:
            self.weights = together([*map(_weights, self.vectors)], NO_WEIGHTS)
            inside = not len(self.weights) or 1 <= self.weights.min() <= self.weights.max() < SCORE_LIMIT
        except OverflowError:
            inside = False
        if not inside:
            for query_id, vector in zip(self.query_ids, self.vectors, strict=True):
                _integers(query_id, vector)

    @classmethod
    def of(cls, queries: QueryBatch | Sequence[ImpactQuery]) -> QueryBatch:
        """The queries as a batch, which they may be already."""
        return queries if isinstance(queries, QueryBatch) else cls(queries)

    def __len__(self) -> int:
        return len(self.vectors)

    def bounds(self, max_impacts: Callable[[Sequence[str]], Sequence[int]]) -> np.ndarray:
        """An upper bound of each query's scores, float64 [Q], exact below 2^53, by the greatest impact of each term."""
        pairs = ((vector.values(), max_impacts(list(vector))) for vector in self.vectors)
        return np.array([sum(map(mul, *pair)) for pair in pairs], np.float64)

    def largest_sum(self) -> int:
        """The largest sum of a query's weights."""
        if len(self) == 1:
            return int(self.weights.sum())
        starts = self.ends[:-1]
        # An empty query counts with the first weight of the next, and not at all behind the last.
        starts = starts[starts < len(self.weights)]
        return int(np.add.reduceat(self.weights, starts).max()) if len(starts) else 0


def together(arrays: Sequence[np.ndarray], none: np.ndarray) -> np.ndarray:
    """Arrays after each other, of the type of `none`, which is that of no arrays; a single one is not copied."""
    return np.asarray(arrays[0], none.dtype) if len(arrays) == 1 else np.concatenate([none, *arrays])


def _weights(vector: Mapping[str, int]) -> np.ndarray:
    if isinstance(vector, TermWeights):
        return vector.weights
    return np.fromiter(vector.values(), np.int64, len(vector))


def _integers(query_id: str, vector: Mapping[str, int]) -> Mapping[str, int]:
    """The weights as Python's own integers."""
    try:
        return Impacts(vector).vector
    except UsageError as error:
        raise UsageError(f"topic {query_id!r}: {error}") from error
