"""The suite index: our indexing against stock Pyserini's, each run in its own process, in turns.

With several threads, ours runs also with one thread, and with one thread on one core.

What an index costs before its first query: opening it, its first answer, and the bytes of its files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.engines import jvm
from lexvl_anserini.ground.errors import LexvlError, UnknownName
from lexvl_anserini.ground.manifest import read_manifest

from .collection import prepare, read_queries, working_folder
from .processes import Outcome, Stopwatch, run_once
from .processes import resident_bytes as resident_memory
from .suite import Options, Ratio, Report, mib, ratio, spread
from .systems import INDEXERS

DOCUMENTS = 20_000
REPEATS = 3


class Sizes(NamedTuple):
    """Bytes of an index: Lucene's own files, and the resident postings beside them."""

    lucene: int
    resident: int


class Arrangement(NamedTuple):
    """A system, its threads, and its number of cores; None is all."""

    system: str
    threads: int
    cores: int | None = None


def arrangements(names: Sequence[str], threads: int) -> dict[str, Arrangement]:
    """What to run, by name of the row."""
    if threads == 1:
        return {name: Arrangement(name, 1) for name in names}
    arranged = {name: Arrangement(name, threads) for name in names}
    for name in [name for name in names if name != "stock"]:
        arranged |= {f"{name} (1 thread)": Arrangement(name, 1), f"{name} (1 core)": Arrangement(name, 1, 1)}
    return arranged


def measure(options: Options) -> Report:
    """CPU and wall seconds, peak memory and size, of processes that read the same documents.

    Raises:
        LexvlError: stock's index and ours hold different documents, postings or impacts.
    """
    repeats, threads = options.repeats or REPEATS, options.threads or 1
    documents = options.one_size(DOCUMENTS)
    with working_folder(options) as folder:
        shards = shards_by_format(options, folder, documents)
        runnable = arrangements(chosen_systems(options, shards), threads)
        names = list(runnable)
        runs: dict[str, list[Outcome]] = {name: [] for name in names}
        sizes: dict[str, Sizes] = {}
        counts: dict[str, Any] = {}
        for _ in range(repeats):
            for name in names:
                system = INDEXERS[runnable[name].system]
                index = folder / f"index-{name}"
                shutil.rmtree(index, ignore_errors=True)
                arguments: dict[str, Any] = {"shards": str(shards[system.shard_format]), "index": str(index)}
                arguments |= {"threads": runnable[name].threads, "cores": runnable[name].cores}
                runs[name].append(run_once(system.function, system.environ, **arguments))
                sizes[name] = Sizes(index_bytes(index), resident_bytes(index))
                if name not in counts:
                    counts[name] = run_once(".systems:index_counts", index=str(index)).result
                shutil.rmtree(index)
        settings = {**describe(options, next(iter(shards.values()))), "threads": threads, "repeats": repeats}
    expect_equal(counts)
    counted = settings["documents"]
    rows = tuple(row(name, runs[name], sizes[name], counted) for name in names)
    whole = {name: runs[name] for name in names if runnable[name].threads == threads}
    return Report(rows=rows, ratios=(*compare(whole, sizes), *speed_ups(runs, runnable)), settings=settings)


def shards_by_format(options: Options, folder: Path, documents: int) -> dict[str, Path]:
    """The shards in each format: a user's own, or synthetic ones in both formats."""
    if options.shards is not None:
        name = read_manifest(options.shards).layout["shard_format"]
        return {name: prepare(options, folder, documents).shards}
    return {name: prepare(options, folder, documents, name).shards for name in ("jsonl", "parquet")}


def chosen_systems(options: Options, shards: Mapping[str, Path]) -> list[str]:
    """The requested systems, of those that can read the shards.

    Raises:
        UnknownName: no such system, or none that reads these shards.
    """
    possible = [name for name, system in INDEXERS.items() if system.shard_format in shards]
    for name in options.system or ():
        if name not in possible:
            raise UnknownName("system of these shards", name, possible)
    return [name for name in possible if options.system is None or name in options.system]


def describe(options: Options, shards: Path) -> dict[str, Any]:
    """The collection, for the settings of a report."""
    counts = read_manifest(shards).counts
    shape = str(options.shards) if options.shards else options.one_shape()
    return {
        "vectors": shape,
        "documents": counts["documents"],
        "postings": counts["postings"],
        "terms_per_document": round(counts["postings"] / counts["documents"], 1),
    }


def index_bytes(index: Path) -> int:
    """Size of Lucene's own files."""
    from lexvl_anserini.engines.index_folder import folder_bytes

    return folder_bytes(index)


def resident_bytes(index: Path) -> int:
    """Size of the resident postings beside Lucene's files; 0 for an index that has none."""
    from lexvl_anserini.engines.index_folder import RESIDENT

    file = index / RESIDENT
    return file.stat().st_size if file.is_file() else 0


def expect_equal(found: Mapping[str, Any]) -> None:
    """Raises LexvlError if the indexes hold different counts: their costs are not comparable then."""
    first = next(iter(found))
    for name, counts in found.items():
        if counts != found[first]:
            raise LexvlError(
                f"the index of {name} holds {counts}, that of {first} {found[first]}; their costs are not comparable"
            )


def row(name: str, runs: list[Outcome], size: Sizes, documents: int) -> dict[str, Any]:
    """One line of the table: medians over the rounds."""
    return {
        "system": name,
        "cpu_s": round(spread([run.cpu_s for run in runs]).median, 2),
        "wall_s": round(spread([run.wall_s for run in runs]).median, 2),
        "alone_cpu_s": round(spread([run.result["cpu_s"] for run in runs]).median, 2),
        "alone_wall_s": round(spread([run.result["wall_s"] for run in runs]).median, 2),
        "documents_per_s": round(documents / spread([run.result["wall_s"] for run in runs]).median),
        "peak_mib": mib(spread([run.peak_bytes for run in runs]).median),
        "lucene_bytes": size.lucene,
        "resident_bytes": size.resident,
    }


def compare(runs: Mapping[str, list[Outcome]], sizes: Mapping[str, Sizes]) -> tuple[Ratio, ...]:
    """Stock over ours, if both run: whole processes, then indexing alone, without start-up and imports."""
    if "stock" not in runs:
        return ()
    whole: Mapping[str, Callable[[Outcome], float]] = {
        "CPU seconds": lambda run: run.cpu_s,
        "wall seconds": lambda run: run.wall_s,
        "CPU seconds of indexing alone": lambda run: run.result["cpu_s"],
        "wall seconds of indexing alone": lambda run: run.result["wall_s"],
        "peak memory": lambda run: run.peak_bytes,
    }
    ratios = []
    for name in [name for name in runs if name != "stock"]:
        for what, value in whole.items():
            theirs, mine = ([value(run) for run in runs[side]] for side in ("stock", name))
            ratios.append(ratio(f"stock / {name}: {what}", theirs, mine))
        stock = [sizes["stock"].lucene]
        ratios.append(ratio(f"stock / {name}: Lucene's bytes", stock, [sizes[name].lucene]))
        ratios.append(ratio(f"stock / {name}: index bytes", stock, [sum(sizes[name])]))
    return tuple(ratios)


def speed_ups(runs: Mapping[str, list[Outcome]], runnable: Mapping[str, Arrangement]) -> Iterator[Ratio]:
    """Documents per second of indexing alone with all threads, over those of one thread and of one core."""
    for name, arrangement in runnable.items():
        if name != arrangement.system:
            one, all_threads = ([run.result["wall_s"] for run in runs[key]] for key in (name, arrangement.system))
            yield ratio(f"{arrangement.system} / {name}: documents per second of indexing alone", one, all_threads)


REPEATS = 3

# Hits of the first query.
HITS = 10


def measure_opening(index: Path, queries: Path) -> dict[str, Any]:
    """Median wall milliseconds of opening and of the first query, by processes that have started Java; and sizes.

    `open_ms` includes the loading of our modules and Java classes, which the first index of a process pays;
    `open_again_ms` does not. The files were just written or read, so they are in the memory of the system.
    """
    from lexvl_anserini.engines.index_folder import read_report

    openings = [run_once(".index:open_ours", index=str(index), queries=str(queries)).result for _ in range(REPEATS)]
    postings = read_report(index).postings
    return {
        "open_ms": round(spread([one["open_s"] for one in openings]).median * 1000, 1),
        "open_again_ms": round(spread([one["again_s"] for one in openings]).median * 1000, 1),
        "first_query_ms": round(spread([one["first_s"] for one in openings]).median * 1000, 1),
        "opened_mib": mib(spread([one["resident_bytes"] for one in openings]).median),
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
