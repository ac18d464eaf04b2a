"""Lucene indexes of tests: what they answer, what they hold, what stock Pyserini makes of them, and damage to them."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from invoking import read_output
from shard_folders import Documents, counts_of, write_shards

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.fields import open_whole_index
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery

# d1..d3 hold "a"; "the" is in every document that has terms at all.
DOCUMENTS: Documents = [
    ("d1", {"a": 3, "the": 1}),
    ("d2", {"a": 1, "b": 5, "the": 1}),
    ("d10", {"a": 3, "the": 1}),
    ("empty", {}),
    ("é😀", {"日本": 7, "😀": 2, "the": 1}),
]

# A larger collection with many ties, and a query of each of its terms.
MANY_TERMS = [f"t{number}" for number in range(40)]
MANY_DOCUMENTS: Documents = [
    (f"d{n}", {MANY_TERMS[(n * step) % 40]: (n * step) % 250 + 1 for step in range(n % 7 + 1)}) for n in range(150)
] + [("empty", {})]
MANY_QUERIES = [ImpactQuery(term, {term: 3, "t1": 2}) for term in MANY_TERMS]

# The terms of indexes that change.
TERMS = ["##c", "a", "b", "日本", "😀"]


def ranked(engine: Any, vector: dict[str, int], hits: int = 10) -> list[tuple[str, float]]:
    [documents] = engine.search([ImpactQuery("q", vector)], hits)
    assert [d.rank for d in documents] == list(range(1, len(documents) + 1))
    return [(d.doc_id, d.score) for d in documents]


def answers(index: Path, vector: dict[str, int], hits: int = 20) -> list[tuple[str, float]]:
    """The list of an index that is opened for this query."""
    with closing(LuceneEngine(index, read_manifest(index))) as engine:
        return ranked(engine, vector, hits)


def shards(folder: Path, documents: Documents, **options: Any) -> Path:
    write_shards(folder, documents, terms=TERMS, **options)
    return folder


def held(index: Path) -> dict[str, dict[str, int]]:
    """What an index with one posting list a term says its documents are: id -> vector, by asking for every term."""
    found: dict[str, dict[str, int]] = {}
    with closing(LuceneEngine(index, read_manifest(index))) as engine:
        for term, hits in zip(TERMS, engine.search([ImpactQuery(t, {t: 1}) for t in TERMS], 1000), strict=True):
            for hit in hits:
                found.setdefault(hit.doc_id, {})[term] = int(hit.score)
    return found


def expect(index: Path, documents: Mapping[str, Mapping[str, int]]) -> None:
    manifest, report = read_manifest(index), read_report(index)
    postings = [(doc_id, term, impact) for doc_id, v in documents.items() for term, impact in v.items()]
    counts = counts_of([*documents.values()])
    assert held(index) == {doc_id: vector for doc_id, vector in documents.items() if vector}
    assert {name: manifest.counts[name] for name in counts} == counts
    assert {name: report[name] for name in counts} == counts
    with open_whole_index(index) as whole:
        assert whole.counts()["impacts"] == report["impacts"] == sum(impact for *_, impact in postings)
    lists = {term: sum(t == term for _, t, _ in postings) for term in TERMS}
    longest = sorted(((-n, term.encode()) for term, n in lists.items() if n))
    assert report["longest_lists"] == [[-n, term.decode()] for n, term in longest]


# Stock Pyserini in a process of its own: its import loads everything.
STOCK_SEARCH = """
import json, sys
from lexvl_anserini.engines.stock import prepare
prepare()
from pyserini.search.lucene import LuceneImpactSearcher
class Cached:
    def encode(self, query):
        return json.loads(query)
found = []
for index, queries in json.load(open(sys.argv[1])):
    searcher = LuceneImpactSearcher(index, query_encoder=Cached(), min_idf=-1)
    found.append([[(h.docid, h.score) for h in searcher.search(json.dumps(q), 50)] for q in queries])
print("LISTS" + json.dumps(found))
"""

StockLists = list[list[tuple[str, float]]]


def stock_lists(folder: Path, topics: Sequence[tuple[Path, Sequence[dict[str, int]]]]) -> list[StockLists]:
    """What stock `LuceneImpactSearcher` finds in each of some indexes, for each of its queries, up to rank 50."""
    (folder / "topics.json").write_text(json.dumps([(str(index), list(queries)) for index, queries in topics]))
    printed = read_output([sys.executable, "-c", STOCK_SEARCH, str(folder / "topics.json")])
    found = json.loads(printed.rpartition("LISTS")[2])
    return [[[(doc_id, score) for doc_id, score in hits] for hits in lists] for lists in found]


def stock_index(shards: Path, index: Path) -> None:
    jvm.start()
    arguments = ["-collection", "JsonVectorCollection", "-input", str(shards / "docs"), "-index", str(index)]
    arguments += ["-generator", "DefaultLuceneDocumentGenerator", "-threads", "1", "-impact", "-pretokenized"]
    with jvm.capture_stdout():
        jvm.get_java_class("io.anserini.index.IndexCollection").main([*arguments, "-memoryBuffer", "64"])


def flip(path: Path, place: int) -> None:
    broken = bytearray(path.read_bytes())
    broken[place] ^= 4
    path.write_bytes(broken)
