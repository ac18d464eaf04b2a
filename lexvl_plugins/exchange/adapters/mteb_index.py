"""MTEB: `SearchEncoderWrapper(model, index_backend=LuceneIndex(model))` searches any sparse model of MTEB's in Lucene.

It implements MTEB's IndexEncoderSearchProtocol (mteb 2.26): the model encodes, and its embeddings become impacts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scipy import sparse
from sklearn.preprocessing import normalize

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.searching.searcher import Index
from lexvl_plugins.exchange.adapters.indexed_corpus import check_hits
from lexvl_plugins.exchange.adapters.sparse_embeddings import (
    RoundingLoss,
    Rows,
    index_rows,
    measure_loss,
    read_queries,
    read_rows,
    search_rows,
)

if TYPE_CHECKING:
    from mteb.models import EncoderProtocol

log = logging.getLogger(__name__)


class LuceneIndex:
    """The index of one corpus at a time, as `FaissSearchIndex` of MTEB; `losses` has what rounding cost in each search.

    A score is the dot product of the embeddings but for their rounding to integers. A document that shares no
    dimension with a query is not found, and scores 0 among the candidates of a reranking task.
    """

    def __init__(self, model: EncoderProtocol, quantiser: Quantiser | None = None, threads: int = 1):
        """Makes an empty index.

        Args:
            model: of MTEB; its similarity is the dot product, or the cosine, for which embeddings are normalised.
            quantiser: default 8 bits of documents, scaled by their largest weight, and up to 8 bits of queries.
            threads: of the search.
        """
        name, known = str(model.mteb_model_meta.similarity_fn_name or "dot"), ("dot", "cosine")
        if name not in known:
            raise UsageError(f"{model.mteb_model_meta.name}: similarity {name!r}, expected {' or '.join(known)}")
        self.cosine, self.quantiser, self.threads = name == "cosine", quantiser, threads
        self.losses: list[RoundingLoss] = []
        self.clear()

    def clear(self) -> None:
        """Forgets all documents; the files of the index go with it."""
        self.ids: list[str] = []
        self.corpus: Rows | None = None
        self.index: Index | None = None

    def add_documents(self, embeddings: Any, idxs: Sequence[str]) -> None:
        """Indexes embeddings [n, V] with their ids, after those that are there."""
        rows = self._normalise(read_rows(embeddings, "embeddings of documents"))
        if rows.weights.shape[0] != len(idxs):
            raise UsageError(f"{rows.weights.shape[0]} embeddings of documents for {len(idxs)} ids")
        if self.corpus is not None:
            rows = rows._replace(weights=sparse.vstack([self.corpus.weights, rows.weights], format="csr"))
        self.ids += idxs
        self.corpus, self.index = rows, index_rows(rows, quantiser=self.quantiser)

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Callable[..., Any],
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Finds the best documents of each query: their scores, and their places in the corpus or among candidates."""
        if self.corpus is None or self.index is None:
            raise UsageError("MTEB searches before it indexes; call add_documents first")
        queries = self._normalise(read_queries(self.index, embeddings))
        among = None
        if top_ranked is not None:
            places = {doc_id: place for place, doc_id in enumerate(self.ids)}
            names = [(query_idx_to_id or {})[row] for row in range(queries.weights.shape[0])]
            among = [[places[doc_id] for doc_id in top_ranked.get(name, ())] for name in names]
        lists = search_rows(self.index, queries, check_hits(top_k), self.threads, among)
        self.losses.append(measure_loss(self.index, self.corpus, queries, lists))
        log.info("%s", self.losses[-1])
        if among is not None:
            candidates = [{row: place for place, row in enumerate(rows)} for rows in among]
            lists = [[(own[row], score) for row, score in hits] for own, hits in zip(candidates, lists, strict=True)]
        return [[score for _, score in hits] for hits in lists], [[row for row, _ in hits] for hits in lists]

    def _normalise(self, rows: Rows) -> Rows:
        """Divides each row by its length if the similarity is the cosine."""
        if not self.cosine:
            return rows
        return rows._replace(weights=normalize(rows.weights))
