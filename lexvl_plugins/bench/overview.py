"""The suite overview: all comparisons of the Lucene engine, target and measured ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from lexvl_plugins.bench import index, search
from lexvl_plugins.bench.command import Options, Report

# The clocks in the names of ratios.
CLOCKS = ("CPU", "wall")
# The same engine with resident postings and with Lucene's.
RESIDENT = ("ours", "ours-lucene")
FAISS = ("faiss-flat", "faiss-hnsw")


def sized(documents: int, queries: int, repeats: int, *system: str, threads: int | None = None) -> Options:
    """The options of a search over vectors like SPLADE's."""
    return Options(documents=[documents], query_count=queries, repeats=repeats, threads=threads, system=[*system])


VDR: dict[str, Any] = {"shape": ["vdr"], "query_terms": 768}
# A suite and its options at one size, by the name of the part.
PARTS: Mapping[str, tuple[Callable[[Options], Report], Options]] = {
    "index": (index.measure, Options(documents=[20_000], repeats=3)),
    "building": (index.measure, Options(documents=[100_000], repeats=3, threads=2, system=["ours-parquet"])),
    "search": (search.measure, sized(20_000, 1000, 2, "ours", "stock", "lucene")),
    "dense": (search.measure, sized(100_000, 100, 2, *RESIDENT, *FAISS)),
    "vdr": (search.measure, replace(sized(20_000, 50, 2, *RESIDENT, "stock", "lucene", *FAISS), **VDR)),
    "vdr-100k": (search.measure, replace(sized(100_000, 50, 2, *RESIDENT, *FAISS), **VDR)),
    "threads": (search.measure, replace(sized(20_000, 1000, 5, "ours", threads=2), **VDR)),
    "million": (search.measure, sized(1_000_000, 100, 2, *RESIDENT, "faiss-flat", threads=2)),
}


class Goal(NamedTuple):
    """A row of the table: its part, its text, its ratio (`{}` is the clock), and the target."""

    part: str
    text: str
    ratio: str
    aim: str = ""


def both(part: str, what: str, sides: str, ratio: str, aim: str = "", aim_1000: str | None = None) -> Iterator[Goal]:
    """The rows of k=10 and of k=1000; by default, both have the same target."""
    for k, aim_of_k in ((10, aim), (1000, aim if aim_1000 is None else aim_1000)):
        yield Goal(part, f"{what}, k={k}: {sides}", f"{ratio}, {{}}, k={k}", aim_of_k)


BUILT = "ours-parquet / ours-parquet"
RATE = ": documents per second of indexing alone"
GOALS = (
    Goal("index", "indexing 20k documents, whole process: stock / ours", "stock / ours: {} seconds", "10, wall 6"),
    Goal("index", "the same without start-up", "stock / ours: {} seconds of indexing alone"),
    Goal("index", "the same from parquet", "stock / ours-parquet: {} seconds of indexing alone"),
    Goal("index", "index size: stock / ours, Lucene's files", "stock / ours: Lucene's bytes", "1"),
    Goal("index", "index size: stock / ours, with resident postings", "stock / ours: index bytes", "0.5"),
    Goal("index", "peak memory: stock / ours", "stock / ours: peak memory"),
    Goal("building", "indexing alone, 100k: 2 threads / 1 thread, documents/s", f"{BUILT} (1 thread){RATE}"),
    Goal("building", "indexing alone, 100k: 2 threads / 1 core, documents/s", f"{BUILT} (1 core){RATE}", "1.7"),
    *both("search", "batch, 20k documents", "stock / ours", "stock / ours: batch of queries", "2", "5"),
    *both("search", "one query, 20k", "stock / ours", "stock / ours: single query"),
    *both("search", "one query, 20k", "ours / Lucene", "ours / lucene by score: single query", "at most 1.5"),
    *both("dense", "one query, 100k", "FAISS flat / ours", "faiss-flat / ours: single query", "4"),
    *both("dense", "one query, 100k", "FAISS HNSW / ours", "faiss-hnsw / ours: single query"),
    *both("dense", "one query, 100k", "Lucene's postings / ours", "ours-lucene / ours: single query"),
    *both("vdr", "VDR-like, 20k", "FAISS flat / ours", "faiss-flat / ours: single query", "1", "0.67"),
    *both("vdr", "VDR-like, 20k", "FAISS HNSW / ours", "faiss-hnsw / ours: single query"),
    *both("vdr", "VDR-like, 20k", "Lucene's postings / ours", "ours-lucene / ours: single query", "5"),
    *both("vdr", "VDR-like, 20k", "stock / ours", "stock / ours: single query"),
    *both("vdr-100k", "VDR-like, 100k", "FAISS flat / ours", "faiss-flat / ours: single query", "1", "0.67"),
    *both("vdr-100k", "VDR-like, 100k", "FAISS HNSW / ours", "faiss-hnsw / ours: single query"),
    *both("vdr-100k", "VDR-like, 100k", "Lucene's postings / ours", "ours-lucene / ours: single query", "5"),
    *both("threads", "batch, VDR-like, 20k", "1 thread / 2", "ours: batch of queries, 1 thread / 2 threads", "1.8"),
    *both("million", "one query, 1M", "FAISS flat / ours", "faiss-flat / ours: single query", "4"),
    *both("million", "one query, 1M", "Lucene's postings / ours", "ours-lucene / ours: single query", "3"),
    *both("million", "batch, 1M", "1 thread / 2", "ours: batch of queries, 1 thread / 2 threads", "1.8"),
)


def measure(options: Options) -> Report:
    """Runs every part; one row per goal whose ratio was measured, and the parts' own reports."""
    reports = {
        name: suite(replace(part, workdir=options.workdir, seed=options.seed)) for name, (suite, part) in PARTS.items()
    }
    notes = []
    for name, report in reports.items():
        values = {**report.settings, **report.figures}
        settings = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items())
        notes += [f"{name}: {note}" for note in (settings, *report.notes)]
    return Report(rows=tuple(rows(reports)), notes=tuple(notes), parts=reports)


def rows(reports: Mapping[str, Report]) -> Iterator[dict[str, Any]]:
    """One row per goal: the ratio by CPU and by wall time, or by what its name says."""
    for goal in GOALS:
        ratios = {ratio.what: ratio for ratio in reports[goal.part].ratios}
        values = {}
        for clock in CLOCKS:
            if (ratio := ratios.get(goal.ratio.format(clock))) is not None:
                spread = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.rounds > 1 else ""
                values[f"by {clock} time" if "{}" in goal.ratio else "ratio"] = f"{ratio.median:.2f}{spread}"
        if values:
            yield {"figure": goal.text, "aim": goal.aim, **values}
