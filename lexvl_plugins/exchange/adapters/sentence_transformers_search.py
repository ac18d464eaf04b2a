"""sentence-transformers: `semantic_search_lucene(query_embeddings, corpus_embeddings)` over an index of ours.

It has the arguments and results of `semantic_search_seismic` and its like in
`sentence_transformers.sparse_encoder.search_engines`. A score, divided by both scales of the integer impacts, differs
from a dot product of embeddings by the rounding of each weight (half a step of 255 of the largest weight).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict

import numpy as np
from scipy import sparse

from lexvl_anserini.encoders.encoder import Encoder, Kind
from lexvl_anserini.ground.errors import FAIL, OnError, UsageError
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser, compute_row_max
from lexvl_anserini.ground.records import Document, ImpactQuery, Topic, Vocabulary, name_token
from lexvl_anserini.searching.searcher import Index, open_built, search_index
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.reading import read_vocabulary
from lexvl_plugins.exchange.adapters.indexed_corpus import index_documents
from lexvl_plugins.exchange.vectors import check_matrix, convert_tensor

if TYPE_CHECKING:
    import torch

# The result of `SparseEncoder.decode`: the (token, weight) pairs of each text.
Decoded: TypeAlias = Sequence[Sequence[tuple[str, float]]]
Embeddings: TypeAlias = "torch.Tensor | Sequence[torch.Tensor] | sparse.csr_matrix | Decoded"
# Names of the encoder in the manifest: terms are tokens, or the numbers of dimensions.
DECODED, TENSORS = "decoded-embeddings", "sparse-embeddings"
# Documents that are quantised at once.
BATCH = 4096
# Digits of a document's id, so that ties are in the order of `corpus_id`.
DIGITS = 10
EXPECTED = "a tensor [n, V], a list of tensors [V], a scipy matrix, or what SparseEncoder.decode returns"


class CorpusHit(TypedDict):
    """A hit: the row of the corpus, and its score."""

    corpus_id: int
    score: float


class Rows(NamedTuple):
    """Embeddings of one side: CSR [n, V] float32 > 0, the terms of its dimensions, and DECODED or TENSORS."""

    weights: sparse.csr_matrix
    terms: Vocabulary
    name: str


def semantic_search_lucene(
    query_embeddings: Embeddings,
    corpus_embeddings: Embeddings | None = None,
    corpus_index: Index | Path | str | None = None,
    top_k: int = 10,
    output_index: bool = False,
    folder: Path | str | None = None,
    quantiser: Quantiser | None = None,
    threads: int = 1,
) -> tuple[list[list[CorpusHit]], float] | tuple[list[list[CorpusHit]], float, Index]:
    """Finds the best documents of each query by the dot product of sparse embeddings, from a Lucene index of impacts.

    Args:
        query_embeddings: tensors of `SparseEncoder.encode_query` (COO, CSR or dense; of one text [V]), vectors of an
            `Encoder` of ours, or what `SparseEncoder.decode` returns.
        corpus_embeddings: the same of the documents, only without `corpus_index`; of the kind of the queries.
        corpus_index: an index that an earlier call returned (`output_index`) or wrote (`folder`, its `index`).
        top_k: documents per query at most; a document that shares no term is not a hit.
        output_index: return the index too.
        folder: of the shards and the index that are written, or taken if they hold the same embeddings; default a
            temporary one, which is deleted with the index.
        quantiser: default 8 bits of documents, scaled by their largest weight, and up to 8 bits of queries.
        threads: of the search.

    Returns:
        Per query, `{"corpus_id": row, "score": dot product}` by falling score, then rising row; the seconds of the
        search (quantising the queries included, indexing not); with `output_index` the index.
    """
    if corpus_embeddings is not None:
        if corpus_index is not None:
            raise UsageError("both corpus_embeddings and corpus_index; give one of them")
        rows = read_rows(corpus_embeddings, "corpus_embeddings")
        index = _index_rows(rows, None if folder is None else Path(folder), quantiser or Quantiser())
    elif corpus_index is None:
        raise UsageError("neither corpus_embeddings nor corpus_index; give one of them")
    else:
        built = open_built(corpus_index)
        index = corpus_index if isinstance(corpus_index, Index) else Index(built.path, built.manifest)
    started = time.perf_counter()
    results = _search(index, query_embeddings, top_k, threads)
    seconds = time.perf_counter() - started
    return (results, seconds, index) if output_index else (results, seconds)


def _index_rows(corpus: Rows, folder: Path | None, quantiser: Quantiser) -> Index:
    """Indexes embeddings. Unlike a corpus that is still to be encoded, all weights are there to calibrate."""
    tower = StoredRows(corpus)
    ready = quantiser.calibrate(corpus.weights).settle()
    documents = (Document(f"{row:0{DIGITS}d}", text="") for row in range(corpus.weights.shape[0]))
    model = Encoder(corpus.name, "impact", query=tower, document=tower, checkpoint_digest=tower.digest)
    return index_documents(model, documents, folder, BATCH, ready, Layout("parquet"))


def _search(index: Index, embeddings: Embeddings, top_k: int, threads: int) -> list[list[CorpusHit]]:
    name = index.manifest.encoder.name
    if name not in (DECODED, TENSORS):
        raise UsageError(f"{index.path}: an index of encoder {name!r}, not of embeddings; search it with search_index")
    terms = read_vocabulary(index.path, index.manifest)
    queries = read_rows(embeddings, "query_embeddings", terms if name == DECODED else None)
    if queries.name != name or queries.weights.shape[1] != len(terms):
        theirs = f"{queries.name} of {queries.weights.shape[1]} dimensions"
        raise UsageError(f"query_embeddings: {theirs}; the index has {name} of {len(terms)}")
    quantiser = Quantiser.from_json(index.manifest.quantiser)
    impacts = quantiser.queries(queries.weights, index.manifest.counts.max_impact)
    # A query's largest weight becomes its largest impact, whatever its bits.
    peaks = compute_row_max(queries.weights)
    scales = np.divide(compute_row_max(impacts.impacts), peaks, out=np.ones_like(peaks), where=peaks > 0)
    scales *= quantiser.document.scale or 1.0
    topics = [ImpactQuery(str(row), vector) for row, vector in enumerate(impacts.in_vocabulary(terms))]
    lists = search_index(index, topics, top_k, threads=threads)
    return [
        [CorpusHit(corpus_id=int(doc_id), score=score / scale) for doc_id, score in hits.pairs()]
        for hits, scale in zip(lists, scales.tolist(), strict=True)
    ]


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
        raise UsageError(f"{what}: row {row} has the weight {weights.data[worst]}; an impact index adds positive ones")
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
