"""BEIR: `EvaluateRetrieval(BEIRSearch(model)).retrieve(corpus, queries)` searches an index of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from beir.retrieval.search import BaseSearch

from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import Document, Topic
from lexvl_plugins.exchange.adapters.indexed_corpus import IndexedCorpus, check_hits, collect_scores, read_title


class BEIRSearch(BaseSearch):
    """An encoder and its index as a search of BEIR; `batch_size` inputs per forward pass."""

    def __init__(self, model: Encoder, batch_size: int = 32):
        self.model, self.batch_size = model, batch_size
        self.results: dict[str, dict[str, float]] = {}

    def search(
        self, corpus: Mapping[str, Mapping[str, str]], queries: Mapping[str, str], top_k: int, *_: Any, **__: Any
    ) -> dict[str, dict[str, float]]:
        """Finds the best `top_k` documents of each query but that of its own id; scores are always the model's."""
        documents = (Document(doc_id, read_title(doc), doc.get("text", "")) for doc_id, doc in corpus.items())
        indexed = IndexedCorpus(self.model, documents, batch_size=self.batch_size)
        topics, most = [Topic(query_id, text) for query_id, text in queries.items()], check_hits(top_k)
        self.results = collect_scores(hits.without(hits.query_id)[:most] for hits in indexed.search(topics, most + 1))
        return self.results

    def encode(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuses to write vectors, which shards hold here."""
        raise UsageError("vectors are in the shards that lexvl_anserini.encode writes; search the corpus itself")

    search_from_files = encode
