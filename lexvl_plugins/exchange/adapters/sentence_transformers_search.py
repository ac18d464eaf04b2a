"""sentence-transformers: `semantic_search_lucene(query_embeddings, corpus_embeddings)` over an index of ours.

It has the arguments and results of `semantic_search_seismic` and its like in
`sentence_transformers.sparse_encoder.search_engines`; scores are those of `sparse_embeddings`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypedDict

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.searching.searcher import Index, open_built
from lexvl_plugins.exchange.adapters.sparse_embeddings import (
    Embeddings,
    index_rows,
    read_queries,
    read_rows,
    search_rows,
)


class CorpusHit(TypedDict):
    """A hit: the row of the corpus, and its score."""

    corpus_id: int
    score: float


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
        index = index_rows(rows, None if folder is None else Path(folder), quantiser)
    elif corpus_index is None:
        raise UsageError("neither corpus_embeddings nor corpus_index; give one of them")
    else:
        built = open_built(corpus_index)
        index = corpus_index if isinstance(corpus_index, Index) else Index(built.path, built.manifest)
    started = time.perf_counter()
    lists = search_rows(index, read_queries(index, query_embeddings), top_k, threads)
    results = [[CorpusHit(corpus_id=row, score=score) for row, score in hits] for hits in lists]
    seconds = time.perf_counter() - started
    return (results, seconds, index) if output_index else (results, seconds)
