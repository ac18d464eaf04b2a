from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from memory_engine import MemoryIndex
from scipy import sparse

from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import ImpactQuery, ScoredDoc
from lexvl_anserini.ground.vocabulary import Vocabulary
from tests.shards.test_reading import write_shards

VOCABULARY = Vocabulary(["a", "b", "c"])


def index(rows: list[list[float]], ids: list[str]) -> MemoryIndex:
    return MemoryIndex(sparse.csr_matrix(np.array(rows)), ids, VOCABULARY)


def test_integers_beyond_float32_are_exact() -> None:
    big = 2**40
    oracle = index([[big, 1, 0], [big, 2, 0], [0, 0, 5]], ["x", "y", "z"])
    assert list(oracle.search([ImpactQuery("q", {"a": 3, "b": 1})], 5)) == [
        [ScoredDoc("q", "y", 1, 3 * big + 2), ScoredDoc("q", "x", 2, 3 * big + 1)]
    ]


def test_ties_are_in_the_order_of_code_points() -> None:
    ids = ["é1", "doc9", "doc10", "Doc1", "😀", "ﬁ"]
    [documents] = index([[1, 0, 0]] * 6, ids).search([ImpactQuery("q", {"a": 2})], 5)
    assert [d.doc_id for d in documents] == ["Doc1", "doc10", "doc9", "é1", "ﬁ"]


def test_float_weights() -> None:
    oracle = index([[0.5, 0, 0], [0.25, 0.5, 0]], ["x", "y"])
    [documents] = oracle.search([ImpactQuery("q", {"a": 0.5, "b": 0.25})], 5)  # type: ignore[dict-item]
    assert [(d.doc_id, d.score) for d in documents] == [("x", 0.25), ("y", 0.25)]


def test_empty_and_unmatched_queries() -> None:
    oracle = index([[1, 0, 0]], ["x"])
    assert (
        list(oracle.search([ImpactQuery("q", {}), ImpactQuery("r", {"c": 1}), ImpactQuery("s", {"?": 1})], 5))
        == [[]] * 3
    )


def test_from_shards(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path, [("d1", {"a": 3}), ("d2", {})], [("d3", {"b": 2, "a": 1})])
    oracle = MemoryIndex.from_shards(tmp_path, manifest)
    assert oracle.doc_ids == ["d1", "d2", "d3"]
    assert oracle.columns.toarray().tolist() == [[3, 0], [0, 0], [1, 2]]


def test_wrong_shapes_and_ids() -> None:
    with pytest.raises(ArtefactError, match=r"vectors \(1, 3\), expected \(2, 3\)"):
        index([[1, 0, 0]], ["x", "y"])
    with pytest.raises(ArtefactError, match="must be distinct"):
        index([[1, 0, 0]] * 2, ["x", "x"])
