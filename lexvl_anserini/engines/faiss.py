"""The engine for dense vectors: FAISS stores them in one of several layouts; lists have the total order of all engines.

A flat index is exact and the reference; the others (see `faiss_layouts`) trade recall for memory or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lexvl_anserini.data.checks import SeenIds
from lexvl_anserini.engines.engine import Engine, EngineOptions
from lexvl_anserini.engines.faiss_layouts import LAYOUTS, Store, find_layout, select_parameters, set_faiss_threads
from lexvl_anserini.engines.index_folder import (
    BuiltIndex,
    measure_folder,
    read_report,
    report_digest,
    write_index,
    write_report,
)
from lexvl_anserini.engines.verifying import compare_digests
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import DenseQuery
from lexvl_anserini.ground.typed import MOST_THREADS, check_count
from lexvl_anserini.runs.order import RankedList, rank_hits
from lexvl_anserini.shards.reading import check_distinct, expect_counts, read_ids, read_vectors

INDEX_FILE = "index.faiss"
IDS_FILE = "ids.txt"

# The option that names the layout; the others are the layout's parameters.
LAYOUT = "faiss"

BATCH_SIZE = 64

# How many more than `hits` are fetched at first, to see past ties at the cut.
MARGIN = 16

# Draws the sample that a layout learns from.
TRAINING_SEED = 20240307


@dataclass(frozen=True)
class FaissOptions(EngineOptions):
    """How vectors are stored.

    layout      a row of `faiss_layouts.LAYOUTS`
    parameters  of the layout; the others are chosen for the collection
    """

    layout: str = "flat"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The requested options, named as in index.json."""
        return {"layout": self.layout, **self.parameters}


class FaissEngine(Engine):
    """A dense index on disk, searched by inner product.

    FAISS's own sums depend on the size of the batch in their last bits. The fetched documents are therefore scored
    again in float64, rounded to float32, so that equal vectors have equal scores and a list is always the same. Where
    the layout compares all vectors, lists are exact across the cut at `hits`, ties included; where it does not, they
    are ordered in the same way but may miss documents.

    Args:
        parameters: of searching (`ef_search`, `nprobe`, `rescore`), instead of those the index was built with.

    Raises:
        ArtefactError: a file is missing, or the numbers of vectors, ids and documents differ.
        UsageError: a parameter that the layout has not, or that an index is built with.
    """

    option_names = frozenset({LAYOUT, *(name for layout in LAYOUTS.values() for name in layout.defaults)})

    def __init__(self, index: Path, manifest: Manifest, parameters: Mapping[str, Any] | None = None):
        report = read_report(index)
        if not report:
            raise ArtefactError(f"{index}: no index.json, which says how the vectors are stored; index again")
        if report.digest and report.digest != report_digest(report, manifest):
            raise ArtefactError(f"{index}: index.json and manifest.json are not as they were written; index again")
        compare_digests(index, report.files)
        stored = dict(self.read_options(report))
        name = stored.pop("layout")
        try:
            store = Store.read(index / INDEX_FILE, name, report.get("dimensions"), stored)
            doc_ids = (index / IDS_FILE).read_text(encoding="utf-8").split("\n")[:-1]
        except (OSError, RuntimeError, UnicodeDecodeError, MemoryError) as error:
            raise ArtefactError(f"{index}: cannot be opened as a FAISS index ({str(error).splitlines()[0]})") from error
        expected = manifest.counts.documents
        if not len(store) == len(doc_ids) == expected:
            raise ArtefactError(
                f"{index}: {len(store)} vectors and {len(doc_ids)} ids, the manifest says {expected} "
                "documents; index again"
            )
        if built := [key for key in parameters or () if key not in store.layout.searching]:
            raise UsageError(
                f"{index}: {built[0]} is none of this {name} index's parameters of searching; build another"
            )
        store.parameters = select_parameters(name, {**stored, **(parameters or {})}, store.dimensions, expected)
        self.store, self.doc_ids = store, doc_ids
        self.longest = store.longest() if store.layout.exhaustive else 0.0

    @staticmethod
    def options(values: Mapping[str, Any]) -> FaissOptions:
        """The layout is the option `faiss`; all others are its parameters."""
        parameters = {name: value for name, value in values.items() if name != LAYOUT}
        return FaissOptions(values.get(LAYOUT, FaissOptions.layout), parameters)

    @staticmethod
    def read_options(report: Mapping[str, Any]) -> Mapping[str, Any]:
        """Layout and all parameters; an index of an older version is flat."""
        return report.get(LAYOUT) or FaissOptions().to_json()

    @staticmethod
    def figures(report: Mapping[str, Any]) -> Mapping[str, Any]:
        """Dimensions, layout and parameters."""
        return {"dimensions": report["dimensions"], **report.get(LAYOUT, {})}

    @staticmethod
    def build(
        shards: Path,
        index: Path,
        manifest: Manifest,
        threads: int = 1,
        progress: Progress = silent,
        options: FaissOptions | None = None,
    ) -> BuiltIndex:
        """Reads the shards batch by batch; the index itself is held in memory.

        A graph built with more than one thread differs from build to build.
        """
        options = options or FaissOptions()
        name = options.layout
        find_layout(name)
        count = manifest.counts.documents
        store: Store | None = None
        seen = SeenIds()
        documents = 0
        with write_index(index, shards, manifest) as part, set_faiss_threads(threads):
            with open(part / IDS_FILE, "w", encoding="utf-8") as ids:
                for batch in read_vectors(shards, manifest):
                    if store is None:
                        width = batch.vectors.shape[1]
                        store = Store.new(name, width, select_parameters(name, options.parameters, width, count))
                        if store.training_size:
                            store.train(sample(shards, manifest, store.training_size))
                    store.add(batch.vectors)
                    for doc_id in batch.doc_ids:
                        seen.add(doc_id)
                        ids.write(f"{doc_id}\n")
                    documents += len(batch.doc_ids)
                    progress(len(batch.doc_ids))
            if store is None:
                raise ArtefactError(f"{shards}: no document; nothing to index")
            check_distinct(seen, lambda: read_ids(shards, manifest))
            expect_counts(str(shards), {"documents": documents}, manifest.counts)
            store.write(part / INDEX_FILE)
            report: dict[str, Any] = {"engine": "faiss", "documents": documents, "empty": 0, "postings": 0}
            stored = {"layout": name, **store.parameters}
            report |= {"dimensions": store.dimensions, LAYOUT: stored, "bytes": measure_folder(part)}
            report |= {"files": {file: compute_sha256(part / file) for file in (INDEX_FILE, IDS_FILE)}}
            write_report(part, report, manifest)
        return BuiltIndex(index, manifest)

    def search(self, queries: Iterable[DenseQuery], hits: int, threads: int = 1) -> Iterator[RankedList]:
        """One list per query, in batches on `threads` threads."""
        check_count("hits", hits)
        check_count("threads", threads, most=MOST_THREADS)
        stream = iter(queries)
        while batch := list(islice(stream, BATCH_SIZE)):
            with set_faiss_threads(threads):
                lists = list(self._search_batch(batch, hits))
            yield from lists

    def close(self) -> None:
        """Nothing is open; the vectors are in memory."""

    def _search_batch(self, batch: Sequence[DenseQuery], hits: int) -> Iterator[RankedList]:
        width = self.store.dimensions
        for query in batch:
            if query.vector.shape != (width,) or not np.isfinite(query.vector).all():
                raise UsageError(
                    f"topic {query.query_id!r}: vector {query.vector.shape}, expected ({width},) finite numbers; "
                    "is it the encoder of the index?"
                )
        matrix = np.stack([query.vector for query in batch]).astype(np.float32)  # [B, D]
        scores, positions = self.store.search(matrix, hits + MARGIN)  # [B, fetch] each
        for row, query in enumerate(batch):
            yield self._ranked(query, hits, scores[row], positions[row])

    def _ranked(self, query: DenseQuery, hits: int, scores: np.ndarray, positions: np.ndarray) -> RankedList:
        """Exact scores and order of the fetched documents; of exhaustive layouts, none outside can be among `hits`."""
        filled = positions >= 0
        scores, positions = scores[filled], positions[filled]
        exact = self.exact_scores(query.vector, positions)
        while self.store.layout.exhaustive and len(positions) < len(self.store):
            # What was not fetched has at most the last score, give or take the rounding of a float32 sum of D terms
            # (of decoded vectors: and of the decoding).
            rounding = 4 * self.store.dimensions * 2.0**-24 * float(np.linalg.norm(query.vector)) * self.longest
            if np.partition(exact, -hits)[-hits] > scores[-1] + rounding:
                break
            [scores], [positions] = self.store.search(query.vector[None].astype(np.float32), 4 * len(positions))
            exact = self.exact_scores(query.vector, positions)
        ids = [self.doc_ids[position] for position in positions]
        return rank_hits(query.query_id, zip(ids, exact.tolist(), strict=True), hits)

    def exact_scores(self, vector: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Inner products in float64, rounded to float32; each row is summed on its own, equal rows are equal."""
        products = self.store.vectors(positions).astype(np.float64) * vector.astype(np.float64)  # [k, D]
        return products.sum(axis=1).astype(np.float32)


def sample(shards: Path, manifest: Manifest, size: int) -> np.ndarray:
    """At most `size` vectors of all shards, the same every time; float32 [n, D]."""
    count = manifest.counts.documents
    chosen = np.sort(np.random.default_rng(TRAINING_SEED).choice(count, min(size, count), replace=False))
    pieces, start = [], 0
    for batch in read_vectors(shards, manifest):
        inside = chosen[(chosen >= start) & (chosen < start + len(batch.vectors))] - start
        pieces.append(batch.vectors[inside])
        start += len(batch.vectors)
    return np.concatenate(pieces)
