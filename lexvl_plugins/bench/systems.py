"""The systems that the suites compare, each run in a child: ours, stock Pyserini, Lucene alone, FAISS, `baselines`.

An indexing function returns its cost after the start of Java. A searching function returns a `Ready` worker; its
requests are `latency` (single queries), `batch` (all queries at once) and those of `WHERE` (single queries among the
documents that match a condition); of ours also `served` (the number of queries by the form of the postings), of FAISS
`hits` (their ids), of an approximate system `recall`.

FAISS searches unit vectors of 512 dimensions near a 64-dimensional subspace, as embeddings of texts and images are, by
inner product, on one thread. Its graph (HNSW) has the fewest candidates that find 99 % of the flat index's hits.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.jvm import INDEXING_OPTIONS, call_cast, get_java_class
from lexvl_anserini.engines.stock import prepare
from lexvl_anserini.ground.errors import LexvlError, UnknownName, UsageError
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.clauses import All, Clause, Not, Term
from lexvl_plugins.bench.collection import read_queries
from lexvl_plugins.bench.processes import Ready, Stopwatch, time_each

# Java options of `python -m lexvl_anserini.index`: the suite measures the cost of that command.
INDEXING: Mapping[str, str] = {"LEXVL_JAVA_OPTIONS": INDEXING_OPTIONS}


class Indexer(NamedTuple):
    """An indexing function, the format of the shards that it reads, and its environment."""

    function: str
    shard_format: str
    environ: Mapping[str, str]


class SearchWorker(NamedTuple):
    """A searching function, its requests and inputs, and its package and module where it may not be installed."""

    function: str
    tasks: tuple[str, ...]
    arguments: Mapping[str, Any] = {}
    inputs: tuple[str, ...] = ("index", "queries")
    package: tuple[str, str] = ("", "")


INDEXERS: Mapping[str, Indexer] = {
    "ours": Indexer(".systems:index_ours", "jsonl", INDEXING),
    "ours-parquet": Indexer(".systems:index_ours", "parquet", INDEXING),
    "stock": Indexer(".systems:index_stock", "jsonl", {}),
}
# Shares of the documents that match a condition, and the requests that search among them.
SHARES = (0.9, 0.1, 0.01, 0.0001)
WHERE = tuple(f"where {100 * share:g} % match" for share in SHARES)
# What systems that search the same vectors read to know how many hits they find; FAISS creates its own vectors.
OF_BASELINES = ("shards", "queries", "exact")
OF_FAISS, OF_WHERE = ("documents", "query_count", "seed"), ("index", "queries", "shards")
VSAG = ("pyvsag", "pyvsag")
SEARCHERS: Mapping[str, SearchWorker] = {
    "ours": SearchWorker(".systems:search_ours", ("latency", "batch"), {"resident": True}),
    "ours-lucene": SearchWorker(".systems:search_ours", ("latency", "batch"), {"resident": False}),
    "ours-where": SearchWorker(".systems:search_where", WHERE, {"resident": True}, OF_WHERE),
    "ours-lucene-where": SearchWorker(".systems:search_where", WHERE, {"resident": False}, OF_WHERE),
    "ours-approximate": SearchWorker(".systems:search_approximately", ("latency",), {}, ("index", "queries", "exact")),
    "stock": SearchWorker(".systems:search_stock", ("latency", "batch")),
    "lucene": SearchWorker(".systems:search_lucene", ("latency",)),
    "sindi": SearchWorker(".baselines:search_sindi", ("latency",), {"pruned": False}, OF_BASELINES, VSAG),
    "sindi-pruned": SearchWorker(".baselines:search_sindi", ("latency",), {"pruned": True}, OF_BASELINES, VSAG),
    "seismic": SearchWorker(".baselines:search_seismic", ("latency",), {}, OF_BASELINES, ("pyseismic-lsr", "seismic")),
    "faiss-flat": SearchWorker(".systems:search_faiss", ("latency",), {"kind": "flat"}, OF_FAISS),
    "faiss-hnsw": SearchWorker(".systems:search_faiss", ("latency",), {"kind": "hnsw"}, OF_FAISS),
}


def choose_systems(requested: Sequence[str] | None, known: Mapping[str, Any]) -> list[str]:
    """The requested systems, in the order of the known ones; by default all."""
    for name in requested or ():
        if name not in known:
            raise UnknownName("system", name, known)
    return [name for name in known if not requested or name in requested]


def find_searchers(requested: Sequence[str] | None) -> list[str]:
    """The requested searchers, which must be installed; by default all whose package is."""
    names = choose_systems(requested, SEARCHERS)
    absent = [name for name in names if (module := SEARCHERS[name].package[1]) and find_spec(module) is None]
    if requested and absent:
        package = SEARCHERS[absent[0]].package[0]
        raise UsageError(f"system {absent[0]!r}: package {package} is not installed; pip install {package}")
    return [name for name in names if name not in absent]


def digest(rankings: Iterable[list[tuple[str, float]]]) -> str:
    """SHA-256 (hex) of ids and rounded scores in order: stock Anserini lowers tied scores by a millionth per tie."""
    rounded = [[(doc_id, round(score)) for doc_id, score in ranking] for ranking in rankings]
    return sha256(orjson.dumps(rounded)).hexdigest()


def index_ours(shards: str, index: str, threads: int, cores: int | None = None) -> dict[str, float]:
    """Our indexing, on so many of this process's cores; returns its cost after the start of Java."""
    from lexvl_anserini.searching.building import build_index

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    jvm.start()
    with Stopwatch() as watch:
        build_index(shards, index, threads=threads)
    return watch.seconds()


def open_ours(index: str, resident: bool) -> Any:
    """Our engine; one form of the postings serves from the first query on: no round mixes the two."""
    from lexvl_anserini.engines.engine import open_index
    from lexvl_anserini.engines.index_folder import RESIDENT, index_manifest

    path = Path(index)
    os.environ["LEXVL_POSTINGS"] = "resident" if resident and (path / RESIDENT).is_file() else "lucene"
    return open_index(path, index_manifest(path))


def search_ours(index: str, queries: str, resident: bool) -> Ready:
    """A worker around our engine."""
    engine, encoded = open_ours(index, resident), read_queries(queries)

    def answer(task: str, hits: int, threads: int = 1) -> Any:
        if task == "latency":
            return time_each(lambda query: list(engine.search([query], hits)), encoded)
        if task == "served":
            return dict(engine.served())
        with Stopwatch() as watch:
            lists = list(engine.search(encoded, hits, threads))
        return {**watch.seconds(), "digest": digest([(hit.doc_id, hit.score) for hit in ranking] for ranking in lists)}

    return Ready({}, answer)


def search_approximately(index: str, queries: str, exact: str) -> Ready:
    """A worker around our approximate search, prepared and measured with these queries as `baselines` are."""
    from lexvl_anserini.engines.index_folder import compute_mean_recall, read_recall, read_report
    from lexvl_anserini.searching.building import approximate_index

    path, best = Path(index), dict[int, float]()
    approximate_index(path, queries)
    report = read_report(path)
    for setting in report.approximation["settings"]:
        best[setting["hits"]] = max(best.get(setting["hits"], 0.0), min(RECALL, setting["recall"]))
    engine, encoded = open_ours(index, True), read_queries(queries)

    def answer(task: str, hits: int, threads: int = 1) -> Any:
        least = min(share for measured, share in best.items() if measured >= hits)
        if task == "latency":
            return time_each(lambda query: list(engine.search_approximately([query], hits, least)), encoded)
        scores = [ranked.scores for ranked in engine.search_approximately(encoded, hits, least)]
        reached = compute_mean_recall(orjson.loads(Path(exact).read_bytes())[str(hits)], scores)
        return {"recall": reached, "settings": read_recall(report, path, least, hits)}

    return Ready({}, answer)


def search_where(index: str, queries: str, shards: str, resident: bool) -> Ready:
    """A worker around our filtered searches; its facts are the conditions, and the cost of their first search."""
    from lexvl_plugins.bench.baselines import count_documents

    engine, encoded = open_ours(index, resident), read_queries(queries)
    frequencies, documents = count_documents(Path(shards))
    conditions = dict(zip(WHERE, (choose_condition(frequencies, documents, share) for share in SHARES), strict=True))

    def search(query: ImpactQuery, where: Clause, hits: int) -> None:
        list(engine.search_where([query], where, hits))

    facts = {}
    # Loads the resident postings and Java's classes.
    search(encoded[0], All((conditions[WHERE[0]][0],)), 1)
    for task, (where, share) in conditions.items():
        with Stopwatch() as first:
            search(encoded[0], where, 1)
        facts[task] = {"share": share, "first_s": first.cpu_s}

    def answer(task: str, hits: int, threads: int = 1) -> Any:
        return time_each(lambda query: search(query, conditions[task][0], hits), encoded)

    return Ready(facts, answer)


def choose_condition(frequencies: Mapping[str, int], documents: int, share: float) -> tuple[Clause, float]:
    """The condition that the nearest share of the documents meets, and this share."""
    sharing = [(Term(term), count / documents) for term, count in frequencies.items()]
    choices: list[tuple[Clause, float]] = [*sharing, *((Not(term), 1 - part) for term, part in sharing)]
    return min(choices, key=lambda choice: abs(choice[1] - share))


def index_stock(shards: str, index: str, threads: int, cores: int | None = None) -> dict[str, float]:
    """`python -m pyserini.index.lucene ...` on `shards/docs`, on the Java that this package started."""
    prepare()
    import_module("pyserini.index.lucene")
    arguments = ["--collection", "JsonVectorCollection", "--input", f"{shards}/docs", "--index", index]
    arguments += ["--generator", "DefaultLuceneDocumentGenerator", "--threads", str(threads)]
    sys.argv = ["pyserini.index.lucene", *arguments, "--impact", "--pretokenized"]
    with Stopwatch() as watch:
        runpy.run_module("pyserini.index.lucene", run_name="__main__", alter_sys=True)
    if not list(Path(index).glob("segments_*")):
        raise LexvlError(f"stock Pyserini wrote no index at {index}")
    return watch.seconds()


def search_stock(index: str, queries: str) -> Ready:
    """A worker around `LuceneImpactSearcher`, without its cut of frequent terms (min_idf), which changes rankings."""
    prepare()
    from pyserini.search.lucene import LuceneImpactSearcher

    vectors = {query.query_id: dict(query.vector) for query in read_queries(queries)}
    # A query encoder that looks its vectors up, so that a search is timed without encoding.
    table = SimpleNamespace(encode=lambda text, **_: vectors[text])
    searcher = LuceneImpactSearcher(index, table, min_idf=-1)
    ids = list(vectors)

    def answer(task: str, hits: int, threads: int = 1) -> dict[str, Any]:
        if task == "latency":
            return time_each(lambda query_id: searcher.search(query_id, k=hits), ids)
        with Stopwatch() as watch:
            lists = searcher.batch_search(ids, ids, k=hits, threads=threads)
        with Stopwatch() as reading:
            rankings = [[(hit.docid, float(hit.score)) for hit in lists.get(query_id, ())] for query_id in ids]
        return {**watch.seconds(), "read_s": reading.wall_s, "digest": digest(rankings)}

    return Ready({}, answer)


FIELD = "contents"


def open_reader(index: str) -> tuple[Any, Any]:
    """A reader of an index, ours or stock's; the second is the same one as an IndexReader, as Lucene's methods ask."""
    jvm.start()
    path = get_java_class("java.nio.file.Paths").get(str(Path(index).absolute()))
    folder = get_java_class("org.apache.lucene.store.FSDirectory").open(path)
    reader = get_java_class("org.apache.lucene.index.DirectoryReader").open(folder)
    return reader, call_cast("org.apache.lucene.index.IndexReader", reader)


def count_index(index: str) -> dict[str, int]:
    """Documents, postings and the sum of all impacts, from the index's own statistics."""
    reader, as_reader = open_reader(index)
    terms = get_java_class("org.apache.lucene.index.MultiTerms").getTerms(as_reader, FIELD)
    postings, impacts = int(terms.getSumDocFreq()), int(terms.getSumTotalTermFreq())
    return {"documents": int(reader.maxDoc()), "postings": postings, "impacts": impacts}


def search_lucene(index: str, queries: str) -> Ready:
    """A worker around `IndexSearcher.search`, whose `TopDocs` stay in Java: the lower bound, without code around it.

    Its fact is the expected overlap, the postings that a query touches per document (FLOPS in the papers).
    """
    reader, as_reader = open_reader(index)
    searcher = get_java_class("org.apache.lucene.search.IndexSearcher")(as_reader)
    searcher.setSimilarity(get_java_class("io.anserini.search.similarity.ImpactSimilarity")())
    encoded = read_queries(queries)
    built = [build_query(query.vector) for query in encoded]

    def answer(task: str, hits: int, threads: int = 1) -> dict[str, Any]:
        return time_each(lambda query: searcher.search(query, hits), built)

    term_of = get_java_class("org.apache.lucene.index.Term")
    touched = sum(int(reader.docFreq(term_of(FIELD, term))) for query in encoded for term in query.vector)
    return Ready({"overlap": touched / (len(encoded) * int(reader.maxDoc()))}, answer)


def build_query(vector: Mapping[str, float]) -> Any:
    """One optional clause per term, boosted by its weight."""
    term_of = get_java_class("org.apache.lucene.index.Term")
    one_term = get_java_class("org.apache.lucene.search.TermQuery")
    boosted = get_java_class("org.apache.lucene.search.BoostQuery")
    should = get_java_class("org.apache.lucene.search.BooleanClause$Occur").SHOULD
    builder = get_java_class("org.apache.lucene.search.BooleanQuery$Builder")()
    as_query = partial(call_cast, "org.apache.lucene.search.Query")
    for term, weight in vector.items():
        builder.add(as_query(boosted(as_query(one_term(term_of(FIELD, term))), float(weight))), should)
    return as_query(builder.build())


DIMENSIONS = 512
INNER = 64
NOISE = 0.05
DENSE_BLOCK = 20_000
# FAISS's own HNSW example values; EF_SEARCH is where the doubling starts.
HNSW_LINKS = 32
EF_CONSTRUCTION = 40
EF_SEARCH = 64
# Share of the exact hits that a graph search has to find.
RECALL = 0.99


def draw_dense(count: int, seed: int, stream: int) -> Iterator[np.ndarray]:
    """Unit vectors, float32 [up to DENSE_BLOCK, DIMENSIONS] at a time; `stream` separates documents from queries."""
    basis = np.random.default_rng([seed, 0]).standard_normal((INNER, DIMENSIONS), dtype=np.float32)
    random = np.random.default_rng([seed, 1 + stream])
    for start in range(0, count, DENSE_BLOCK):
        rows = min(DENSE_BLOCK, count - start)
        block = random.standard_normal((rows, INNER), dtype=np.float32) @ basis / INNER**0.5
        block += NOISE * random.standard_normal((rows, DIMENSIONS), dtype=np.float32)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def search_faiss(kind: str, documents: int, query_count: int, seed: int) -> Ready:
    """A worker around a FAISS index (flat or hnsw); building uses all cores, searching one."""
    import faiss

    index: Any = faiss.IndexFlatIP(DIMENSIONS)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(DIMENSIONS, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EF_CONSTRUCTION
    for block in draw_dense(documents, seed, 0):
        index.add(block)
    faiss.omp_set_num_threads(1)
    queries = np.concatenate(list(draw_dense(query_count, seed, 1)))
    efforts: dict[int, int] = {}

    def answer(task: str, hits: int, threads: int = 1) -> Any:
        if kind == "hnsw":
            if hits not in efforts:
                efforts[hits] = find_candidates(index, queries, hits)
            index.hnsw.efSearch = efforts[hits]
        if task == "hits":
            return {"hits": index.search(queries, hits)[1].tolist(), "candidates": efforts.get(hits)}
        return time_each(lambda query: index.search(query[None], hits), queries)

    return Ready({}, answer)


def find_candidates(index: Any, queries: np.ndarray, hits: int) -> int:
    """The least efSearch, doubled from EF_SEARCH or `hits`, that finds RECALL of the exact hits."""
    import faiss

    exact = faiss.downcast_index(index.storage).search(queries, hits)[1].tolist()
    index.hnsw.efSearch = max(EF_SEARCH, hits)
    while index.hnsw.efSearch < index.ntotal and measure_share(exact, index.search(queries, hits)[1].tolist()) < RECALL:
        index.hnsw.efSearch *= 2
    return int(index.hnsw.efSearch)


def measure_share(exact: Sequence[Sequence[Any]], lists: Sequence[Sequence[Any]]) -> float:
    """Mean over queries of the share of the exact list that is in the other; an empty list is in any."""
    return mean(len(set(e) & set(f)) / len(e) if e else 1.0 for e, f in zip(exact, lists, strict=True))
