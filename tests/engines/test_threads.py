"""Threads that share an open index: each list is that of one thread, whatever the engine."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from shard_folders import write_text_shards

from lexvl_anserini.engines.bm25 import BM25Engine
from lexvl_anserini.ground.records import DenseQuery, Topic
from tests.engines.test_faiss import built, clustered, documents

THREADS = 8


@pytest.mark.parametrize("options", [{}, {"faiss": "hnsw"}, {"faiss": "ivfpq", "nlist": 8, "m": 4, "nbits": 4}])
def test_vectors(tmp_path, options):
    """The first searches too: opened twice, one index answers one thread and the other answers eight."""
    vectors = clustered(400, 16)
    engine = built(tmp_path / "alone", documents(vectors), **options)
    queries = [DenseQuery(f"q{number}", vector) for number, vector in enumerate(clustered(64, 16, seed=1))]
    expected = list(engine.search(queries, 20))
    shared = built(tmp_path / "shared", documents(vectors), **options)
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda query: next(shared.search([query], 20, threads=2)), queries * 3))
    assert found == expected * 3


def test_texts(tmp_path):
    draws = np.random.default_rng(2)
    words = np.array(["dog", "cat", "sea", "boat", "beach", "child", "red", "sand"])
    rows = [(f"d{number}", " ".join(draws.choice(words, 6))) for number in range(60)]
    manifest = write_text_shards(tmp_path / "shards", rows)
    BM25Engine.build(tmp_path / "shards", tmp_path / "index", manifest)
    engine = BM25Engine(tmp_path / "index", manifest)
    topics = [Topic(f"q{number}", " ".join(draws.choice(words, 2))) for number in range(24)]
    expected = [next(engine.search([topic], 10)) for topic in topics]
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(lambda topic: next(engine.search([topic], 10)), topics * 3)) == expected * 3
    engine.close()
