"""Batches of encoded queries as columns, and the weights that they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import ImpactQuery, TermWeights, Vocabulary
from lexvl_anserini.queries.query_vectors import QueryBatch

VOCABULARY = Vocabulary(["a", "b", "c", "d"])


def encoded(weights: dict[int, int]) -> TermWeights:
    """A vector as an encoder's."""
    return TermWeights(VOCABULARY, np.array(list(weights), np.int32), np.array(list(weights.values()), np.int64))


def batch_of(*vectors: Any) -> QueryBatch:
    return QueryBatch([ImpactQuery(f"q{number}", vector) for number, vector in enumerate(vectors)])


def test_queries_follow_each_other():
    batch = batch_of({"x": 3, "y": 4}, {}, encoded({2: 5}), {"z": np.int32(6), "w": 2.0}, {})
    assert batch.query_ids == ["q0", "q1", "q2", "q3", "q4"] and len(batch) == 5
    assert batch.ends.tolist() == [0, 2, 2, 3, 5, 5] and batch.weights.tolist() == [3, 4, 5, 6, 2]
    assert [*map(dict, batch.vectors)] == [{"x": 3, "y": 4}, {}, {"c": 5}, {"z": 6, "w": 2}, {}]
    assert all(type(weight) is int for vector in batch.vectors for weight in vector.values())
    assert QueryBatch.build(batch) is batch and len(batch_of()) == 0 and batch_of().weights.dtype == np.int64


@pytest.mark.parametrize("weight", [0, -1, 1 << 24, 1 << 70, -(1 << 70), True, 1.5, float("nan"), "3", None])
def test_other_weights_are_refused_with_topic_and_term(weight: Any):
    with pytest.raises(UsageError, match="topic 'q1': weight .* of term 'b': expected an integer from 1 to 16,777,215"):
        batch_of({"a": 1}, {"a": 1, "b": weight})
    with pytest.raises(UsageError, match="topic 'q1': weight 16777216 of term 'd'"):  # those of an encoder too
        batch_of({"a": 1}, encoded({3: 1 << 24}))


def test_weights_of_a_single_query_are_columns_too():
    batch = batch_of(TermWeights(VOCABULARY, np.array([2], np.int32), np.array([5], np.int32)))
    assert batch.weights.tolist() == [5] and batch.weights.dtype == np.int64


@given(st.lists(st.lists(st.integers(1, (1 << 24) - 1), max_size=4), max_size=6))
def test_the_largest_sum(rows: list[list[int]]):
    batch = batch_of(*(dict(zip("abcd", row, strict=False)) for row in rows))
    assert batch.largest_sum() == max(map(sum, rows), default=0)
