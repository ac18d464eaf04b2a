"""Lucene itself, without any of our or Pyserini's code around a search: the lower bound; and what an index holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.efficiency.processes import Ready
from eval.efficiency.rankings import load_queries, one_by_one
from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.jvm import java_cast, java_class

FIELD = "contents"


def open_reader(index: str) -> Any:
    """A reader of an index, ours or stock's."""
    path = java_class("java.nio.file.Paths").get(str(Path(index).absolute()))
    folder = java_class("org.apache.lucene.store.FSDirectory").open(path)
    return java_class("org.apache.lucene.index.DirectoryReader").open(folder)


def held(index: str) -> dict[str, int]:
    """Documents, postings and the sum of all impacts, as the index's own statistics say."""
    jvm.start()
    reader = open_reader(index)
    as_reader = java_cast("org.apache.lucene.index.IndexReader", reader)
    terms = java_class("org.apache.lucene.index.MultiTerms").getTerms(as_reader, FIELD)
    return {
        "documents": int(reader.maxDoc()),
        "postings": int(terms.getSumDocFreq()),
        "impacts": int(terms.getSumTotalTermFreq()),
    }


def search(index: str, queries: str) -> Ready:
    """A worker around `IndexSearcher.search`: time from the call to its `TopDocs`, which stay in Java.

    Tells the documents and the expected overlap: the postings a query touches per document (FLOPS in the papers),
    the mean over queries of the sum over terms of df / N.
    """
    jvm.start()
    reader = open_reader(index)
    as_reader = java_cast("org.apache.lucene.index.IndexReader", reader)
    searcher = java_class("org.apache.lucene.search.IndexSearcher")(as_reader)
    searcher.setSimilarity(java_class("io.anserini.search.similarity.ImpactSimilarity")())
    asked = [build_query(query.vector) for query in load_queries(queries)]
    order = total_order()

    def answer(task: str, hits: int, threads: int = 1) -> dict[str, Any]:
        if task == "sorted":
            return one_by_one(lambda query: searcher.search(query, hits, order, False), asked)
        return one_by_one(lambda query: searcher.search(query, hits), asked)

    return Ready({"documents": int(reader.maxDoc()), "overlap": overlap(reader, load_queries(queries))}, answer)


def total_order() -> Any:
    """Score descending, then id ascending: the order of stock Anserini and of ours."""
    field = java_class("org.apache.lucene.search.SortField")
    by_id = field("id", java_class("org.apache.lucene.search.SortField$Type").STRING_VAL)
    return java_class("org.apache.lucene.search.Sort")(field.FIELD_SCORE, by_id)


def build_query(vector: Any) -> Any:
    """One optional clause per term, boosted by its weight."""
    term_of = java_class("org.apache.lucene.index.Term")
    one_term = java_class("org.apache.lucene.search.TermQuery")
    boosted = java_class("org.apache.lucene.search.BoostQuery")
    should = java_class("org.apache.lucene.search.BooleanClause$Occur").SHOULD
    builder = java_class("org.apache.lucene.search.BooleanQuery$Builder")()
    for term, weight in vector.items():
        inner = java_cast("org.apache.lucene.search.Query", one_term(term_of(FIELD, term)))
        builder.add(java_cast("org.apache.lucene.search.Query", boosted(inner, float(weight))), should)
    return java_cast("org.apache.lucene.search.Query", builder.build())


def overlap(reader: Any, queries: list[Any]) -> float:
    """Mean over queries of the number of their terms that a random document has."""
    term_of = java_class("org.apache.lucene.index.Term")
    frequency = {term: int(reader.docFreq(term_of(FIELD, term))) for query in queries for term in query.vector}
    touched = sum(frequency[term] for query in queries for term in query.vector)
    return touched / (len(queries) * int(reader.maxDoc()))
