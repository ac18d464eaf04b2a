"""The suite overview: all comparisons of the Lucene engine, target and measured ratios, and the cost curve.

python -m eval.efficiency --suite overview --format markdown --output overview.json
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from . import cost, index, search
from .suite import Options, Ratio, Report

# The clocks in the names of ratios.
CLOCKS = ("CPU", "wall")


class SizedSuite(NamedTuple):
    """A suite at one size; `takes_queries` is True if it can use the queries of a user."""

    measure: Callable[[Options], Report]
    options: Options
    takes_queries: bool = False


PARTS: Mapping[str, SizedSuite] = MappingProxyType(
    {
        "index": SizedSuite(index.measure, Options(documents=[20_000], repeats=3)),
        "search": SizedSuite(
            search.measure,
            Options(documents=[20_000], query_count=1000, repeats=2, system=["ours", "stock", "lucene"]),
            takes_queries=True,
        ),
        "dense": SizedSuite(
            search.measure,
            Options(documents=[100_000], query_count=100, repeats=2, system=["ours", "faiss-flat", "faiss-hnsw"]),
            takes_queries=True,
        ),
        "vdr": SizedSuite(
            search.measure,
            Options(
                documents=[20_000],
                shape=["vdr"],
                query_count=50,
                query_terms=768,
                repeats=2,
                system=["ours", "stock", "lucene", "faiss-flat"],
            ),
        ),
        "cost": SizedSuite(cost.measure, Options()),
    }
)


class Goal(NamedTuple):
    """A row of the table: its part, its text, its ratio (`{}` is the clock), and the target."""

    part: str
    text: str
    ratio: str
    aim: str = ""


GOALS = (
    Goal("index", "indexing 20k documents, whole process: stock / ours", "stock / ours: {} seconds", "10, wall 6"),
    Goal("index", "the same without start-up", "stock / ours: {} seconds of indexing alone"),
    Goal("index", "the same from parquet", "stock / ours-parquet: {} seconds of indexing alone"),
    Goal("index", "index size: stock / ours", "stock / ours: index bytes", "1"),
    Goal("index", "peak memory: stock / ours", "stock / ours: peak memory"),
    Goal("search", "batch, 20k documents, k=10: stock / ours", "stock / ours: batch of queries, {}, k=10", "2"),
    Goal("search", "batch, 20k documents, k=1000: stock / ours", "stock / ours: batch of queries, {}, k=1000", "5"),
    Goal("search", "one query, 20k, k=10: stock / ours", "stock / ours: single query, {}, k=10"),
    Goal("search", "one query, 20k, k=1000: stock / ours", "stock / ours: single query, {}, k=1000"),
    Goal(
        "search", "one query, 20k, k=10: ours / Lucene", "ours / lucene by score: single query, {}, k=10", "at most 1.5"
    ),
    Goal(
        "search",
        "one query, 20k, k=1000: ours / Lucene",
        "ours / lucene by score: single query, {}, k=1000",
        "at most 1.5",
    ),
    Goal("dense", "one query, 100k, k=10: FAISS flat / ours", "faiss-flat / ours: single query, {}, k=10", "4"),
    Goal("dense", "one query, 100k, k=1000: FAISS flat / ours", "faiss-flat / ours: single query, {}, k=1000", "4"),
    Goal("dense", "one query, 100k, k=10: FAISS HNSW / ours", "faiss-hnsw / ours: single query, {}, k=10"),
    Goal("dense", "one query, 100k, k=1000: FAISS HNSW / ours", "faiss-hnsw / ours: single query, {}, k=1000"),
    Goal("vdr", "VDR-like, 20k, k=10: stock / ours", "stock / ours: single query, {}, k=10"),
    Goal("vdr", "VDR-like, 20k, k=10: ours / Lucene", "ours / lucene by score: single query, {}, k=10"),
    Goal("vdr", "VDR-like, 20k, k=10: FAISS flat / ours", "faiss-flat / ours: single query, {}, k=10"),
    Goal("cost", "one query, 1M, k=10: FAISS flat / ours", "1,000,000 documents: faiss-flat / ours, {}, k=10", "4"),
    Goal("cost", "one query, 1M, k=1000: FAISS flat / ours", "1,000,000 documents: faiss-flat / ours, {}, k=1000", "4"),
)


def measure(options: Options) -> Report:
    """Runs every part; one row per goal whose ratio was measured, and the parts' own reports.

    Raises:
        LexvlError: the systems of a part return different results.
    """
    reports = {name: part.measure(chosen(part, options)) for name, part in PARTS.items()}
    notes = [f"{name}: {note}" for name, report in reports.items() for note in (settings_note(report), *report.notes)]
    return Report(rows=tuple(rows(reports)), notes=(*notes, *memory_notes(reports["cost"])), parts=reports)


def chosen(part: SizedSuite, options: Options) -> Options:
    """A part's options with those of the user's that all parts share."""
    queries = options.queries if part.takes_queries else None
    return replace(part.options, workdir=options.workdir, seed=options.seed, queries=queries)


def rows(reports: Mapping[str, Report]) -> Iterator[dict[str, Any]]:
    """One row per goal: the ratio by CPU and by wall time, or of a size."""
    for goal in GOALS:
        found = {ratio.what: ratio for ratio in reports[goal.part].ratios}
        row: dict[str, Any] = {"figure": goal.text, "aim": goal.aim}
        names = [goal.ratio.format(clock) for clock in CLOCKS]
        if not set(names) & set(found):
            continue
        timed = "{}" in goal.ratio
        for clock, name in zip(CLOCKS, names, strict=True):
            row[f"by {clock} time" if timed else "by size"] = as_text(found[name])
        yield row


def as_text(ratio: Ratio) -> str:
    """The median, and the range over rounds if there are several."""
    middle, low, high, rounds = ratio.spread
    return f"{middle:.2f} ({low:.2f} to {high:.2f})" if rounds > 1 else f"{middle:.2f}"


def settings_note(report: Report) -> str:
    """The settings of a part, in one line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.settings.items())


def memory_notes(curve: Report) -> Iterator[str]:
    """The peak memory of indexing by number of documents."""
    peaks = {row["documents"]: row["build_peak_mib"] for row in curve.rows if "build_peak_mib" in row}
    if len(peaks) > 1:
        listed = ", ".join(f"{documents:,} documents {peak:.0f} MiB" for documents, peak in peaks.items())
        yield f"peak memory of indexing: {listed}"
