"""What an index costs before its first query: opening it, its first answer, and the bytes of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lexvl_anserini.engines import jvm

from .collection import read_queries
from .index import index_bytes, resident_bytes
from .processes import Stopwatch, run_once
from .processes import resident_bytes as resident_memory
from .suite import mib, spread

REPEATS = 3

# Hits of the first query.
HITS = 10


def measure_opening(index: Path, queries: Path) -> dict[str, Any]:
    """Median wall milliseconds of opening and of the first query, by processes that have started Java; and sizes.

    `open_ms` includes the loading of our modules and Java classes, which the first index of a process pays;
    `open_again_ms` does not. The files were just written or read, so they are in the memory of the system.
    """
    from lexvl_anserini.engines.index_folder import read_report

    found = [run_once(".opening:open_ours", index=str(index), queries=str(queries)).result for _ in range(REPEATS)]
    postings = read_report(index).postings
    return {
        "open_ms": round(spread([one["open_s"] for one in found]).median * 1000, 1),
        "open_again_ms": round(spread([one["again_s"] for one in found]).median * 1000, 1),
        "first_query_ms": round(spread([one["first_s"] for one in found]).median * 1000, 1),
        "opened_mib": mib(spread([one["resident_bytes"] for one in found]).median),
        "lucene_bytes_per_posting": round(index_bytes(index) / postings, 2),
        "resident_bytes_per_posting": round(resident_bytes(index) / postings, 2),
    }


def open_ours(index: str, queries: str) -> dict[str, float]:
    """What the child does: opens an index as `search` does, searches it for one query, and opens it again."""
    from lexvl_anserini.engines.index_folder import index_manifest
    from lexvl_anserini.engines.opening import open_index

    jvm.start()
    [query, *_] = read_queries(queries)
    with Stopwatch() as opening:
        engine = open_index(Path(index), index_manifest(Path(index)))
    with Stopwatch() as first:
        list(engine.search([query], HITS))
    memory = resident_memory()
    engine.close()
    with Stopwatch() as again:
        open_index(Path(index), index_manifest(Path(index))).close()
    return {
        "open_s": opening.wall_s,
        "again_s": again.wall_s,
        "first_s": first.wall_s,
        "resident_bytes": memory,
    }
