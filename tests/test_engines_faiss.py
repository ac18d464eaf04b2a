from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_engines_shards import Documents, write_dense_shards

from lexvl_anserini.engines.faiss import FaissEngine
from lexvl_anserini.errors import ArtefactError, UsageError
from lexvl_anserini.records import DenseQuery, ScoredDoc


def built(folder: Path, *shards: Documents) -> FaissEngine:
    manifest = write_dense_shards(folder / "shards", *shards)
    FaissEngine.build(folder / "shards", folder / "index", manifest)
    return FaissEngine(folder / "index", manifest)


def query(*vector: float) -> DenseQuery:
    return DenseQuery("q", np.array(vector, dtype=np.float32))


def test_scores_are_inner_products(tmp_path: Path) -> None:
    engine = built(tmp_path, [("b", [1, 0]), ("a", [1, 0])], [("c", [0, 2]), ("d", [-1, 0])])
    assert list(engine.search([query(2, 1), query(0, 0)], 3)) == [
        [ScoredDoc("q", "a", 1, 2.0), ScoredDoc("q", "b", 2, 2.0), ScoredDoc("q", "c", 3, 2.0)],
        [ScoredDoc("q", "a", 1, 0.0), ScoredDoc("q", "b", 2, 0.0), ScoredDoc("q", "c", 3, 0.0)],
    ]


def test_ties_wider_than_the_margin_keep_the_smallest_ids(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tied = [(f"t{i:03d}", [1.0, 0.5, 0.25]) for i in rng.permutation(200)]
    engine = built(tmp_path, [("top", [2, 2, 2]), *tied, ("last", [0, 0, 0.1])])
    [documents] = engine.search([query(0.3, 0.7, 0.1)], 4)
    assert [d.doc_id for d in documents] == ["top", "t000", "t001", "t002"]


def test_lists_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(500, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[250:] = vectors[:250]
    engine = built(tmp_path, [(f"d{i}", v) for i, v in enumerate(vectors)])
    queries = [DenseQuery(f"q{i}", v) for i, v in enumerate(rng.normal(size=(100, 64)).astype(np.float32))]
    together = list(engine.search(queries, 30, threads=2))
    assert together == [documents for q in queries for documents in engine.search([q], 30)]
    for q, documents in zip(queries, together, strict=True):
        exact = (vectors.astype(np.float64) * q.vector).sum(axis=1).astype(np.float32)
        order = sorted(range(500), key=lambda i: (-exact[i], f"d{i}"))[:30]
        assert [d.doc_id for d in documents] == [f"d{i}" for i in order]


def test_more_hits_than_documents(tmp_path: Path) -> None:
    assert len(next(built(tmp_path, [("a", [1.0])]).search([query(1)], 1000))) == 1


@pytest.mark.parametrize("vector", [[1.0], [1.0, float("nan")]])
def test_queries_of_another_encoder(tmp_path: Path, vector: list[float]) -> None:
    engine = built(tmp_path, [("a", [1.0, 2.0])])
    with pytest.raises(UsageError, match=r"topic 'q': vector \(\d,\), expected \(2,\) finite numbers"):
        list(engine.search([query(*vector)], 5))


def test_bad_shards_leave_nothing(tmp_path: Path) -> None:
    for name, documents, message in (
        ("twice", [("a", [1]), ("a", [2])], "'a' occurs twice"),
        ("none", [], "no document"),
    ):
        manifest = write_dense_shards(tmp_path / name, documents)
        with pytest.raises(ArtefactError, match=message):
            FaissEngine.build(tmp_path / name, tmp_path / "index", manifest)
    assert not (tmp_path / "index").exists() and not (tmp_path / "index.part").exists()


def test_damaged_index(tmp_path: Path) -> None:
    built(tmp_path, [("a", [1.0]), ("b", [2.0])])
    other: Any = write_dense_shards(tmp_path / "other", [("a", [1.0])])
    with pytest.raises(ArtefactError, match="2 vectors and 2 ids, the manifest says 1 documents"):
        FaissEngine(tmp_path / "index", other)
    (tmp_path / "index/index.faiss").write_bytes(b"no")
    with pytest.raises(ArtefactError, match="cannot be opened as a FAISS index"):
        FaissEngine(tmp_path / "index", other)
