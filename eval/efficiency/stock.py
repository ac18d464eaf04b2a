"""Stock Pyserini, as it is, in a child: its indexing command and its searcher.

It runs on the Java that we found, started by us: Pyserini's own start asks for a module that small runtimes lack and
ends the process without a word. Its heap is what Java gives by default, a quarter of the machine's memory.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from eval.efficiency.processes import Ready, Stopwatch
from eval.efficiency.rankings import Ranking, digest, load_queries, one_by_one
from lexvl_anserini.errors import LexvlError

QUARTER_MIB = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 22

# Importing pyserini.search makes an OpenAI client, which wants a key; nothing is asked of it.
ENVIRON = {"LEXVL_JAVA_HEAP": f"{QUARTER_MIB}m", "OPENAI_API_KEY": "none"}


def index(shards: str, index: str, threads: int) -> dict[str, float]:
    """`python -m pyserini.index.lucene --collection JsonVectorCollection --impact --pretokenized` on `shards/docs`.

    Returns what it cost once Java ran and Pyserini was imported.
    """
    from lexvl_anserini.engines import jvm

    jvm.start()
    import_module("pyserini.index.lucene")
    arguments = ["--collection", "JsonVectorCollection", "--input", f"{shards}/docs", "--index", index]
    arguments += ["--generator", "DefaultLuceneDocumentGenerator", "--threads", str(threads)]
    sys.argv = ["pyserini.index.lucene", *arguments, "--impact", "--pretokenized"]
    with Stopwatch() as watch:
        runpy.run_module("pyserini.index.lucene", run_name="__main__", alter_sys=True)
    if not list(Path(index).glob("segments_*")):
        raise LexvlError(f"stock Pyserini wrote no index at {index}")
    return watch.told()


class LookedUp:
    """A query encoder that knows every answer: what is timed is searching."""

    def __init__(self, vectors: dict[str, dict[str, int]]):
        self.vectors = vectors

    def encode(self, text: str, **_: Any) -> dict[str, int]:
        """The vector of the query whose id is `text`."""
        return self.vectors[text]


def search(index: str, queries: str) -> Ready:
    """A worker around `LuceneImpactSearcher`, without its cut of frequent terms (min_idf), which changes rankings."""
    from lexvl_anserini.engines import jvm

    jvm.start()
    from pyserini.search.lucene import LuceneImpactSearcher

    asked = load_queries(queries)
    vectors = {query.query_id: dict(query.vector) for query in asked}
    searcher = LuceneImpactSearcher(index, LookedUp(vectors), min_idf=-1)
    ids = list(vectors)

    def answer(task: str, hits: int, threads: int = 1) -> dict[str, Any]:
        if task == "latency":
            return one_by_one(lambda query_id: searcher.search(query_id, k=hits), ids)
        with Stopwatch() as watch:
            found = searcher.batch_search(ids, ids, k=hits, threads=threads)
        with Stopwatch() as reading:
            told = list(rankings(ids, found))
        return {**watch.told(), "read_s": reading.wall_s, "digest": digest(told)}

    return Ready({"documents": searcher.num_docs}, answer)


def rankings(ids: Sequence[str], found: dict[str, Any]) -> Iterator[Ranking]:
    """Ids and scores out of the Java objects that a search returns, in the order of the queries."""
    for query_id in ids:
        yield [(hit.docid, float(hit.score)) for hit in found.get(query_id, ())]
