"""The exact ranking by dot products, and how much of it another ranking finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.runs.order import top_positions

from ..measures.metrics import mean

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Cells of one dense block of scores: 2^23 float64 are 64 MB.
BLOCK_CELLS = 1 << 23


def exact_search(
    queries: csr_matrix, documents: csr_matrix, query_ids: Sequence[str], doc_ids: Sequence[str], k: int
) -> Iterator[ScoredDoc]:
    """Ranks by the dot product, in float64 or int64 as the matrices are; a document of score 0 is no hit.

    Args:
        queries: [Q, V].
        documents: [N, V].
        query_ids: Q of them.
        doc_ids: N of them.
        k: hits per topic; order is score descending, then doc_id ascending.
    """
    assert queries.shape[0] == len(query_ids) and documents.shape[0] == len(doc_ids)
    exact = np.int64 if np.issubdtype(documents.dtype, np.integer) else np.float64
    # The documents are sorted by id, so that the place decides between equal scores.
    order = sorted(range(len(doc_ids)), key=doc_ids.__getitem__)
    terms = documents[order].astype(exact).T.tocsr()  # [V, N]
    step = max(1, BLOCK_CELLS // max(1, len(doc_ids)))
    for start in range(0, len(query_ids), step):
        block = (queries[start : start + step].astype(exact) @ terms).toarray()  # [step, N]
        for query_id, scores in zip(query_ids[start : start + step], block, strict=True):
            for rank, place in enumerate(top_positions(scores, k), 1):
                yield ScoredDoc(query_id, doc_ids[order[place]], rank, scores[place].item())


def overlap(reference: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]], k: int) -> float:
    """Mean over the reference's topics of the share of its first k documents that the other's first k contain.

    A topic without any document in the reference does not count.
    """
    return mean(
        len(set(ranking[:k]) & set(other.get(query_id, ())[:k])) / len(ranking[:k])
        for query_id, ranking in reference.items()
        if ranking
    )
