"""The engine for dense vectors: FAISS stores them in one of several layouts; lists have the total order of all engines.

A flat index is exact and the reference; the others trade recall for memory or time:

    flat    every float32; every inner product is computed: exact, the reference
    hnsw    every float32 and a graph over them; approximate
    ivfpq   product-quantised residuals in inverted lists, some of which are read; approximate
    sq8     a byte per dimension; every inner product with the decoded vectors is computed
    binary  the sign of each dimension; candidates by Hamming distance, then scored against the query's floats

Scores are inner products of the query with the vectors as they are stored (`Store.vectors`): of sq8 and ivfpq
the decoded ones, of binary +-1/sqrt(D).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from lexvl_anserini.data.checks import SeenIds
from lexvl_anserini.engines import index_folder
from lexvl_anserini.engines.engine import Engine, EngineOptions
from lexvl_anserini.engines.verifying import compare_digests
from lexvl_anserini.ground.errors import ArtefactError, UnknownName, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, make_batches, silent
from lexvl_anserini.ground.records import DenseQuery
from lexvl_anserini.ground.typed import MOST_THREADS, check_count
from lexvl_anserini.runs.order import RankedList, rank_hits
from lexvl_anserini.shards.reading import check_distinct, expect_counts, read_ids, read_vectors

# The library, whose type stubs lack half of it.
core: Any = faiss

# Points that k-means needs per centroid, by FAISS's own rule, and those beyond which more do not help.
LEAST_POINTS, MOST_POINTS = 39, 256

Parameters = Mapping[str, int]


@contextmanager
def set_faiss_threads(number: int) -> Iterator[None]:
    """FAISS computes with so many threads in this block.

    It shares OpenMP with torch where torch was imported first. With another number, what torch computes in this thread
    differs in its last bits, so the number of before returns at the end.
    """
    before = core.omp_get_max_threads()
    core.omp_set_num_threads(number)
    try:
        yield
    finally:
        core.omp_set_num_threads(before)


@dataclass(frozen=True)
class FaissLayout:
    """One way to store vectors.

    Attributes:
        defaults: its parameters; None is chosen from the number of documents and dimensions.
        kind: FAISS's class of its file.
        searching: those that only matter when searching: another value needs no other index.
        exhaustive: True if searching compares all vectors by their inner products, so that lists are exact.
        training: the number of vectors it learns from, at most; 0 if it learns nothing.
    """

    defaults: Mapping[str, int | None]
    empty: Callable[[int, Parameters], Any]
    kind: str
    searching: tuple[str, ...] = ()
    exhaustive: bool = False
    training: Callable[[Parameters], int] = lambda parameters: 0


def empty_hnsw(dimensions: int, parameters: Parameters) -> Any:
    """A graph of inner products."""
    index = faiss.IndexHNSWFlat(dimensions, parameters["m"], faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = parameters["ef_construction"]
    return index


def empty_ivfpq(dimensions: int, parameters: Parameters) -> Any:
    """Inverted lists of product codes; both are learned with a fixed seed."""
    lists = core.IndexFlatIP(dimensions)
    index = core.IndexIVFPQ(
        lists, dimensions, parameters["nlist"], parameters["m"], parameters["nbits"], faiss.METRIC_INNER_PRODUCT
    )
    lists.this.disown()
    index.own_fields = True
    for clustering in (index.cp, index.pq.cp):
        clustering.min_points_per_centroid = 1  # a small collection shows in its recall; no warning is needed
    return index


LAYOUTS: Mapping[str, FaissLayout] = {
    "flat": FaissLayout({}, lambda dimensions, parameters: faiss.IndexFlatIP(dimensions), "IndexFlat", exhaustive=True),
    "hnsw": FaissLayout(
        {"m": 32, "ef_construction": 200, "ef_search": 128}, empty_hnsw, "IndexHNSWFlat", ("ef_search",)
    ),
    "ivfpq": FaissLayout(
        {"nlist": None, "m": None, "nbits": None, "nprobe": None},
        empty_ivfpq,
        "IndexIVFPQ",
        ("nprobe",),
        training=lambda parameters: MOST_POINTS * max(parameters["nlist"], 1 << parameters["nbits"]),
    ),
    "sq8": FaissLayout(
        {},
        lambda dimensions, parameters: faiss.IndexScalarQuantizer(
            dimensions, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        ),
        "IndexScalarQuantizer",
        exhaustive=True,
        training=lambda parameters: 100_000,
    ),
    "binary": FaissLayout(
        {"rescore": 4},
        lambda dimensions, parameters: faiss.IndexBinaryFlat(8 * -(-dimensions // 8)),
        "IndexBinaryFlat",
        ("rescore",),
    ),
}


def find_layout(name: str) -> FaissLayout:
    """A row of `LAYOUTS`."""
    if name not in LAYOUTS:
        raise UnknownName("FAISS layout", name, LAYOUTS)
    return LAYOUTS[name]


def select_parameters(name: str, chosen: Mapping[str, Any], dimensions: int, documents: int) -> dict[str, int]:
    """All parameters of a layout: those given, the others chosen for that many documents and dimensions."""
    defaults = find_layout(name).defaults
    for key in chosen:
        if key not in defaults:
            raise UnknownName(f"parameter of FAISS layout {name!r}", key, defaults or ["(none)"])
    parameters = {**automatic(name, dimensions, documents), **{k: v for k, v in defaults.items() if v is not None}}
    for key, value in chosen.items():
        if not str(value).isdecimal() or int(value) < 1:
            raise UsageError(f"FAISS {key}={value!r}: expected a number above 0")
        parameters[key] = int(value)
    if name == "ivfpq":
        if dimensions % parameters["m"]:
            raise UsageError(f"FAISS m={parameters['m']}: does not divide the {dimensions} dimensions of the vectors")
        if parameters["nbits"] > 12 or 1 << parameters["nbits"] > documents or parameters["nlist"] > documents:
            raise UsageError(
                f"FAISS nlist={parameters['nlist']}, nbits={parameters['nbits']}: expected at most 12 bits, and no "
                f"more lists or codes than the {documents} documents to learn them from"
            )
        parameters["nprobe"] = min(
            parameters["nprobe"] if "nprobe" in chosen else parameters["nlist"] // 8 or 1, parameters["nlist"]
        )
    return {key: parameters[key] for key in defaults}


def automatic(name: str, dimensions: int, documents: int) -> dict[str, int]:
    """Parameters that follow from the collection: about 4 sqrt(n) lists, an eighth read; 4 or more floats a byte."""
    if name != "ivfpq":
        return {}
    lists = max(1, min(round(4 * math.sqrt(documents)), documents // LEAST_POINTS))
    codes = max(m for m in range(1, max(1, dimensions // 4) + 1) if dimensions % m == 0)
    return {"nlist": lists, "m": codes, "nbits": min(8, max(1, documents.bit_length() - 1)), "nprobe": 1}


class Store:
    """Vectors stored in one layout."""

    def __init__(self, name: str, index: Any, dimensions: int, parameters: Parameters):
        self.name, self.index, self.dimensions, self.parameters = name, index, dimensions, dict(parameters)
        self.layout = find_layout(name)

    @classmethod
    def new(cls, name: str, dimensions: int, parameters: Parameters) -> Store:
        """Makes an empty store."""
        return cls(name, find_layout(name).empty(dimensions, parameters), dimensions, parameters)

    @classmethod
    def read(cls, path: Path, name: str, dimensions: int | None, parameters: Parameters) -> Store:
        """Reads a file that `write` wrote; only a binary one does not know its dimensions itself."""
        index = (core.read_index_binary if name == "binary" else core.read_index)(str(path))
        if (kind := type(index).__name__.removesuffix("IP")) != find_layout(name).kind:
            raise RuntimeError(f"the file has a {kind}, index.json says {name}")
        store = cls(name, index, dimensions or index.d, parameters)
        store.map_positions()  # now, not at the first search, which threads may make at once
        return store

    def write(self, path: Path) -> None:
        """Writes the store to one file."""
        write = faiss.write_index_binary if self.name == "binary" else faiss.write_index
        with open(path, "wb") as out:  # FAISS prints lines of its own about a full disk when it closes a file
            write(self.index, core.PyCallbackIOWriter(out.write))

    def __len__(self) -> int:
        return int(self.index.ntotal)

    def add(self, vectors: np.ndarray) -> None:
        """Adds vectors, float32 [n, D]."""
        self.index.add(signs(vectors) if self.name == "binary" else np.ascontiguousarray(vectors))

    def search(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The nearest vectors of queries [B, D]: scores float32 [B, count], descending, and positions; -1 is none.

        Scores are FAISS's own, of binary the negated Hamming distances; they only say what to fetch.
        """
        count = min(count, len(self))
        if self.name == "binary":
            distances, positions = self.index.search(signs(queries), min(count * self.parameters["rescore"], len(self)))
            return -distances.astype(np.float32), positions
        return self.index.search(np.ascontiguousarray(queries), count, params=self._searching(count))

    def _searching(self, count: int) -> Any:
        if self.name == "hnsw":
            return core.SearchParametersHNSW(efSearch=max(count, self.parameters["ef_search"]))
        if self.name == "ivfpq":
            return core.SearchParametersIVF(nprobe=self.parameters["nprobe"])
        return None

    def vectors(self, positions: np.ndarray) -> np.ndarray:
        """The vectors as they are kept, float32 [k, D]."""
        if self.name == "binary":
            codes = faiss.vector_to_array(self.index.xb).reshape(len(self), -1)
            bits = np.unpackbits(codes[positions], axis=1)[:, : self.dimensions]
            return (bits.astype(np.float32) * 2 - 1) / np.float32(math.sqrt(self.dimensions))
        if self.name == "flat":
            # A view of the index's own memory, no copy.
            floats = faiss.rev_swig_ptr(self.index.get_xb(), len(self) * self.dimensions)
            return floats.reshape(len(self), self.dimensions)[positions]
        self.map_positions()
        return self.index.reconstruct_batch(np.ascontiguousarray(positions, dtype=np.int64))

    def map_positions(self) -> None:
        """Makes the map from positions to inverted lists that `vectors` needs, where there are lists and no map."""
        if self.name == "ivfpq" and self.index.direct_map.type == core.DirectMap.NoMap:
            self.index.make_direct_map()

    def longest(self) -> float:
        """The largest L2 norm of a stored vector; 0 without vectors."""
        blocks = (np.arange(start, min(start + 8192, len(self))) for start in range(0, len(self), 8192))
        return max((float(np.linalg.norm(self.vectors(block), axis=1).max()) for block in blocks), default=0.0)


def signs(vectors: np.ndarray) -> np.ndarray:
    """One bit per dimension, 1 if it is above 0; uint8 [n, ceil(D / 8)], filled up with zeros."""
    return np.packbits(np.asarray(vectors) > 0, axis=1)


INDEX_FILE = "index.faiss"
IDS_FILE = "ids.txt"

LAYOUT = "faiss"  # the option that names the layout; the others are the layout's parameters

BATCH_SIZE = 64

MARGIN = 16  # how many more than `hits` are fetched at first, to see past ties at the cut

TRAINING_SEED = 20240307  # draws the sample that a layout learns from


@dataclass(frozen=True)
class FaissOptions(EngineOptions):
    """How vectors are stored: a row of `LAYOUTS`, and parameters of it; the others are chosen for the collection."""

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
    """

    option_names = frozenset({LAYOUT, *(name for layout in LAYOUTS.values() for name in layout.defaults)})

    def __init__(self, index: Path, manifest: Manifest, parameters: Mapping[str, Any] | None = None):
        report = index_folder.read_report(index)
        if not report:
            raise ArtefactError(f"{index}: no index.json, which says how the vectors are stored; index again")
        if report.digest and report.digest != index_folder.report_digest(report, manifest):
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
    ) -> index_folder.BuiltIndex:
        """Reads the shards by batches into memory; a graph of more than one thread differs from build to build."""
        options = options or FaissOptions()
        name = options.layout
        find_layout(name)
        count = manifest.counts.documents
        store: Store | None = None
        seen = SeenIds()
        documents = 0
        with index_folder.write_index(index, shards, manifest) as part, set_faiss_threads(threads):
            with open(part / IDS_FILE, "w", encoding="utf-8") as ids:
                for batch in read_vectors(shards, manifest):
                    if store is None:
                        width = batch.vectors.shape[1]
                        store = Store.new(name, width, select_parameters(name, options.parameters, width, count))
                        if size := store.layout.training(store.parameters):
                            store.index.train(np.ascontiguousarray(sample(shards, manifest, size)))
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
            report |= {"dimensions": store.dimensions, LAYOUT: stored, "bytes": index_folder.measure_folder(part)}
            report |= {"files": {file: compute_sha256(part / file) for file in (INDEX_FILE, IDS_FILE)}}
            index_folder.write_report(part, report, manifest)
        return index_folder.BuiltIndex(index, manifest)

    def search(self, queries: Iterable[DenseQuery], hits: int, threads: int = 1) -> Iterator[RankedList]:
        """One list per query, in batches on `threads` threads."""
        check_count("hits", hits)
        check_count("threads", threads, most=MOST_THREADS)
        for batch in make_batches(queries, BATCH_SIZE):
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
