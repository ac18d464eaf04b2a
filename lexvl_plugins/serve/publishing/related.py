"""Terms that the page offers beside those of a query: those that the same documents have."""

from __future__ import annotations

import numpy as np

from lexvl_plugins.serve.publishing.postings import TermPostings

# Terms that are offered for a term, and the least cosine.
OFFERED = 5
LEAST = 0.25

# A term of fewer documents is near others by chance.
LEAST_DOCUMENTS = 3

# Terms that are compared with all others at once: float32 [BATCH, V] is dense.
BATCH = 256


def related_terms(postings: TermPostings) -> list[list[int]]:
    """For each dimension, those whose impacts over all documents have the greatest cosine with its own, best first."""
    from scipy import sparse

    matrix = postings.matrix()
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    few = np.diff(matrix.indptr) < LEAST_DOCUMENTS
    unit = sparse.diags_array(np.where(few, 0, 1 / np.maximum(lengths, 1)).astype(np.float32)) @ matrix
    transposed, offered = unit.T.tocsc(), []
    for begin in range(0, len(few), BATCH):
        cosines = (unit[begin : begin + BATCH] @ transposed).toarray()
        rows = np.arange(len(cosines))
        cosines[rows, begin + rows] = 0
        for row in cosines:
            best = np.argsort(-row, kind="stable")[:OFFERED]
            offered.append(best[row[best] >= LEAST].tolist())
    return offered
