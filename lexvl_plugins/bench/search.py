"""The suite search: ours, stock Pyserini, Lucene alone, FAISS and others, in turns, each in a process that stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.files import write_json
from lexvl_plugins.bench.collection import QUERY_COUNT, Collection, describe, open_workdir, prepare, read_queries
from lexvl_plugins.bench.command import Options, Ratio, Report, latency, mib, ratio
from lexvl_plugins.bench.index import measure_opening
from lexvl_plugins.bench.processes import Worker, run_once, take_turns
from lexvl_plugins.bench.systems import INDEXERS, SEARCHERS, WHERE, find_searchers, measure_share

DOCUMENTS = 100_000
REPEATS, HITS = 3, (10, 1000)
# Exact engines over the same vectors: they find the same documents, with the same scores, in the same order.
EXACT = ("ours", "ours-lucene", "stock")
# Ratios of single queries: other systems over ours, and ours over Lucene alone, its lower bound.
APPROXIMATE = ("ours", "sindi-pruned", "seismic")
OTHERS = ("ours-lucene", "ours-approximate", "stock", "sindi", "sindi-pruned", "seismic", "faiss-flat", "faiss-hnsw")
SINGLE = [(name, "ours") for name in OTHERS] + [(name, "ours-approximate") for name in APPROXIMATE]
PAIRS = (
    *((f"{side} / {other}: single query", (side, "latency"), (other, "latency")) for side, other in SINGLE),
    ("ours / lucene by score: single query", ("ours", "latency"), ("lucene", "latency")),
    *((f"ours-where / ours: {task}", ("ours-where", task), ("ours", "latency")) for task in WHERE),
    *((f"ours-lucene-where / ours-where: {task}", ("ours-lucene-where", task), ("ours-where", task)) for task in WHERE),
)
# Batches with one thread, where the others have several.
ALONE = "batch, 1 thread"
CLOCKS = (("wall", "wall_s"), ("CPU", "cpu_s"))
# The answers of a system to a task with a number of hits, one per round.
Answers = Mapping[tuple[str, str, int], list[Any]]


def measure(options: Options) -> Report:
    """Latency of single queries and throughput of a batch, by system and number of hits."""
    hits, threads, rounds = options.hits or HITS, options.threads or 1, options.repeats or REPEATS
    with open_workdir(options) as folder, ExitStack() as stack:
        collection = prepare(options, folder, options.single("documents", DOCUMENTS))
        index = folder / f"index-{collection.shards.name}"
        places = {"shards": str(collection.shards), "index": str(index)}
        names = find_searchers(options.system)
        run_once(INDEXERS["ours"].function, INDEXERS["ours"].environ, **places, threads=1)
        inputs = gather_inputs(names, index, collection, options)
        workers = {}
        for name in names:
            system = SEARCHERS[name]
            read = {key: inputs[key] for key in system.inputs}
            workers[name] = stack.enter_context(Worker(system.function, **read, **system.arguments))
        answers = take_turns(cells(workers, hits, threads), rounds, warm_up=1)
        count = len(read_queries(str(collection.queries)))
        settings = {**describe(options, collection.shards), "queries": count, "threads_of_batch": threads}
        settings["rounds"] = rounds
        if "lucene" in workers:
            settings["expected_overlapping_postings"] = round(workers["lucene"].facts["overlap"], 3)
        expect_agreement(answers, hits)
        notes = tuple(write_notes(workers, hits))
        figures = measure_opening(index, collection.queries) if "ours" in names else {}
        peaks = {name: mib(worker.peak_bytes) for name, worker in workers.items()}
    rows = make_rows(answers, peaks, settings["queries"])
    return Report(figures, rows, ratios_of(answers, hits, threads), settings, notes)


def gather_inputs(names: Sequence[str], index: Path, collection: Collection, options: Options) -> dict[str, Any]:
    """What systems read, by name; the exact hits are written if one of these systems reads them."""
    queries, exact = str(collection.queries), index.with_name(f"exact-{collection.shards.name}.json")
    if any("exact" in SEARCHERS[name].inputs for name in names):
        hits = options.hits or HITS
        computed = run_once(".baselines:find_exact", shards=collection.shards, queries=queries, hits=hits)
        write_json(exact, computed.result)
    files = {"index": str(index), "queries": queries, "shards": str(collection.shards), "exact": str(exact)}
    count, seed = options.query_count or QUERY_COUNT, options.seed or 0
    return {**files, "documents": collection.documents, "query_count": count, "seed": seed}


def cells(workers: Mapping[str, Worker], hits: Sequence[int], threads: int) -> dict[tuple[str, str, int], Any]:
    """What a round asks of all systems, in turns: a task with a number of hits."""
    requests: dict[tuple[str, str, int], Any] = {}
    for k, task, (name, worker) in product(hits, ("latency", *WHERE, "batch"), workers.items()):
        if task in SEARCHERS[name].tasks:
            requests[name, task, k] = partial(worker.request, task=task, hits=k, threads=threads)
            if task == "batch" and threads > 1:
                requests[name, ALONE, k] = partial(worker.request, task=task, hits=k, threads=1)
    return requests


def make_rows(answers: Answers, peaks: Mapping[str, float], queries: int) -> tuple[dict[str, Any], ...]:
    """One line per system, task and number of hits; single queries over all rounds, batches by median."""
    rows = []
    for (name, task, k), rounds in sorted(answers.items(), key=lambda row: (row[0][2], "batch" in row[0][1])):
        row: dict[str, Any] = {"system": name, "task": task, "hits": k}
        if task.startswith("batch"):
            wall_s, cpu_s = (median(answer[clock] / queries for answer in rounds) for clock in ("wall_s", "cpu_s"))
            row |= {"mean_ms": round(wall_s * 1000, 3), "queries_per_s": round(1 / wall_s, 1)}
        else:
            row |= latency([seconds for answer in rounds for seconds in answer["wall_s"]])
            cpu_s = median(seconds for answer in rounds for seconds in answer["cpu_s"])
        rows.append({**row, "cpu_ms": round(cpu_s * 1000, 3), "peak_mib": peaks[name]})
    return tuple(rows)


def ratios_of(answers: Answers, hits: Sequence[int], threads: int) -> tuple[Ratio, ...]:
    """Every other system over ours: batches by wall and CPU time, single queries by their median."""
    return tuple(row for k in hits for row in (*compare_batches(answers, k, threads), *compare_singles(answers, k)))


def compare_batches(answers: Answers, k: int, threads: int) -> Iterator[Ratio]:
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


def compare_singles(answers: Answers, k: int) -> Iterator[Ratio]:
    """The ratios of single queries between all systems that answer them."""
    for what, clock in CLOCKS:
        # Per round, the seconds of a system's median query: interruptions of a few queries do not count.
        seconds = {
            (name, task): [median(answer[clock]) for answer in rounds]
            for (name, task, hits), rounds in answers.items()
            if hits == k and not task.startswith("batch")
        }
        for sides, side, other in PAIRS:
            if {side, other} <= seconds.keys():
                yield ratio(f"{sides}, {what}, k={k}", seconds[side], seconds[other])


def expect_agreement(answers: Answers, hits: Sequence[int]) -> None:
    """Refuses answers of exact systems that find different documents, scores or orders."""
    for k in hits:
        digests = {name: answer["digest"] for name in EXACT for answer in answers.get((name, "batch", k), ())}
        if len(set(digests.values())) > 1:
            raise LexvlError(f"{' and '.join(digests)} rank differently at k={k}; their times are not comparable")


def write_notes(workers: Mapping[str, Worker], hits: Sequence[int]) -> Iterator[str]:
    """The form of the postings that answered ours, the conditions, and the share of hits that approximate ones find."""
    for name in ("ours", "ours-lucene"):
        if name in workers:
            for form, count in workers[name].request(task="served", hits=0).items():
                yield f"{name}: {form} postings answered {count:,} queries"
    for name in ("ours-where", "ours-lucene-where"):
        for task, fact in workers[name].facts.items() if name in workers else ():
            first = f"the first query with this condition takes {1000 * fact['first_s']:.1f} ms of CPU time"
            yield f"{name}: {task}: {100 * fact['share']:.4f} %; {first}"
    for k in hits:
        for name in [name for name in workers if "exact" in SEARCHERS[name].inputs]:
            chosen = workers[name].request(task="recall", hits=k)
            yield f"{name} finds {chosen['recall']:.4f} of the first {k}: {chosen['settings']}"
        if {"faiss-flat", "faiss-hnsw"} <= workers.keys():
            exact, approximate = (workers[name].request(task="hits", hits=k) for name in ("faiss-flat", "faiss-hnsw"))
            share, candidates = measure_share(exact["hits"], approximate["hits"]), approximate["candidates"]
            yield f"faiss-hnsw is approximate: it finds {share:.4f} of the first {k} (efSearch {candidates})"
