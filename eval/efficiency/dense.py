"""FAISS beside the inverted index: as many items, 512 dimensions, inner product, one query at a time on one thread.

The vectors are made up: unit vectors near a 64-dimensional subspace, as embeddings of texts and pictures are, so that
a graph search has something to find. A flat index takes the same time for any vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np

from eval.efficiency.processes import Ready, Stopwatch, resident_bytes
from eval.efficiency.rankings import one_by_one

DIMENSIONS = 512
INNER = 64
NOISE = 0.05
BLOCK = 20_000

# FAISS's own HNSW example values; searching looks at as many candidates as hits are wanted, at least EF_SEARCH.
HNSW_LINKS = 32
EF_CONSTRUCTION = 40
EF_SEARCH = 64


def vectors(count: int, seed: int, stream: int) -> Iterator[np.ndarray]:
    """Unit vectors, float32 [up to BLOCK, DIMENSIONS] at a time; `stream` parts documents from queries."""
    basis = np.random.default_rng([seed, 0]).standard_normal((INNER, DIMENSIONS), dtype=np.float32)
    random = np.random.default_rng([seed, 1 + stream])
    for start in range(0, count, BLOCK):
        rows = min(BLOCK, count - start)
        block = random.standard_normal((rows, INNER), dtype=np.float32) @ basis / INNER**0.5
        block += NOISE * random.standard_normal((rows, DIMENSIONS), dtype=np.float32)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def new_index(kind: str) -> Any:
    """An empty index: flat or hnsw."""
    if kind == "flat":
        return faiss.IndexFlatIP(DIMENSIONS)
    graph = faiss.IndexHNSWFlat(DIMENSIONS, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = EF_CONSTRUCTION
    return graph


def search(kind: str, documents: int, query_count: int, seed: int) -> Ready:
    """A worker around a FAISS index; building uses all cores, searching one."""
    index = new_index(kind)
    with Stopwatch() as watch:
        for block in vectors(documents, seed, 0):
            index.add(block)
    faiss.omp_set_num_threads(1)
    asked = np.concatenate(list(vectors(query_count, seed, 1)))

    def answer(task: str, hits: int, threads: int = 1) -> Any:
        if kind == "hnsw":
            index.hnsw.efSearch = max(EF_SEARCH, hits)
        if task == "found":
            return index.search(asked, hits)[1].tolist()
        return one_by_one(lambda query: index.search(query[None], hits), asked)

    return Ready({"build_s": watch.wall_s, "bytes": faiss_bytes(index), "resident_bytes": resident_bytes()}, answer)


def faiss_bytes(index: Any) -> int:
    """Size of the index as FAISS writes it to a file; nothing is kept, so that the peak stays that of searching."""
    pieces: list[int] = []
    writer = faiss.PyCallbackIOWriter(lambda piece: pieces.append(len(piece)))  # type: ignore[attr-defined]
    faiss.write_index(index, writer)
    # The writer keeps a buffer of its own, which goes out when it is let go.
    del writer
    return sum(pieces)
