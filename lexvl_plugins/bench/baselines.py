"""Sparse engines of other projects beside ours: SINDI (package pyvsag, Apache-2.0), Seismic (pyseismic-lsr, MIT).

A worker tries the settings of a table on the queries, and answers with the fastest that finds `RECALL` of the hits,
else with the one that finds most. A hit counts if its integer dot product reaches that of the last exact hit: of
documents of equal score, each is as good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import orjson
from scipy import sparse

from lexvl_anserini.engines.index_folder import Exact, compute_mean_recall
from lexvl_anserini.ground.manifest import Manifest, read_manifest
from lexvl_anserini.ground.records import Vocabulary
from lexvl_anserini.shards.reading import Columns, check_shards, read_shard, read_vocabulary, shard_pieces
from lexvl_plugins.bench.collection import read_queries
from lexvl_plugins.bench.processes import Ready, time_each

# Share of the exact hits that an approximate engine has to find.
RECALL = 0.99
# Term numbers, weights and the number of hits of a query -> the numbers of its documents.
Search = Callable[[np.ndarray, np.ndarray, int], Sequence[int] | np.ndarray]


def open_shards(shards: Path) -> tuple[Vocabulary, Iterator[sparse.csr_matrix]]:
    """The terms of shards, and their documents in their order, CSR int32 [some, V] at a time."""
    manifest = read_manifest(shards)
    vocabulary = read_vocabulary(shards, manifest)
    return vocabulary, _read_matrices(shards, manifest, vocabulary)


def _read_matrices(shards: Path, manifest: Manifest, vocabulary: Vocabulary) -> Iterator[sparse.csr_matrix]:
    for path, _ in check_shards(shards, manifest):
        if path.suffix != ".parquet":
            yield make_matrix([document.vector for document in read_shard(path, vocabulary)], vocabulary)
            continue
        for piece in shard_pieces(path):
            assert isinstance(piece, Columns), "parquet is read as columns"
            dims, impacts, ends = (np.frombuffer(raw, "<i4") for raw in (piece.dims, piece.impacts, piece.ends))
            yield _join_rows(dims, impacts, ends, vocabulary)


def count_documents(shards: Path) -> tuple[dict[str, int], int]:
    """The number of documents that have each term, of those that occur, and the number of documents."""
    vocabulary, matrices = open_shards(shards)
    counts, total = np.zeros(len(vocabulary), np.int64), 0
    for documents in matrices:
        counts += np.bincount(documents.indices, minlength=len(vocabulary))
        total += documents.shape[0]
    return {term: count for term, count in zip(vocabulary.terms, counts.tolist(), strict=True) if count}, total


def make_matrix(vectors: Sequence[Mapping[str, int]], vocabulary: Vocabulary) -> sparse.csr_matrix:
    """Vectors as CSR int32 [n, V]; terms that the vocabulary lacks are in no document, and left out."""
    known = [{vocabulary.dimension[t]: w for t, w in v.items() if t in vocabulary.dimension} for v in vectors]
    dims = np.array([dim for vector in known for dim in vector], dtype=np.int32)
    impacts = np.array([impact for vector in known for impact in vector.values()], dtype=np.int32)
    return _join_rows(dims, impacts, np.cumsum([len(vector) for vector in known]), vocabulary)


def _join_rows(dims: np.ndarray, impacts: np.ndarray, ends: np.ndarray, vocabulary: Vocabulary) -> sparse.csr_matrix:
    shape = (len(ends), len(vocabulary))
    matrix = sparse.csr_matrix((impacts, dims, np.concatenate([[0], ends])), shape=shape)
    matrix.check_format()  # shards of other programs may name a term that is none
    matrix.sort_indices()
    return matrix


def find_exact(shards: str, queries: str, hits: Sequence[int]) -> dict[str, list[Exact]]:
    """The exact hits of each query by number of hits as text, from the dot products with all documents."""
    most, (vocabulary, matrices) = max(hits), open_shards(Path(shards))
    weights = make_matrix([query.vector for query in read_queries(queries)], vocabulary).astype(np.int64).T.tocsr()
    best = np.zeros((most, weights.shape[1]), np.int64)
    for documents in matrices:
        scores = np.concatenate([best, (documents @ weights).toarray()])
        best = np.partition(scores, len(scores) - most, axis=0)[-most:]
    # Scores of each query, descending.
    ranked = np.sort(best, axis=0)[::-1].T
    exact: dict[str, list[Exact]] = {}
    for k in hits:
        counts = (ranked[:, :k] > 0).sum(axis=1).tolist()
        exact[str(k)] = [(n, int(scores[n - 1]) if n else 1) for n, scores in zip(counts, ranked, strict=True)]
    return exact


class Inputs(NamedTuple):
    """What a baseline reads: documents and queries, CSR int32 [n, V], and what `find_exact` returns."""

    documents: sparse.csr_matrix
    queries: sparse.csr_matrix
    exact: Mapping[str, Sequence[Exact]]


def read_inputs(shards: str, queries: str, exact: str) -> Inputs:
    """The inputs of a worker, by the paths that it has."""
    vocabulary, matrices = open_shards(Path(shards))
    documents = sparse.vstack(list(matrices), format="csr", dtype=np.int32)
    vectors = [query.vector for query in read_queries(queries)]
    return Inputs(documents, make_matrix(vectors, vocabulary), orjson.loads(Path(exact).read_bytes()))


def make_worker(inputs: Inputs, searches: Mapping[str, Search]) -> Ready:
    """A worker around the searches of an engine, by the names of their settings."""
    documents, queries = inputs.documents, inputs.queries
    rows = [queries[row] for row in range(queries.shape[0])]
    encoded = [(row.indices.astype(np.uint32), row.data.astype(np.float32)) for row in rows]
    chosen: dict[int, tuple[str, float]] = {}

    def measure(name: str, hits: int) -> tuple[float, float]:
        numbers: list[Any] = []
        seconds = time_each(lambda query: numbers.append(searches[name](*query, hits)), encoded)["cpu_s"]
        pairs = zip(numbers, rows, strict=True)
        scores = [(documents[np.asarray(hits_of_row, np.int64)] @ row.T).toarray() for hits_of_row, row in pairs]
        return compute_mean_recall(inputs.exact[str(hits)], scores), median(seconds)

    def answer(task: str, hits: int, threads: int = 1) -> Any:
        if hits not in chosen:
            results = {name: measure(name, hits) for name in searches}
            # The fastest that finds enough; else the one that finds most.
            best = min(results, key=lambda name: (-min(results[name][0], RECALL), results[name][1]))
            chosen[hits] = best, results[best][0]
        name, share = chosen[hits]
        if task == "recall":
            return {"recall": share, "settings": name}
        return time_each(lambda query: searches[name](*query, hits), encoded)

    return Ready({}, answer)


# What SINDI leaves out of documents and queries, shares of their weight, and candidates that it scores again per hit.
DOCUMENT_PRUNING = 0.3
QUERY_PRUNINGS = (0.0, 0.2, 0.3, 0.4)
CANDIDATES = (2, 3, 5)


def search_sindi(shards: str, queries: str, exact: str, pruned: bool) -> Ready:
    """A worker around SINDI with float32 weights: all postings, or pruned ones whose candidates it scores again."""
    import pyvsag

    inputs = read_inputs(shards, queries, exact)
    documents = inputs.documents
    settings = {"use_reorder": pruned, "doc_prune_ratio": DOCUMENT_PRUNING if pruned else 0.0}
    of_index = {"dtype": "sparse", "metric_type": "ip", "dim": documents.shape[1], "index_param": settings}
    pyvsag.set_logger_off()
    index = pyvsag.Index("sindi", orjson.dumps(of_index).decode())
    pointers, dims = documents.indptr.astype(np.uint32), documents.indices.astype(np.uint32)
    stored = {"values": documents.data.astype(np.float32), "ids": np.arange(documents.shape[0])}
    index.build(index_pointers=pointers, indices=dims, **stored)

    def search(pruning: float, candidates: float, dims: np.ndarray, weights: np.ndarray, hits: int) -> np.ndarray:
        parameters = {"query_prune_ratio": pruning, "n_candidate": round(candidates * hits)}
        ends = np.array([0, len(dims)], np.uint32)
        text = orjson.dumps({"sindi": parameters}).decode()
        numbers, _ = index.knn_search(ends, dims, weights, min(hits, documents.shape[0]), text)
        return np.ravel(numbers)

    searches: dict[str, Search] = {"all postings": partial(search, 0.0, 1)}
    if pruned:
        name = f"documents pruned by {DOCUMENT_PRUNING}, queries by {{}}, {{}} candidates a hit"
        searches = {name.format(*each): partial(search, *each) for each in product(QUERY_PRUNINGS, CANDIDATES)}
    return make_worker(inputs, searches)


# The terms of a query that Seismic reads, and the share of its bounds that it trusts.
QUERY_CUTS = (5, 8, 12, 20, 100)
HEAP_FACTORS = (0.8, 0.9, 1.0)


def search_seismic(shards: str, queries: str, exact: str) -> Ready:
    """A worker around Seismic with its default index."""
    import seismic

    inputs = read_inputs(shards, queries, exact)
    documents, string = inputs.documents, seismic.get_seismic_string()
    dataset = seismic.SeismicDataset()
    dims, weights = documents.indices.astype(np.int64), documents.data.astype(np.float32)
    ids = list(map(str, range(documents.shape[0])))
    dataset.add_documents_by_id(ids, dims, weights, documents.indptr.astype(np.int64))
    index = seismic.SeismicIndex.build_from_dataset(dataset)

    def search(cut: int, factor: float, dims: np.ndarray, weights: np.ndarray, hits: int) -> list[int]:
        triples = index.search("q", dims.astype(string), weights, k=hits, query_cut=cut, heap_factor=factor)
        return [int(number) for _, _, number in triples]

    names = product(QUERY_CUTS, HEAP_FACTORS)
    return make_worker(inputs, {f"{c} terms of a query, heap factor {f}": partial(search, c, f) for c, f in names})
