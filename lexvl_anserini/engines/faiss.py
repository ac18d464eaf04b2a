"""The dense engine: a FAISS flat index, every inner product computed, lists in the total order of all engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from lexvl_anserini.cli import Progress, silent
from lexvl_anserini.engines.folder import folder_bytes, new_index, write_report
from lexvl_anserini.engines.shards import SeenIds, expect_counts, read_ids, read_vectors
from lexvl_anserini.errors import ArtefactError, UsageError
from lexvl_anserini.records import DenseQuery, Index, Manifest, ScoredDoc

INDEX_FILE = "index.faiss"
IDS_FILE = "ids.txt"

BATCH_SIZE = 64

# How many more than `hits` are fetched at first, to see past ties at the cut.
MARGIN = 16


class FaissEngine:
    """Searches a flat inner-product index.

    FAISS's own sums depend on the size of the batch in their last bits. The fetched documents are therefore scored
    again in float64, rounded to float32, so that equal vectors have equal scores and a list is always the same.

    Raises:
        ArtefactError: a file is missing, or the numbers of vectors, ids and documents differ.
    """

    def __init__(self, index: Path, manifest: Manifest):
        try:
            self.flat = faiss.read_index(str(index / INDEX_FILE))
            self.doc_ids = (index / IDS_FILE).read_text(encoding="utf-8").split("\n")[:-1]
        except (OSError, RuntimeError) as error:
            raise ArtefactError(f"{index}: cannot be opened as a FAISS index ({str(error).splitlines()[0]})") from error
        expected = manifest.counts["documents"]
        if not self.flat.ntotal == len(self.doc_ids) == expected:
            raise ArtefactError(
                f"{index}: {self.flat.ntotal} vectors and {len(self.doc_ids)} ids, the manifest says {expected} "
                "documents; index again"
            )
        # A view of the index's own memory, no copy.
        floats: Any = self.flat
        self.vectors = faiss.rev_swig_ptr(floats.get_xb(), expected * floats.d).reshape(expected, floats.d)
        self.longest = max(
            (float(np.linalg.norm(self.vectors[i : i + 8192], axis=1).max()) for i in range(0, expected, 8192)),
            default=0.0,
        )

    @staticmethod
    def build(shards: Path, index: Path, manifest: Manifest, threads: int = 1, progress: Progress = silent) -> Index:
        """Reads the shards batch by batch; the index itself, 4 bytes a dimension, is held in memory.

        Raises:
            ArtefactError: a shard is damaged or malformed, or an id occurs twice.
        """
        flat = None
        seen = SeenIds()
        documents = 0
        with new_index(index, shards, manifest) as part:
            with open(part / IDS_FILE, "w", encoding="utf-8") as ids:
                for batch in read_vectors(shards, manifest):
                    flat = flat or faiss.IndexFlatIP(batch.vectors.shape[1])
                    flat.add(np.ascontiguousarray(batch.vectors))
                    for doc_id in batch.doc_ids:
                        seen.add(doc_id)
                        ids.write(f"{doc_id}\n")
                    documents += len(batch.doc_ids)
                    progress(len(batch.doc_ids))
            if flat is None:
                raise ArtefactError(f"{shards}: no document; nothing to index")
            seen.refuse_twice(lambda: read_ids(shards, manifest))
            expect_counts(str(shards), {"documents": documents}, manifest.counts)
            faiss.write_index(flat, str(part / INDEX_FILE))
            report = {"engine": "faiss", "documents": documents, "empty": 0, "postings": 0, "dimensions": flat.d}
            write_report(part, {**report, "bytes": folder_bytes(part)})
        return Index(index, manifest, documents)

    def search(self, queries: Iterable[DenseQuery], hits: int, threads: int = 1) -> Iterator[list[ScoredDoc]]:
        """One list per query, in batches on `threads` threads.

        Raises:
            UsageError: `hits` is below 1, or a query has another number of dimensions or is not finite.
        """
        if hits < 1:
            raise UsageError(f"hits is {hits}, expected at least 1")
        faiss.omp_set_num_threads(threads)
        stream = iter(queries)
        while batch := list(islice(stream, BATCH_SIZE)):
            yield from self._search_batch(batch, hits)

    def close(self) -> None:
        """Nothing is open; the vectors are in memory."""

    def _search_batch(self, batch: Sequence[DenseQuery], hits: int) -> Iterator[list[ScoredDoc]]:
        for query in batch:
            if query.vector.shape != (self.flat.d,) or not np.isfinite(query.vector).all():
                raise UsageError(
                    f"topic {query.query_id!r}: vector {query.vector.shape}, expected ({self.flat.d},) finite numbers; "
                    "is it the encoder of the index?"
                )
        matrix = np.stack([query.vector for query in batch]).astype(np.float32)  # [B, D]
        fetch = min(hits + MARGIN, self.flat.ntotal)
        scores, positions = self.flat.search(matrix, fetch)  # [B, fetch] each
        for row, query in enumerate(batch):
            yield self._ranked(query, hits, scores[row], positions[row])

    def _ranked(self, query: DenseQuery, hits: int, scores: np.ndarray, positions: np.ndarray) -> list[ScoredDoc]:
        """Exact scores and order of the fetched documents, fetching more until none outside can be among `hits`."""
        exact = self.exact_scores(query.vector, positions)
        while len(positions) < self.flat.ntotal:
            # What was not fetched has at most the last score, give or take the rounding of a float32 sum of D terms.
            rounding = 2 * self.flat.d * 2.0**-24 * float(np.linalg.norm(query.vector)) * self.longest
            if np.partition(exact, -hits)[-hits] > scores[-1] + rounding:
                break
            fetch = min(4 * len(positions), self.flat.ntotal)
            [scores], [positions] = self.flat.search(query.vector[None].astype(np.float32), fetch)
            exact = self.exact_scores(query.vector, positions)
        ids = [self.doc_ids[position] for position in positions]
        ranked = sorted(zip(exact.tolist(), ids, strict=True), key=lambda scored: (-scored[0], scored[1]))[:hits]
        return [ScoredDoc(query.query_id, doc_id, rank, score) for rank, (score, doc_id) in enumerate(ranked, start=1)]

    def exact_scores(self, vector: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Inner products in float64, rounded to float32; each row is summed on its own, equal rows are equal."""
        products = self.vectors[positions].astype(np.float64) * vector.astype(np.float64)  # [k, D]
        return products.sum(axis=1).astype(np.float32)
