"""The exact engine in memory: the oracle of the impact engines, and the example of an engine that is plugged in."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from brute_force import Doc, Oracle
from scipy import sparse

from lexvl_anserini.engines.engine import ImpactEngine
from lexvl_anserini.engines.index_folder import BuiltIndex, folder_bytes, new_index, write_report
from lexvl_anserini.ground.errors import ArtefactError, DataError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_anserini.queries.clauses import Clause
from lexvl_anserini.runs.order import ranked, top_positions
from lexvl_anserini.shards.reading import read_impacts, read_vocabulary


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
        order = sorted(range(len(doc_ids)), key=doc_ids.__getitem__)
        # By column, because a query has few of them.
        self.columns = sparse.csc_matrix(vectors.tocsr()[order], dtype=exact)
        self.doc_ids = [doc_ids[row] for row in order]
        self.vocabulary = vocabulary

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
            yield [
                ScoredDoc(query.query_id, self.doc_ids[position], rank, float(scores[position]))
                for rank, position in enumerate(top_positions(scores, hits).tolist(), start=1)
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


class MemoryEngine(ImpactEngine):
    """An impact index whose folder is a copy of the shards; trees are evaluated document by document."""

    def __init__(self, index: Path, manifest: Manifest):
        self.exact = MemoryIndex.from_shards(index, manifest)
        vectors = read_impacts(index, manifest, self.exact.vocabulary)
        self.vectors = {document.doc_id: dict(document.vector) for document in vectors}
        self.oracle = Oracle([Doc(doc_id, vector) for doc_id, vector in self.vectors.items()])

    @staticmethod
    def build(
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: Any = None,
    ) -> BuiltIndex:
        found = MemoryIndex.from_shards(shards, manifest, progress)
        with new_index(index, shards, manifest) as part:
            shutil.copytree(shards / "docs", part / "docs")
            counts = {"documents": len(found.doc_ids), "empty": manifest.counts.empty, "postings": found.columns.nnz}
            write_report(part, {"engine": "memory", **counts, "bytes": folder_bytes(part)})
        return BuiltIndex(index, manifest, len(found.doc_ids))

    def search(self, queries: Iterable[Any], hits: int, threads: int = 1) -> Iterator[list[ScoredDoc]]:
        return self.exact.search(queries, hits)

    def search_tree(self, query_id: str, clause: Clause, hits: int) -> list[ScoredDoc]:
        return ranked(query_id, self.oracle.ranked(clause, hits))

    def impacts(self, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        vector = self.vector(doc_id)
        return {term: vector[term] for term in terms if term in vector}

    def vector(self, doc_id: str) -> dict[str, int]:
        if doc_id not in self.vectors:
            raise DataError(f"no document {doc_id!r} in the index")
        return self.vectors[doc_id]

    def bound(self, vector: Mapping[str, int]) -> int:
        return sum(w * max(found.get(term, 0) for found in self.vectors.values()) for term, w in vector.items())

    def close(self) -> None:
        """Nothing is open."""
