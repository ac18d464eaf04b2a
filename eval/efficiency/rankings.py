"""What workers of the suite search share: the queries, how they are timed, and a digest of what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import orjson

from lexvl_anserini.records import ImpactQuery

Query = TypeVar("Query")

# (doc_id, score) by rank.
Ranking = list[tuple[str, float]]


def load_queries(path: str) -> list[ImpactQuery]:
    """The queries that `impacts.write_queries` wrote."""
    rows = (orjson.loads(line) for line in Path(path).read_bytes().splitlines())
    return [ImpactQuery(row["id"], row["vector"]) for row in rows]


def digest(rankings: Iterable[Ranking]) -> str:
    """SHA-256 (hex) of ids and integer scores in order: equal digests are equal rankings.

    Stock Anserini lowers tied scores by a millionth per tie, which rounding takes back.
    """
    told = sha256()
    for ranking in rankings:
        told.update(orjson.dumps([(doc_id, round(score)) for doc_id, score in ranking]))
    return told.hexdigest()


def one_by_one(search: Callable[[Query], Any], queries: Iterable[Query]) -> dict[str, list[float]]:
    """Wall and CPU seconds (all threads of this process) of each query, one after the other."""
    wall, cpu = [], []
    for query in queries:
        started, worked = time.perf_counter(), time.process_time()
        search(query)
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - worked)
    return {"wall_s": wall, "cpu_s": cpu}
