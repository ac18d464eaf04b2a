"""The exact oracle: every score a dot product in 64-bit integers, every list totally ordered.

It answers what an impact index must answer. Weights that are floats give the lists before quantising.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from lexvl_anserini.errors import ArtefactError
from lexvl_anserini.manifest import Manifest
from lexvl_anserini.progress import Progress, silent
from lexvl_anserini.records import ScoredDoc
from lexvl_anserini.shards.reading import read_impacts, read_vocabulary
from lexvl_anserini.vocabulary import Vocabulary


class MemoryIndex:
    """Documents as a matrix [n, V] of impacts (int64) or weights (float64), searched by multiplication.

    Raises:
        ArtefactError: rows and ids, or columns and terms, differ in number, or an id occurs twice.
    """

    def __init__(self, vectors: Any, doc_ids: Sequence[str], vocabulary: Vocabulary):
        if vectors.shape != (len(doc_ids), len(vocabulary)):
            raise ArtefactError(f"vectors {vectors.shape}, expected {(len(doc_ids), len(vocabulary))} (ids, terms)")
        if len(set(doc_ids)) != len(doc_ids):
            raise ArtefactError("document ids must be distinct")
        exact = np.int64 if np.issubdtype(vectors.dtype, np.integer) else np.float64
        # By column, because a query touches few of them.
        self.columns = sparse.csc_matrix(vectors, dtype=exact)
        self.doc_ids = list(doc_ids)
        self.vocabulary = vocabulary
        # Position of each document when ids are sorted by code points: what parts equal scores.
        self.by_id = np.empty(len(doc_ids), dtype=np.int64)
        self.by_id[sorted(range(len(doc_ids)), key=self.doc_ids.__getitem__)] = np.arange(len(doc_ids))

    @classmethod
    def from_shards(cls, shards: Path, manifest: Manifest, progress: Progress = silent) -> MemoryIndex:
        """Reads impact shards whole.

        Raises:
            ArtefactError: as `read_impacts`.
        """
        vocabulary = read_vocabulary(shards, manifest)
        dims: list[int] = []
        impacts: list[int] = []
        indptr, doc_ids = [0], []
        for document in read_impacts(shards, manifest, vocabulary):
            doc_ids.append(document.doc_id)
            dims.extend(vocabulary.dimension[term] for term in document.vector)
            impacts.extend(document.vector.values())
            indptr.append(len(dims))
            progress(1)
        matrix = sparse.csr_matrix(
            (np.array(impacts, dtype=np.int64), np.array(dims, dtype=np.int64), indptr),
            shape=(len(doc_ids), len(vocabulary)),
        )
        return cls(matrix, doc_ids, vocabulary)

    def search(self, queries: Iterable[Any], hits: int, threads: int = 1) -> Iterator[list[ScoredDoc]]:
        """One list per query (`ImpactQuery`, or any `query_id` with a mapping of term to weight)."""
        for query in queries:
            scores = self.scores(query.vector)
            found = np.flatnonzero(scores > 0)
            order = found[np.lexsort((self.by_id[found], -scores[found]))][:hits]
            yield [
                ScoredDoc(query.query_id, self.doc_ids[i], rank, float(scores[i]))
                for rank, i in enumerate(order.tolist(), start=1)
            ]

    def scores(self, vector: Mapping[str, float]) -> np.ndarray:
        """The score of every document [n]; a term without a dimension adds nothing."""
        known = {
            self.vocabulary.dimension[term]: weight
            for term, weight in vector.items()
            if term in self.vocabulary.dimension
        }
        weights = np.array(list(known.values()), dtype=self.columns.dtype)
        return np.asarray(self.columns[:, list(known)] @ weights)

    def close(self) -> None:
        """Nothing is open."""
