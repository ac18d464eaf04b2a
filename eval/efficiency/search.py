"""The suite search: ours, stock Pyserini, Lucene alone, and FAISS, in turns, each in a process that stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lexvl_anserini.ground.errors import LexvlError, UnknownName

from .collection import QUERY_COUNT, Collection, prepare, read_queries, working_folder
from .dense import share_found
from .index import describe, measure_opening
from .processes import Worker, run_once
from .suite import Options, Ratio, Report, latency, mib, ratio, spread
from .systems import INDEXERS, SEARCHERS

DOCUMENTS = 100_000
REPEATS = 3
HITS = (10, 1000)

# Exact engines over the same vectors: they find the same documents, with the same scores, in the same order.
EXACT = ("ours", "ours-lucene", "stock")
OTHERS = ("ours-lucene", "stock", "faiss-flat", "faiss-hnsw")

# Batches with one thread, where the others have several.
ALONE = "batch, 1 thread"

# The columns have a fixed order, so that the table does not depend on the measured tasks.
COLUMNS = (
    *("system", "task", "hits", "p50_ms", "p90_ms", "p95_ms", "p99_ms"),
    *("mean_ms", "queries_per_s", "cpu_ms", "peak_mib"),
)


def measure(options: Options) -> Report:
    """Latency of single queries and throughput of a batch, by system and number of hits.

    Raises:
        LexvlError: two exact systems rank differently: their costs are not comparable then.
    """
    hits = options.hits or HITS
    with working_folder(options) as folder, ExitStack() as stack:
        collection = prepare(options, folder, options.one_size(DOCUMENTS))
        index = built(collection, folder)
        names = chosen(options.system)
        workers = {name: stack.enter_context(start(name, index, collection, options)) for name in names}
        rounds = Rounds(workers, hits, options.threads or 1)
        # The first round warms caches and Java's compiler; its results are dropped.
        for _ in range(1 + (options.repeats or REPEATS)):
            rounds.run()
        settings = {
            **describe(options, collection.shards),
            "queries": len(read_queries(str(collection.queries))),
            "threads_of_batch": options.threads or 1,
            "rounds": options.repeats or REPEATS,
        }
        if "lucene" in workers:
            settings["expected_overlapping_postings"] = round(workers["lucene"].about["overlap"], 3)
        expect_agreement(rounds.answers, hits)
        notes = (*served_notes(workers), *recall_notes(workers, hits))
        figures = measure_opening(index, collection.queries) if "ours" in names else {}
    return Report(figures, tuple(rounds.rows(settings["queries"])), rounds.ratios(), settings, notes)


def chosen(systems: Sequence[str] | None) -> list[str]:
    """The requested systems, in the order of the table; by default all.

    Raises:
        UnknownName: no such system.
    """
    for name in systems or ():
        if name not in SEARCHERS:
            raise UnknownName("system", name, SEARCHERS)
    return [name for name in SEARCHERS if not systems or name in systems]


def built(collection: Collection, folder: Path) -> Path:
    """Our index of the collection, built in a child unless it exists."""
    index = folder / f"index-{collection.shards.name}"
    ours = INDEXERS["ours"]
    run_once(ours.function, ours.environ, shards=str(collection.shards), index=str(index), threads=1)
    return index


def start(name: str, index: Path, collection: Collection, options: Options) -> Worker:
    """The worker of a system."""
    system = SEARCHERS[name]
    if system.reads != "nothing":
        place = {"index": index, "shards": collection.shards}[system.reads]
        read = {system.reads: str(place), "queries": str(collection.queries)}
        return Worker(system.function, system.environ, **read, **system.arguments)
    return Worker(
        system.function,
        system.environ,
        documents=collection.documents,
        query_count=options.query_count or QUERY_COUNT,
        seed=options.seed or 0,
        **system.arguments,
    )


class Rounds:
    """Sends requests to all systems in turns and keeps their answers, by (system, task, hits)."""

    def __init__(self, workers: Mapping[str, Worker], hits: Sequence[int], threads: int):
        self.workers, self.hits, self.threads = workers, hits, threads
        self.answers: dict[tuple[str, str, int], list[Any]] = {}
        self.warm = False

    def run(self) -> None:
        """One round; the first is not kept."""
        for k in self.hits:
            for task in ("latency", "sorted", "batch"):
                for name, worker in self.workers.items():
                    if task in SEARCHERS[name].tasks:
                        self.keep((name, task, k), worker.request(task=task, hits=k, threads=self.threads))
                        if task == "batch" and self.threads > 1:
                            self.keep((name, ALONE, k), worker.request(task=task, hits=k, threads=1))
        self.warm = True

    def keep(self, key: tuple[str, str, int], answer: Any) -> None:
        """Keeps an answer, unless the round is the first."""
        if self.warm:
            self.answers.setdefault(key, []).append(answer)

    def rows(self, queries: int) -> list[dict[str, Any]]:
        """One line per system, task and number of hits; single queries over all rounds, batches by median."""
        rows = []
        for (name, task, k), answers in sorted(self.answers.items(), key=lambda row: (row[0][2], "batch" in row[0][1])):
            row: dict[str, Any] = {"system": name, "task": task, "hits": k}
            row["peak_mib"] = mib(self.workers[name].peak_bytes)
            if task in ("batch", ALONE):
                wall_s = spread([answer["wall_s"] for answer in answers]).median
                cpu_s = spread([answer["cpu_s"] for answer in answers]).median
                row["mean_ms"] = round(wall_s * 1000 / queries, 3)
                row["queries_per_s"] = round(queries / wall_s, 1)
                row["cpu_ms"] = round(cpu_s * 1000 / queries, 3)
            else:
                row.update(latency([s for answer in answers for s in answer["wall_s"]]))
                row["cpu_ms"] = round(spread([s for answer in answers for s in answer["cpu_s"]]).median * 1000, 3)
            rows.append(row)
        return [{key: row[key] for key in COLUMNS if key in row} for row in rows]

    def ratios(self) -> tuple[Ratio, ...]:
        """Every other system over ours: batches by wall and CPU time, single queries by their median."""
        ratios = []
        for k in self.hits:
            mine = self.answers.get(("ours", "batch", k))
            theirs = self.answers.get(("stock", "batch", k))
            if mine and theirs:
                for what, field in (("wall", "wall_s"), ("CPU", "cpu_s")):
                    pairs = [[answer[field] for answer in side] for side in (theirs, mine)]
                    ratios.append(ratio(f"stock / ours: batch of queries, {what}, k={k}", *pairs))
                read = [answer["wall_s"] + answer["read_s"] for answer in theirs]
                ratios.append(
                    ratio(f"stock / ours: the same with ids and scores read, k={k}", read, [a["wall_s"] for a in mine])
                )
            ratios.extend(self.thread_ratios(k))
            for what, field in (("wall", "wall_s"), ("CPU", "cpu_s")):
                ratios.extend(self.single_ratios(k, what, field))
        return tuple(ratios)

    def thread_ratios(self, k: int) -> Iterator[Ratio]:
        """Our batch with one thread over the same with all threads, wall time."""
        if one := self.answers.get(("ours", ALONE, k)):
            pair = [[answer["wall_s"] for answer in side] for side in (one, self.answers["ours", "batch", k])]
            yield ratio(f"ours: batch of queries, 1 thread / {self.threads} threads, wall, k={k}", *pair)

    def single_ratios(self, k: int, what: str, field: str) -> Iterator[Ratio]:
        """Single queries: other systems over ours, and ours over Lucene alone, its lower bound."""
        alone = self.single("ours", "latency", k, field)
        for name in OTHERS if alone else ():
            if others := self.single(name, "latency", k, field):
                yield ratio(f"{name} / ours: single query, {what}, k={k}", others, alone)
        for task, order in (("latency", "score"), ("sorted", "score and id")) if alone else ():
            if bound := self.single("lucene", task, k, field):
                yield ratio(f"ours / lucene by {order}: single query, {what}, k={k}", alone, bound)

    def single(self, name: str, task: str, k: int, field: str = "wall_s") -> list[float]:
        """Per round, the seconds of a system's median query: interruptions of a few queries do not count."""
        return [spread(answer[field]).median for answer in self.answers.get((name, task, k), ())]


def expect_agreement(answers: Mapping[tuple[str, str, int], list[Any]], hits: Sequence[int]) -> None:
    """Raises LexvlError if two exact systems find different documents, scores or orders."""
    for k in hits:
        digests = {name: answer["digest"] for name in EXACT for answer in answers.get((name, "batch", k), ())}
        if len(set(digests.values())) > 1:
            raise LexvlError(f"{' and '.join(digests)} rank differently at k={k}; their times are not comparable")


def served_notes(workers: Mapping[str, Worker]) -> Iterator[str]:
    """The form of the postings that answered the queries of ours."""
    for name in ("ours", "ours-lucene"):
        if name in workers:
            for form, count in workers[name].request(task="served", hits=0).items():
                yield f"{name}: {form} postings answered {count:,} queries"


def recall_notes(workers: Mapping[str, Worker], hits: Sequence[int]) -> tuple[str, ...]:
    """The share of the exact hits that the approximate systems find."""
    notes = []
    exact_name, name = "faiss-flat", "faiss-hnsw"
    for k in hits if {name, exact_name} <= set(workers) else ():
        exact, approximate = (workers[system].request(task="found", hits=k) for system in (exact_name, name))
        share = share_found(exact["hits"], approximate["hits"])
        note = f"{name} is approximate: it finds {share:.4f} of the first {k}"
        notes.append(f"{note} (efSearch {approximate['candidates']})")
    return tuple(notes)
