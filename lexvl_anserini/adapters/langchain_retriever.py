"""LangChain: `LexVLRetriever(index="indexes/mine", k=4).invoke("a question")`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document as LangChainDocument
from langchain_core.retrievers import BaseRetriever

from lexvl_anserini.queries.retrieval import located, texts_of
from lexvl_anserini.records import Index


class LexVLRetriever(BaseRetriever):
    """Finds documents in an index.

    index     an index, or its folder
    k         documents per query
    data_dir  where the corpus is, for an index that stores no texts; None for the place in its manifest
    """

    index: Any
    k: int = 4
    data_dir: str | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[LangChainDocument]:
        path, manifest = located(self.index if isinstance(self.index, Index) else Path(self.index))
        index = Index(path, manifest, manifest.counts.documents)
        hits = index.search(query, k=self.k)
        texts = texts_of(hits, index, self.data_dir)
        return [
            LangChainDocument(id=hit.doc_id, page_content=texts[hit.doc_id], metadata={"score": hit.score})
            for hit in hits
        ]
