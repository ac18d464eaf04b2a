"""LangChain: `LexVLRetriever(index="indexes/mine", k=4).invoke("a question")`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document as LangChainDocument
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from lexvl_anserini.ground.typed import check_type
from lexvl_anserini.searching.index_runs import read_texts
from lexvl_anserini.searching.searcher import Searcher


class LexVLRetriever(BaseRetriever):
    """Finds `k` documents per query in an index; `data_dir` has its corpus, if it stores no texts."""

    index: Any
    k: int = 4
    data_dir: str | None = None
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(self.index)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[LangChainDocument]:
        check_type("query", query, str, "a text")  # several would be answered by several lists
        hits = self._searcher.search(query, self.k)
        self._searcher.verify()
        texts = read_texts(hits, self._searcher.index, self.data_dir)
        return [
            LangChainDocument(id=doc_id, page_content=texts[doc_id], metadata={"score": score})
            for doc_id, score in hits.pairs()
        ]
