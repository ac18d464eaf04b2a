"""The suite search: ours, stock Pyserini, Lucene alone, and FAISS, in turns, each in a process that stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from lexvl_anserini.ground.errors import LexvlError

from .collection import QUERY_COUNT, Collection, describe, prepare, read_queries, working_folder
from .index import measure_opening
from .processes import Worker, run_once, take_turns
from .suite import Options, Ratio, Report, latency, median, mib, ratio
from .systems import INDEXERS, SEARCHERS, chosen_systems, share_found

DOCUMENTS = 100_000
REPEATS = 3
HITS = (10, 1000)

# Exact engines over the same vectors: they find the same documents, with the same scores, in the same order.
EXACT = ("ours", "ours-lucene", "stock")

# Ratios of single queries: other systems over ours, and ours over Lucene alone, its lower bound.
PAIRS = (
    *((f"{name} / ours", name, "ours") for name in ("ours-lucene", "stock", "faiss-flat", "faiss-hnsw")),
    ("ours / lucene by score", "ours", "lucene"),
)

# Batches with one thread, where the others have several.
ALONE = "batch, 1 thread"

CLOCKS = (("wall", "wall_s"), ("CPU", "cpu_s"))

# The answers of a system to a task with a number of hits, one per round.
Answers = Mapping[tuple[str, str, int], list[Any]]


def measure(options: Options) -> Report:
    """Latency of single queries and throughput of a batch, by system and number of hits.

    Two exact systems that rank differently are an error: their costs are not comparable then.
    """
    hits, threads, rounds = options.hits or HITS, options.threads or 1, options.repeats or REPEATS
    with working_folder(options) as folder, ExitStack() as stack:
        collection = prepare(options, folder, options.single("documents", DOCUMENTS))
        index = folder / f"index-{collection.shards.name}"
        places = {"shards": str(collection.shards), "index": str(index)}
        run_once(INDEXERS["ours"].function, INDEXERS["ours"].environ, **places, threads=1)
        names = chosen_systems(options.system, SEARCHERS)
        workers = {name: stack.enter_context(start(name, index, collection, options)) for name in names}
        answers = take_turns(cells(workers, hits, threads), rounds, warm_up=1)
        settings = {
            **describe(options, collection.shards),
            "queries": len(read_queries(str(collection.queries))),
            "threads_of_batch": threads,
            "rounds": rounds,
        }
        if "lucene" in workers:
            settings["expected_overlapping_postings"] = round(workers["lucene"].facts["overlap"], 3)
        expect_agreement(answers, hits)
        notes = tuple(notes_of(workers, hits))
        figures = measure_opening(index, collection.queries) if "ours" in names else {}
        peaks = {name: mib(worker.peak_bytes) for name, worker in workers.items()}
    rows = rows_of(answers, peaks, settings["queries"])
    return Report(figures, rows, ratios_of(answers, hits, threads), settings, notes)


def start(name: str, index: Path, collection: Collection, options: Options) -> Worker:
    """The worker of a system."""
    system = SEARCHERS[name]
    inputs: dict[str, Any] = {"index": str(index), "queries": str(collection.queries)}
    if not system.reads_index:
        count, seed = options.query_count or QUERY_COUNT, options.seed or 0
        inputs = {"documents": collection.documents, "query_count": count, "seed": seed}
    return Worker(system.function, **inputs, **system.arguments)


def cells(workers: Mapping[str, Worker], hits: Sequence[int], threads: int) -> dict[tuple[str, str, int], Any]:
    """What a round asks of all systems, in turns: a task with a number of hits."""
    requests: dict[tuple[str, str, int], Any] = {}
    for k in hits:
        for task in ("latency", "batch"):
            for name, worker in workers.items():
                if task in SEARCHERS[name].tasks:
                    requests[name, task, k] = partial(worker.request, task=task, hits=k, threads=threads)
                    if task == "batch" and threads > 1:
                        requests[name, ALONE, k] = partial(worker.request, task=task, hits=k, threads=1)
    return requests


def rows_of(answers: Answers, peaks: Mapping[str, float], queries: int) -> tuple[dict[str, Any], ...]:
    """One line per system, task and number of hits; single queries over all rounds, batches by median."""
    rows = []
    for (name, task, k), rounds in sorted(answers.items(), key=lambda row: (row[0][2], "batch" in row[0][1])):
        row: dict[str, Any] = {"system": name, "task": task, "hits": k}
        if task == "latency":
            row |= latency([seconds for answer in rounds for seconds in answer["wall_s"]])
            cpu_s = median(seconds for answer in rounds for seconds in answer["cpu_s"])
            row["cpu_ms"] = round(cpu_s * 1000, 3)
        else:
            wall_s, cpu_s = (median(answer[clock] for answer in rounds) for clock in ("wall_s", "cpu_s"))
            row |= {"mean_ms": round(wall_s * 1000 / queries, 3), "queries_per_s": round(queries / wall_s, 1)}
            row["cpu_ms"] = round(cpu_s * 1000 / queries, 3)
        rows.append({**row, "peak_mib": peaks[name]})
    return tuple(rows)


def ratios_of(answers: Answers, hits: Sequence[int], threads: int) -> tuple[Ratio, ...]:
    """Every other system over ours: batches by wall and CPU time, single queries by their median."""
    return tuple(row for k in hits for row in (*batch_ratios(answers, k, threads), *single_ratios(answers, k)))


def batch_ratios(answers: Answers, k: int, threads: int) -> Iterator[Ratio]:
    """Stock over ours, and our batch with one thread over the same with all threads."""
    stock, ours, alone = (answers.get(key) for key in (("stock", "batch", k), ("ours", "batch", k), ("ours", ALONE, k)))

    def seconds(side: Sequence[Mapping[str, float]], *clocks: str) -> list[float]:
        return [sum(answer[clock] for clock in clocks) for answer in side]

    if stock and ours:
        for what, clock in CLOCKS:
            yield ratio(f"stock / ours: batch of queries, {what}, k={k}", seconds(stock, clock), seconds(ours, clock))
        what = f"stock / ours: the same with ids and scores read, k={k}"
        yield ratio(what, seconds(stock, "wall_s", "read_s"), seconds(ours, "wall_s"))
    if alone and ours:
        what = f"ours: batch of queries, 1 thread / {threads} threads, wall, k={k}"
        yield ratio(what, seconds(alone, "wall_s"), seconds(ours, "wall_s"))


def single_ratios(answers: Answers, k: int) -> Iterator[Ratio]:
    """The ratios of single queries between all systems that answer them."""
    for what, clock in CLOCKS:
        # Per round, the seconds of a system's median query: interruptions of a few queries do not count.
        seconds = {
            name: [median(answer[clock]) for answer in answers[name, "latency", k]]
            for name in SEARCHERS
            if (name, "latency", k) in answers
        }
        for sides, name, other in PAIRS:
            if {name, other} <= seconds.keys():
                yield ratio(f"{sides}: single query, {what}, k={k}", seconds[name], seconds[other])


def expect_agreement(answers: Answers, hits: Sequence[int]) -> None:
    """Refuses answers of exact systems that find different documents, scores or orders."""
    for k in hits:
        digests = {name: answer["digest"] for name in EXACT for answer in answers.get((name, "batch", k), ())}
        if len(set(digests.values())) > 1:
            raise LexvlError(f"{' and '.join(digests)} rank differently at k={k}; their times are not comparable")


def notes_of(workers: Mapping[str, Worker], hits: Sequence[int]) -> Iterator[str]:
    """The form of the postings that answered ours, and the share of exact hits that the approximate system finds."""
    for name in ("ours", "ours-lucene"):
        if name in workers:
            for form, count in workers[name].request(task="served", hits=0).items():
                yield f"{name}: {form} postings answered {count:,} queries"
    for k in hits if {"faiss-flat", "faiss-hnsw"} <= workers.keys() else ():
        exact, approximate = (workers[name].request(task="hits", hits=k) for name in ("faiss-flat", "faiss-hnsw"))
        share, candidates = share_found(exact["hits"], approximate["hits"]), approximate["candidates"]
        yield f"faiss-hnsw is approximate: it finds {share:.4f} of the first {k} (efSearch {candidates})"
