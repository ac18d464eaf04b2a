"""The suite index: our indexing against stock Pyserini's, and what an index costs before its first query.

With several threads, ours runs also with one thread, and with one thread on one core.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.engine import open_index
from lexvl_anserini.engines.index_folder import index_manifest, measure_folder, measure_resident, read_report
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_plugins.bench.collection import describe, open_workdir, prepare, read_queries
from lexvl_plugins.bench.command import Options, Ratio, Report, mib, ratio
from lexvl_plugins.bench.processes import Outcome, Stopwatch, read_peak, run_once, take_turns
from lexvl_plugins.bench.systems import INDEXERS, choose_systems

DOCUMENTS = 20_000
# Hits of the first query, and how many processes open the index.
FIRST_HITS, OPENINGS = 10, 3


class Arrangement(NamedTuple):
    """A system, its threads, and its number of cores; None is all."""

    system: str
    threads: int
    cores: int | None = None


class Built(NamedTuple):
    """An index that was built and removed: its cost, what it held, the bytes of Lucene's files and resident ones."""

    outcome: Outcome
    counts: Any
    lucene: int
    resident: int


# The costs of an index by the names of their ratios; "indexing alone" is without start-up and imports.
COSTS: Mapping[str, Callable[[Built], float]] = {
    "CPU seconds": lambda built: built.outcome.cpu_s,
    "wall seconds": lambda built: built.outcome.wall_s,
    "CPU seconds of indexing alone": lambda built: built.outcome.result["cpu_s"],
    "wall seconds of indexing alone": lambda built: built.outcome.result["wall_s"],
    "peak memory": lambda built: built.outcome.peak_bytes,
}


def arrangements(names: Sequence[str], threads: int) -> dict[str, Arrangement]:
    """What to run, by name of the row."""
    arranged = {name: Arrangement(name, threads) for name in names}
    for name in [name for name in names if threads > 1 and name != "stock"]:
        arranged |= {f"{name} (1 thread)": Arrangement(name, 1), f"{name} (1 core)": Arrangement(name, 1, 1)}
    return arranged


def measure(options: Options) -> Report:
    """CPU and wall seconds, peak memory and size, of processes that read the same documents."""
    repeats, threads = options.repeats or 3, options.threads or 1
    with open_workdir(options) as folder:
        shards = prepare_formats(options, folder)
        readable = {name: system for name, system in INDEXERS.items() if system.shard_format in shards}
        arranged = arrangements(choose_systems(options.system, readable), threads)
        builds = {
            name: partial(build, row, shards[INDEXERS[row.system].shard_format], folder / f"index-{name}")
            for name, row in arranged.items()
        }
        rounds: dict[str, list[Built]] = take_turns(builds, repeats)
        settings = {**describe(options, next(iter(shards.values()))), "threads": threads, "repeats": repeats}
    expect_equal({name: built[0].counts for name, built in rounds.items()})
    rows = tuple(make_row(name, built, settings["documents"]) for name, built in rounds.items())
    whole = {name: built for name, built in rounds.items() if arranged[name].threads == threads}
    return Report(rows=rows, ratios=(*compare(whole), *compare_threads(rounds, arranged)), settings=settings)


def build(arrangement: Arrangement, shards: Path, index: Path) -> Built:
    """Builds an index in a process of its own, counts what it holds, and removes it."""
    name, threads, cores = arrangement
    system, places = INDEXERS[name], {"shards": str(shards), "index": str(index)}
    shutil.rmtree(index, ignore_errors=True)
    outcome = run_once(system.function, system.environ, **places, threads=threads, cores=cores)
    counts = run_once(".systems:count_index", index=str(index)).result
    built = Built(outcome, counts, measure_folder(index), measure_resident(index))
    shutil.rmtree(index)
    return built


def prepare_formats(options: Options, folder: Path) -> dict[str, Path]:
    """The shards in each format: a user's own in theirs, or synthetic ones in both formats."""
    documents = options.single("documents", DOCUMENTS)
    if options.shards is not None:
        shards = prepare(options, folder, documents).shards
        return {read_manifest(shards).layout["shard_format"]: shards}
    return {name: prepare(options, folder, documents, name).shards for name in ("jsonl", "parquet")}


def expect_equal(counts: Mapping[str, Any]) -> None:
    """Refuses indexes that hold different counts."""
    if any(held != next(iter(counts.values())) for held in counts.values()):
        raise LexvlError(f"the indexes hold {dict(counts)}; their costs are not comparable")


def make_row(name: str, rounds: Sequence[Built], documents: int) -> dict[str, Any]:
    """One line of the table: medians over the rounds."""
    *seconds, peak = (median(map(cost, rounds)) for cost in COSTS.values())
    clocks = ("cpu_s", "wall_s", "alone_cpu_s", "alone_wall_s")
    return {
        "system": name,
        **{clock: round(value, 2) for clock, value in zip(clocks, seconds, strict=True)},
        "documents_per_s": round(documents / seconds[-1]),
        "peak_mib": mib(peak),
        "lucene_bytes": rounds[-1].lucene,
        "resident_bytes": rounds[-1].resident,
    }


def compare(rounds: Mapping[str, Sequence[Built]]) -> Iterator[Ratio]:
    """Stock over ours, if both run."""
    for name in [name for name in rounds if name != "stock"] if "stock" in rounds else ():
        for what, cost in COSTS.items():
            yield ratio(f"stock / {name}: {what}", *(list(map(cost, rounds[side])) for side in ("stock", name)))
        stock, ours = rounds["stock"][-1], rounds[name][-1]
        yield ratio(f"stock / {name}: Lucene's bytes", [stock.lucene], [ours.lucene])
        yield ratio(f"stock / {name}: index bytes", [stock.lucene], [ours.lucene + ours.resident])


def compare_threads(rounds: Mapping[str, Sequence[Built]], arranged: Mapping[str, Arrangement]) -> Iterator[Ratio]:
    """Documents per second of indexing alone with all threads, over those of one thread and of one core."""
    alone = COSTS["wall seconds of indexing alone"]
    for name, (system, *_) in arranged.items():
        if name != system:
            what = f"{system} / {name}: documents per second of indexing alone"
            yield ratio(what, *(list(map(alone, rounds[key])) for key in (name, system)))


def measure_opening(index: Path, queries: Path) -> dict[str, Any]:
    """Median wall milliseconds of opening and of the first query, by processes that have started Java; and sizes.

    `open_ms` includes the loading of our modules and Java classes; `open_again_ms` does not. The files are in memory.
    """
    openings = [run_once(".index:open_ours", index=str(index), queries=str(queries)).result for _ in range(OPENINGS)]
    middle = {name: median(opening[name] for opening in openings) for name in openings[0]}
    names = {"open_ms": "open_s", "open_again_ms": "again_s", "first_query_ms": "first_s"}
    sizes = {"lucene": measure_folder(index), "resident": measure_resident(index)}
    postings = read_report(index).postings
    return {
        **{name: round(middle[seconds] * 1000, 1) for name, seconds in names.items()},
        "opened_mib": mib(middle["resident_bytes"]),
        **{f"{name}_bytes_per_posting": round(size / postings, 2) for name, size in sizes.items()},
    }


def open_ours(index: str, queries: str) -> dict[str, float]:
    """What the child does: opens an index as `search` does, searches it for one query, and opens it again."""
    jvm.start()
    [query, *_] = read_queries(queries)
    with Stopwatch() as opening:
        engine = open_index(Path(index), index_manifest(Path(index)))
    with Stopwatch() as first:
        list(engine.search([query], FIRST_HITS))
    memory = read_peak()
    engine.close()
    with Stopwatch() as again:
        open_index(Path(index), index_manifest(Path(index))).close()
    return {"open_s": opening.wall_s, "again_s": again.wall_s, "first_s": first.wall_s, "resident_bytes": memory}
