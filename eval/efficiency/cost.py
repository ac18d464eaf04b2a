"""Cost curve: what indexing and searching take as the collection grows, FAISS flat beside it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval.efficiency.collection import one_shape, prepare, working_folder
from eval.efficiency.index import ENVIRON, index_bytes
from eval.efficiency.options import Options
from eval.efficiency.processes import Worker, run_once
from eval.efficiency.report import Ratio, Report, mib, ratio, spread
from eval.efficiency.search import HITS, Rounds, chosen, start
from lexvl_anserini.errors import UsageError

SIZES = (10_000, 100_000, 1_000_000)
TERMS = 64
QUERY_COUNT = 50
ROUNDS = 2
# Both are built here; others of the suite search may be asked for beside them.
SYSTEMS = ("ours", "faiss-flat")


def measure(options: Options) -> Report:
    """One row per size and system: building time, bytes, peak memory, milliseconds per query.

    Raises:
        UsageError: the systems leave out ours, whose curve it is.
    """
    if options.system is not None and "ours" not in options.system:
        raise UsageError("the suite cost draws our curve; add --system ours")
    options = replace(options, query_count=options.query_count or QUERY_COUNT, terms=options.terms or TERMS)
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    for documents in options.documents or SIZES:
        with working_folder(options) as folder:
            found, compared = one_size(options, folder, documents)
        rows.extend(found)
        ratios.extend(compared)
    settings = {
        "vectors": one_shape(options),
        "terms_per_document": options.terms,
        "queries": options.query_count,
        "rounds": ROUNDS,
    }
    return Report(rows=tuple(rows), ratios=tuple(ratios), settings=settings)


def one_size(options: Options, folder: Path, documents: int) -> tuple[list[dict[str, Any]], list[Ratio]]:
    """Makes a collection, indexes it, and searches it and what is compared with it in turns."""
    collection = prepare(options, folder, documents)
    index = folder / f"index-{collection.shards.name}"
    shutil.rmtree(index, ignore_errors=True)
    built = run_once("eval.efficiency.index:ours", ENVIRON, shards=str(collection.shards), index=str(index), threads=1)
    hits = options.hits or HITS
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(start(name, index, collection, options))
            for name in chosen(options.system or SYSTEMS)
        }
        rounds = Rounds(workers, hits, 1)
        # The first round warms caches and Java's compiler, and is forgotten.
        for _ in range(1 + ROUNDS):
            rounds.run()
        building = {
            "ours": {
                "build_s": round(built.result["wall_s"], 2),
                "build_cpu_s": round(built.result["cpu_s"], 2),
                "build_peak_mib": mib(built.peak_bytes),
                "bytes": index_bytes(index),
            }
        }
        rows = [
            {
                "documents": documents,
                "system": name,
                **(building.get(name) or told(worker)),
                **latencies(rounds, name, hits),
            }
            for name, worker in workers.items()
        ]
        return rows, list(size_ratios(rounds, documents, hits))


def told(worker: Worker) -> dict[str, Any]:
    """What a worker told of the index it built for itself; nothing for one that reads ours."""
    about: Mapping[str, Any] = worker.about
    found = {"build_s": round(about["build_s"], 2)} if "build_s" in about else {}
    return {**found, "bytes": about["bytes"]} if "bytes" in about else found


def latencies(rounds: Rounds, name: str, hits: Sequence[int]) -> dict[str, float]:
    """Median milliseconds of single queries, wall and CPU, by number of hits, and the peak of the process."""
    found = {}
    for k in hits:
        for what, field in (("ms", "wall_s"), ("cpu_ms", "cpu_s")):
            found[f"{what}_k{k}"] = round(spread(rounds.single(name, "latency", k, field)).median * 1000, 3)
    return {**found, "search_peak_mib": mib(rounds.workers[name].peak_bytes)}


def size_ratios(rounds: Rounds, documents: int, hits: Sequence[int]) -> Iterator[Ratio]:
    """The other systems over ours at one size, single queries."""
    for k in hits:
        for what, field in (("wall", "wall_s"), ("CPU", "cpu_s")):
            mine = rounds.single("ours", "latency", k, field)
            for name in rounds.workers:
                if name != "ours":
                    others = rounds.single(name, "latency", k, field)
                    yield ratio(f"{documents:,} documents: {name} / ours, {what}, k={k}", others, mine)
