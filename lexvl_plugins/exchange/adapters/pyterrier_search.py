"""PyTerrier: a retriever over an index of ours, and an indexer that makes one, for `pt.Experiment` and `>>`.

PyTerrier's measures order equal scores by themselves, so a tied score is lowered by the least step of its float.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import Document, Topic
from lexvl_anserini.runs.trec import DEFAULT_HITS, strict_scores
from lexvl_anserini.searching.searcher import Index, Searcher
from lexvl_plugins.exchange.adapters.indexed_corpus import IndexedCorpus, check_texts


class PyTerrierRetriever(pt.Transformer):
    """Adds the documents that an index finds: qid, query -> qid, query, docno, score, rank (from 0)."""

    def __init__(self, index: Index | Path | str, hits: int = DEFAULT_HITS, model: Encoder | None = None):
        self.searcher, self.hits = Searcher(index, model).opened(), hits

    def transform(self, topics: Any) -> Any:
        """Turns a frame of topics into a frame of documents; other columns of a topic stay with its documents."""
        if missing := {"qid", "query"} - set(topics.columns):
            raise UsageError(f"topics without the column {sorted(missing)[0]!r}; expected qid and query")
        topics = topics.drop(columns=[c for c in ("docno", "score", "rank") if c in topics.columns])
        topics = topics.drop_duplicates("qid").assign(qid=topics["qid"].astype(str))
        rows: list[tuple[str, str, float, int]] = []
        queries = [Topic(qid, query) for qid, query in zip(topics["qid"], topics["query"], strict=True)]
        for hits in self.searcher.lists(check_texts(queries), self.hits):
            scores = strict_scores(hits.scores.tolist())
            rows += zip(repeat(hits.query_id), hits.doc_ids, scores, count(), strict=False)
        self.searcher.verify()
        ranking = pd.DataFrame(rows, columns=["qid", "docno", "score", "rank"])
        return topics.merge(ranking, on="qid", how="inner")


class PyTerrierIndexer(pt.Indexer):
    """Encodes and indexes documents in a folder; the field `title` is their title, the others are their text."""

    def __init__(self, model: Encoder, folder: Path | str, fields: Iterable[str] = ("title", "text")):
        self.model, self.folder, self.fields = model, Path(folder), tuple(fields)

    def index(self, iter: Iterable[Mapping[str, Any]], **ignored: Any) -> Index:
        """Indexes documents with a `docno`; the name and the further arguments are those of PyTerrier."""
        return IndexedCorpus(self.model, map(self.convert_document, iter), self.folder).index

    def convert_document(self, record: Mapping[str, Any]) -> Document:
        """Converts a document of PyTerrier to one of ours."""
        texts = {field: str(record[field]) for field in self.fields if record.get(field)}
        return Document(str(record["docno"]), texts.pop("title", None), " ".join(texts.values()))
