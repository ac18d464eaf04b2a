"""Sparse embeddings of another project as rows: indexed as impacts, searched, and what the rounding costs.

A score, divided by both scales of the integer impacts, differs from a dot product of embeddings by the rounding of each
weight (half a step of 255 of the largest weight).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from scipy import sparse

from lexvl_anserini.encoders.encoder import Encoder, Kind
from lexvl_anserini.ground.errors import FAIL, OnError, UsageError
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser, compute_row_max
from lexvl_anserini.ground.records import Document, ImpactQuery, Topic, Vocabulary, name_token
from lexvl_anserini.queries.clauses import All, Ids, Impacts, TreeQuery
from lexvl_anserini.runs.order import rank_hits
from lexvl_anserini.searching.searcher import Index, search_index
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.reading import read_vocabulary
from lexvl_plugins.exchange.adapters.indexed_corpus import index_documents
from lexvl_plugins.exchange.vectors import check_matrix, convert_tensor

if TYPE_CHECKING:
    import torch

# The result of `SparseEncoder.decode`: the (token, weight) pairs of each text.
Decoded: TypeAlias = Sequence[Sequence[tuple[str, float]]]
Embeddings: TypeAlias = "torch.Tensor | Sequence[torch.Tensor] | np.ndarray | sparse.csr_matrix | Decoded"
# The documents of a query by falling score, then rising row: (row, dot product).
Found: TypeAlias = list[tuple[int, float]]
# Names of the encoder in the manifest: terms are tokens, or the numbers of dimensions.
DECODED, TENSORS = "decoded-embeddings", "sparse-embeddings"
# Documents that are quantised at once.
BATCH = 4096
# Digits of a document's id, so that ties are in the order of rows.
DIGITS = 10
# First documents of each query whose scores are compared with products of the embeddings.
COMPARED = 10
EXPECTED = "a tensor or an array [n, V], a list of tensors [V], a scipy matrix, or what SparseEncoder.decode returns"


class Rows(NamedTuple):
    """Embeddings of one side: CSR [n, V] float32 > 0, the terms of its dimensions, and DECODED or TENSORS."""

    weights: sparse.csr_matrix
    terms: Vocabulary
    name: str


class RoundingLoss(NamedTuple):
    """What integer impacts cost.

    Attributes:
        weights: of all documents.
        dropped: those whose impact is 0.
        clipped: those whose impact is cut to the largest.
        mean: |score - dot product of embeddings| as a share of the query's best product, over the first hits of all.
        most: the largest such share.
    """

    weights: int
    dropped: int
    clipped: int
    mean: float
    most: float

    def __str__(self) -> str:
        lost = (
            f"{self.dropped / max(1, self.weights):.2%} become 0, {self.clipped / max(1, self.weights):.2%} are clipped"
        )
        errors = f"{self.mean:.2%} of the query's best on average, {self.most:.2%} at most"
        return f"of {self.weights:,} weights of documents {lost}; first scores differ from dot products by {errors}"


def index_rows(corpus: Rows, folder: Path | None = None, quantiser: Quantiser | None = None) -> Index:
    """Indexes embeddings, whose ids are the numbers of their rows; without a folder, in one that goes with the index.

    Unlike a corpus that is still to be encoded, all weights are there to calibrate.
    """
    tower = StoredRows(corpus)
    ready = (quantiser or Quantiser()).calibrate(corpus.weights).settle()
    documents = (Document(f"{row:0{DIGITS}d}", text="") for row in range(corpus.weights.shape[0]))
    model = Encoder(corpus.name, "impact", query=tower, document=tower, checkpoint_digest=tower.digest)
    return index_documents(model, documents, folder, BATCH, ready, Layout("parquet"))


def read_queries(index: Index, embeddings: Embeddings) -> Rows:
    """Reads the embeddings of queries over the terms of an index."""
    name = index.manifest.encoder.name
    if name not in (DECODED, TENSORS):
        raise UsageError(f"{index.path}: an index of encoder {name!r}, not of embeddings; search it with search_index")
    terms = read_vocabulary(index.path, index.manifest)
    queries = read_rows(embeddings, "query_embeddings", terms if name == DECODED else None)
    if queries.name != name or queries.weights.shape[1] != len(terms):
        theirs = f"{queries.name} of {queries.weights.shape[1]} dimensions"
        raise UsageError(f"query_embeddings: {theirs}; the index has {name} of {len(terms)}")
    return queries._replace(terms=terms)


def search_rows(
    index: Index, queries: Rows, top_k: int, threads: int = 1, candidates: Sequence[Sequence[int]] | None = None
) -> list[Found]:
    """Finds the best documents of each query, of its candidates if there are some; of these, others score 0."""
    quantiser = Quantiser.from_json(index.manifest.quantiser)
    impacts = quantiser.queries(queries.weights, index.manifest.counts.max_impact)
    # A query's largest weight becomes its largest impact, whatever its bits.
    peaks = compute_row_max(queries.weights)
    scales = np.divide(compute_row_max(impacts.impacts), peaks, out=np.ones_like(peaks), where=peaks > 0)
    scales *= quantiser.document.scale or 1.0
    vectors = impacts.in_vocabulary(queries.terms)
    if candidates is None:
        lists = search_index(index, [ImpactQuery(str(row), v) for row, v in enumerate(vectors)], top_k, threads=threads)
    else:
        among = [[f"{row:0{DIGITS}d}" for row in rows] for rows in candidates]
        trees = [All((Impacts(vector), Ids(tuple(ids)))) for vector, ids in zip(vectors, among, strict=True)]
        results = search_index(index, [TreeQuery(str(row), t) for row, t in enumerate(trees)], top_k, threads=threads)
        lists = (
            rank_hits(hits.query_id, (dict.fromkeys(ids, 0.0) | dict(hits.pairs())).items(), top_k)
            for hits, ids in zip(results, among, strict=True)
        )
    return [
        [(int(doc_id), score / scale) for doc_id, score in hits.pairs()]
        for hits, scale in zip(lists, scales.tolist(), strict=True)
    ]


def measure_loss(index: Index, corpus: Rows, queries: Rows, lists: Sequence[Found]) -> RoundingLoss:
    """Measures what an index of `corpus` lost, and how far the first `COMPARED` scores are from exact products."""
    first = [hits[:COMPARED] for hits in lists]
    query = np.repeat(np.arange(len(first)), [len(hits) for hits in first])
    document = np.array([row for hits in first for row, _ in hits], np.int64)
    scores = np.array([score for hits in first for _, score in hits])
    exact = np.asarray(queries.weights[query].multiply(corpus.weights[document]).sum(axis=1)).ravel()
    best = np.zeros(len(first))
    np.maximum.at(best, query, exact)
    known = best[query] > 0
    shares = np.abs(scores - exact)[known] / best[query][known]
    counts = index.manifest.counts
    errors = (float(shares.mean()), float(shares.max())) if len(shares) else (0.0, 0.0)
    return RoundingLoss(corpus.weights.nnz, counts.dropped, counts.clipped, *errors)


def read_rows(embeddings: Embeddings, what: str, terms: Vocabulary | None = None) -> Rows:
    """Reads embeddings as rows over terms, of decoded queries those of the index: other tokens have no document."""
    if _is_decoded(embeddings):
        rows = Rows(*_read_decoded(embeddings, terms), DECODED)
    else:
        matrix = _read_tensors(embeddings, what)
        rows = Rows(matrix, Vocabulary(map(str, range(matrix.shape[1])), what), TENSORS)
    weights = rows.weights
    sound = (weights.data >= 0) & np.isfinite(weights.data)
    if not sound.all():
        worst = int(np.argmin(sound))
        row = int(np.searchsorted(weights.indptr, worst, side="right")) - 1
        wrong = f"row {row} has the weight {weights.data[worst]}"
        raise UsageError(f"{what}: {wrong}; an impact index adds positive ones, a dense model has others")
    weights.eliminate_zeros()
    return rows


def _is_decoded(embeddings: Any) -> bool:
    """Whether it is a list of lists of (token, weight)."""
    rows = [embeddings, *embeddings] if isinstance(embeddings, list | tuple) else [None]
    if not all(isinstance(row, list | tuple) for row in rows):
        return False
    pairs = chain.from_iterable(embeddings)
    return all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs)


def _read_decoded(embeddings: Any, terms: Vocabulary | None) -> tuple[sparse.csr_matrix, Vocabulary]:
    """Makes CSR of pairs; if a row has a token twice, its last pair counts, as in sentence-transformers."""
    rows = [{name_token(token): weight for token, weight in row} for row in embeddings]
    if terms is None:
        terms = Vocabulary(sorted({token for row in rows for token in row}), "corpus_embeddings")
    dims = terms.dimension
    known = [sorted((dims[token], weight) for token, weight in row.items() if token in dims) for row in rows]
    ends = np.cumsum([0, *map(len, known)])
    columns = np.array([dim for row in known for dim, _ in row], np.int32)
    weights = np.array([weight for row in known for _, weight in row], np.float32)
    return sparse.csr_matrix((weights, columns, ends), shape=(len(rows), len(terms))), terms


def _read_tensors(embeddings: Any, what: str) -> sparse.csr_matrix:
    """Makes CSR [n, V] float32 of tensors or a scipy matrix, dimensions ascending."""
    import torch

    if isinstance(embeddings, np.ndarray) and embeddings.ndim == 2 and embeddings.dtype.kind in "iuf":
        embeddings = sparse.csr_matrix(embeddings)
    if sparse.issparse(embeddings) and embeddings.ndim == 2:
        return _check(embeddings, what)
    listed = isinstance(embeddings, list | tuple)
    listed = listed and all(isinstance(row, torch.Tensor) and row.ndim == 1 for row in embeddings)
    if listed and len({row.shape for row in embeddings}) == 1:
        embeddings = torch.stack([row.to_sparse() if row.layout == torch.strided else row for row in embeddings])
    if not isinstance(embeddings, torch.Tensor) or embeddings.ndim not in (1, 2):
        kind = f"{embeddings.ndim} dimensions" if isinstance(embeddings, torch.Tensor) else type(embeddings).__name__
        raise UsageError(f"{what}: {kind}; expected {EXPECTED}")
    tensor = embeddings.detach().cpu()
    return _check(convert_tensor(tensor if tensor.ndim == 2 else tensor.unsqueeze(0)), what)


def _check(matrix: Any, what: str) -> sparse.csr_matrix:
    try:
        return check_matrix(matrix).astype(np.float32)
    except ValueError as error:
        raise UsageError(f"{what}: {error}; expected {EXPECTED}") from error


class StoredRows:
    """Embeddings as a tower: its inputs are the ids of rows."""

    kind: Kind = "impact"
    binary = False  # of a corpus of ones the queries may have other weights

    def __init__(self, rows: Rows):
        self.rows, self.vocabulary = rows, rows.terms

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all weights and terms: a folder with another digest holds other embeddings."""
        weights, digest = self.rows.weights, sha256(self.vocabulary.digest.encode())
        for array in (weights.indptr.astype("<i8"), weights.indices.astype("<i8"), weights.data.astype("<f4")):
            digest.update(array.tobytes())
        return digest.hexdigest()

    def read(self, document: Document) -> str:
        """Returns the id of a row."""
        return document.doc_id

    def read_topic(self, topic: Topic) -> str:
        """Returns the id of a row."""
        return topic.query_id

    def weights(
        self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """Returns the rows, CSR [n, V] float32."""
        progress(len(inputs))
        return self.rows.weights[[int(row) for row in inputs]]

    def dense_weights(self, inputs: Iterable[str], batch_size: int = 32) -> np.ndarray:
        """Returns the rows, float32 [n, V]."""
        return self.weights(list(inputs)).toarray()
