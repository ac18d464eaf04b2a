"""How FAISS stores vectors: exactly, in a graph, in lists of product codes, in bytes, in bits.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from lexvl_anserini.ground.errors import UnknownName, UsageError

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

    defaults    its parameters; None is chosen from the number of documents and dimensions
    searching   those that only matter when searching: another value needs no other index
    empty       (dimensions, parameters) -> a FAISS index without vectors
    exhaustive  True if searching compares all vectors by their inner products, so that lists are exact
    training    parameters -> the vectors it learns from, at most; 0 if it learns nothing
    """

    defaults: Mapping[str, int | None]
    empty: Callable[[int, Parameters], Any]
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
    "flat": FaissLayout({}, lambda dimensions, parameters: faiss.IndexFlatIP(dimensions), exhaustive=True),
    "hnsw": FaissLayout({"m": 32, "ef_construction": 200, "ef_search": 128}, empty_hnsw, ("ef_search",)),
    "ivfpq": FaissLayout(
        {"nlist": None, "m": None, "nbits": None, "nprobe": None},
        empty_ivfpq,
        ("nprobe",),
        training=lambda parameters: MOST_POINTS * max(parameters["nlist"], 1 << parameters["nbits"]),
    ),
    "sq8": FaissLayout(
        {},
        lambda dimensions, parameters: faiss.IndexScalarQuantizer(
            dimensions, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        ),
        exhaustive=True,
        training=lambda parameters: 100_000,
    ),
    "binary": FaissLayout(
        {"rescore": 4}, lambda dimensions, parameters: faiss.IndexBinaryFlat(8 * -(-dimensions // 8)), ("rescore",)
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
        store = cls(name, index, dimensions or index.d, parameters)
        store.map_positions()  # now, not at the first search, which threads may make at once
        return store

    def write(self, path: Path) -> None:
        """Writes the store to one file."""
        write = faiss.write_index_binary if self.name == "binary" else faiss.write_index
        write(self.index, str(path))

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @property
    def training_size(self) -> int:
        """Vectors to learn from, at most; 0 if none are needed."""
        return self.layout.training(self.parameters)

    def train(self, vectors: np.ndarray) -> None:
        """Learns from a sample of vectors, float32 [n, D]."""
        self.index.train(np.ascontiguousarray(vectors))

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
            bits = np.unpackbits(self._codes()[positions], axis=1)[:, : self.dimensions]
            return (bits.astype(np.float32) * 2 - 1) / np.float32(math.sqrt(self.dimensions))
        if self.name == "flat":
            return self._floats()[positions]
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

    def _floats(self) -> np.ndarray:
        """A view of a flat index's own memory, no copy, [n, D]."""
        return faiss.rev_swig_ptr(self.index.get_xb(), len(self) * self.dimensions).reshape(len(self), self.dimensions)

    def _codes(self) -> np.ndarray:
        """A view of a binary index's own memory, uint8 [n, bytes]."""
        return faiss.vector_to_array(self.index.xb).reshape(len(self), -1)


def signs(vectors: np.ndarray) -> np.ndarray:
    """One bit per dimension, 1 if it is above 0; uint8 [n, ceil(D / 8)], filled up with zeros."""
    return np.packbits(np.asarray(vectors) > 0, axis=1)
