"""FAISS beside ours: as many items of 512 dimensions, inner product, one query at a time on one thread.

The vectors are synthetic: unit vectors near a 64-dimensional subspace, as embeddings of texts and images are, so that a
graph search has something to find. A flat index takes the same time for any vectors.

Ours is exact, so the graph (HNSW) is measured where it is almost exact: with the smallest number of candidates, doubled
from FAISS's example value, that finds 99 % of the hits of the flat index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .processes import Ready, Stopwatch, one_by_one, resident_bytes

DIMENSIONS = 512
INNER = 64
NOISE = 0.05
DENSE_BLOCK = 20_000

# FAISS's own HNSW example values; EF_SEARCH is where the doubling starts.
HNSW_LINKS = 32
EF_CONSTRUCTION = 40
EF_SEARCH = 64

# Share of the exact hits that a graph search has to find.
RECALL = 0.99


def dense_vectors(count: int, seed: int, stream: int) -> Iterator[np.ndarray]:
    """Unit vectors, float32 [up to DENSE_BLOCK, DIMENSIONS] at a time; `stream` separates documents from queries."""
    basis = np.random.default_rng([seed, 0]).standard_normal((INNER, DIMENSIONS), dtype=np.float32)
    random = np.random.default_rng([seed, 1 + stream])
    for start in range(0, count, DENSE_BLOCK):
        rows = min(DENSE_BLOCK, count - start)
        block = random.standard_normal((rows, INNER), dtype=np.float32) @ basis / INNER**0.5
        block += NOISE * random.standard_normal((rows, DIMENSIONS), dtype=np.float32)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def search_faiss(kind: str, documents: int, query_count: int, seed: int) -> Ready:
    """A worker around a FAISS index (flat or hnsw); building uses all cores, searching one."""
    import faiss

    if kind == "flat":
        index: Any = faiss.IndexFlatIP(DIMENSIONS)
    else:
        index = faiss.IndexHNSWFlat(DIMENSIONS, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EF_CONSTRUCTION
    with Stopwatch() as watch:
        for block in dense_vectors(documents, seed, 0):
            index.add(block)
    faiss.omp_set_num_threads(1)
    queries = np.concatenate(list(dense_vectors(query_count, seed, 1)))

    efforts: dict[int, int] = {}

    def answer(task: str, hits: int, threads: int = 1) -> Any:
        if kind == "hnsw":
            if hits not in efforts:
                efforts[hits] = enough_candidates(index, queries, hits)
            index.hnsw.efSearch = efforts[hits]
        if task == "found":
            return {"hits": index.search(queries, hits)[1].tolist(), "candidates": efforts.get(hits)}
        return one_by_one(lambda query: index.search(query[None], hits), queries)

    return Ready({"build_s": watch.wall_s, "bytes": faiss_bytes(index), "resident_bytes": resident_bytes()}, answer)


def enough_candidates(index: Any, queries: np.ndarray, hits: int) -> int:
    """The least efSearch, doubled from EF_SEARCH or `hits`, that finds RECALL of the exact hits; at most all documents.

    Args:
        index: an IndexHNSWFlat; the vectors that it stores give the exact hits.
        queries: float32 [q, DIMENSIONS].
        hits: per query.
    """
    import faiss

    exact = faiss.downcast_index(index.storage).search(queries, hits)[1].tolist()
    index.hnsw.efSearch = max(EF_SEARCH, hits)
    while index.hnsw.efSearch < index.ntotal:
        if share_found(exact, index.search(queries, hits)[1].tolist()) >= RECALL:
            break
        index.hnsw.efSearch *= 2
    return int(index.hnsw.efSearch)


def share_found(exact: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]) -> float:
    """Mean over queries of the share of the exact list that is found; an empty list counts as found."""
    shares = [len(set(e) & set(f)) / len(e) if e else 1.0 for e, f in zip(exact, found, strict=True)]
    return sum(shares) / len(shares)


def faiss_bytes(index: Any) -> int:
    """Size of the index as FAISS writes it to a file; the bytes are dropped, so the peak stays that of a search."""
    import faiss

    pieces: list[int] = []
    writer = faiss.PyCallbackIOWriter(lambda piece: pieces.append(len(piece)))  # type: ignore[attr-defined]
    faiss.write_index(index, writer)
    # The writer has its own buffer, which it flushes when it is deleted.
    del writer
    return sum(pieces)
