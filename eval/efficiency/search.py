"""Searching: ours, stock Pyserini, Lucene alone, FAISS and Seismic, in turns, each in a process that stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from eval.efficiency import seismic, stock
from eval.efficiency.collection import QUERY_COUNT, Collection, prepare, working_folder
from eval.efficiency.index import ENVIRON, describe
from eval.efficiency.options import Options
from eval.efficiency.processes import Ready, Stopwatch, Worker, run_once
from eval.efficiency.rankings import digest, load_queries, one_by_one
from eval.efficiency.report import Ratio, Report, latency, mib, ratio, spread
from lexvl_anserini.errors import LexvlError, UnknownName, UsageError

DOCUMENTS = 100_000
REPEATS = 3
HITS = (10, 1000)

NOTHING: Mapping[str, Any] = MappingProxyType({})


class System(NamedTuple):
    """What is compared.

    worker    its function
    tasks     what it is asked, each for every number of hits: `latency` (single queries), `batch` (all at once),
              `sorted` (single queries in the total order)
    reads     what of it: our index, the shards, or nothing, because its vectors are of its own making
    """

    worker: str
    tasks: tuple[str, ...]
    reads: str = "index"
    environ: Mapping[str, str] = NOTHING
    arguments: Mapping[str, Any] = NOTHING


SYSTEMS: Mapping[str, System] = {
    "ours": System("eval.efficiency.search:ours", ("latency", "batch")),
    "stock": System("eval.efficiency.stock:search", ("latency", "batch"), environ=stock.ENVIRON),
    "lucene": System("eval.efficiency.lucene:search", ("latency", "sorted")),
    "faiss-flat": System("eval.efficiency.dense:search", ("latency",), "nothing", arguments={"kind": "flat"}),
    "faiss-hnsw": System("eval.efficiency.dense:search", ("latency",), "nothing", arguments={"kind": "hnsw"}),
    "seismic": System("eval.efficiency.seismic:search", ("latency",), "shards"),
}


def ours(index: str, queries: str) -> Ready:
    """A worker around our engine, through what `search_index` uses."""
    from lexvl_anserini.engines.index_folder import index_manifest
    from lexvl_anserini.engines.opening import open_index

    path = Path(index)
    manifest = index_manifest(path)
    engine = open_index(path, manifest)
    asked = load_queries(queries)

    def answer(task: str, hits: int, threads: int = 1) -> Any:
        if task == "latency":
            return one_by_one(lambda query: list(engine.search([query], hits)), asked)
        if task == "found":
            return [[d.doc_id for d in found] for found in engine.search(asked, hits)]
        with Stopwatch() as watch:
            lists = list(engine.search(asked, hits, threads))
        return {**watch.told(), "digest": digest([(d.doc_id, d.score) for d in found] for found in lists)}

    return Ready({"documents": manifest.counts["documents"]}, answer)


def measure(options: Options) -> Report:
    """Latency of single queries and throughput of a batch, by system and number of hits.

    Raises:
        LexvlError: ours and stock rank differently: what they cost does not compare then.
    """
    hits = options.hits or HITS
    with working_folder(options) as folder, ExitStack() as stack:
        collection = prepare(options, folder, options.one_size(DOCUMENTS))
        index = built(collection, folder)
        names = chosen(options.system)
        workers = {name: stack.enter_context(start(name, index, collection, options)) for name in names}
        rounds = Rounds(workers, hits, options.threads or 1)
        # The first round warms caches and Java's compiler, and is forgotten.
        for _ in range(1 + (options.repeats or REPEATS)):
            rounds.run()
        settings = {
            **describe(options, collection.shards),
            "queries": len(load_queries(str(collection.queries))),
            "threads_of_batch": options.threads or 1,
            "rounds": options.repeats or REPEATS,
        }
        if "lucene" in workers:
            settings["expected_overlapping_postings"] = round(workers["lucene"].about["overlap"], 3)
        expect_agreement(rounds.answers, hits)
        notes = recall_notes(workers, hits)
        return Report(
            rows=tuple(rounds.rows(settings["queries"])), ratios=rounds.ratios(), settings=settings, notes=notes
        )


def chosen(systems: Sequence[str] | None) -> list[str]:
    """The systems asked for, in the order of the table; by default all that are installed.

    Raises:
        UnknownName: no such system.
        UsageError: Seismic is asked for and not installed.
    """
    for name in systems or ():
        if name not in SYSTEMS:
            raise UnknownName("system", name, SYSTEMS)
    if systems and "seismic" in systems and not seismic.installed():
        raise UsageError(f"the system 'seismic' is not installed: {seismic.REMEDY}")
    return [name for name in SYSTEMS if (name in systems if systems else name != "seismic" or seismic.installed())]


def built(collection: Collection, folder: Path) -> Path:
    """Our index of the collection, made in a child unless it is there."""
    index = folder / f"index-{collection.shards.name}"
    run_once("eval.efficiency.index:ours", ENVIRON, shards=str(collection.shards), index=str(index), threads=1)
    return index


def start(name: str, index: Path, collection: Collection, options: Options) -> Worker:
    """The worker of a system."""
    system = SYSTEMS[name]
    if system.reads != "nothing":
        place = {"index": index, "shards": collection.shards}[system.reads]
        return Worker(system.worker, system.environ, **{system.reads: str(place)}, queries=str(collection.queries))
    return Worker(
        system.worker,
        system.environ,
        documents=collection.documents,
        query_count=options.query_count or QUERY_COUNT,
        seed=options.seed or 0,
        **system.arguments,
    )


class Rounds:
    """Asks all systems in turns and keeps what they answered, by (system, task, hits)."""

    def __init__(self, workers: Mapping[str, Worker], hits: Sequence[int], threads: int):
        self.workers, self.hits, self.threads = workers, hits, threads
        self.answers: dict[tuple[str, str, int], list[Any]] = {}
        self.warm = False

    def run(self) -> None:
        """One round; the first is not kept."""
        for k in self.hits:
            for task in ("latency", "sorted", "batch"):
                for name, worker in self.workers.items():
                    if task in SYSTEMS[name].tasks:
                        answer = worker.ask(task=task, hits=k, threads=self.threads)
                        if self.warm:
                            self.answers.setdefault((name, task, k), []).append(answer)
        self.warm = True

    def rows(self, queries: int) -> list[dict[str, Any]]:
        """One line per system, task and number of hits; single queries over all rounds, batches by median."""
        rows = []
        for (name, task, k), answers in sorted(self.answers.items(), key=lambda row: (row[0][2], row[0][1] == "batch")):
            row: dict[str, Any] = {"system": name, "task": task, "hits": k}
            row["peak_mib"] = mib(self.workers[name].peak_bytes)
            if task == "batch":
                wall_s = spread([answer["wall_s"] for answer in answers]).median
                cpu_s = spread([answer["cpu_s"] for answer in answers]).median
                row["mean_ms"] = round(wall_s * 1000 / queries, 3)
                row["queries_per_s"] = round(queries / wall_s, 1)
                row["cpu_ms"] = round(cpu_s * 1000 / queries, 3)
            else:
                row.update(latency([s for answer in answers for s in answer["wall_s"]]))
                row["cpu_ms"] = round(spread([s for answer in answers for s in answer["cpu_s"]]).median * 1000, 3)
            rows.append(row)
        # All columns in the order of the longest row, so that the table reads the same whatever was measured.
        keys = (
            "system",
            "task",
            "hits",
            "p50_ms",
            "p90_ms",
            "p95_ms",
            "p99_ms",
            "mean_ms",
            "queries_per_s",
            "cpu_ms",
            "peak_mib",
        )
        return [{key: row[key] for key in keys if key in row} for row in rows]

    def ratios(self) -> tuple[Ratio, ...]:
        """Every other system over ours: batches by wall and CPU time, single queries by their median."""
        found = []
        for k in self.hits:
            mine = self.answers.get(("ours", "batch", k))
            theirs = self.answers.get(("stock", "batch", k))
            if mine and theirs:
                for what, field in (("wall", "wall_s"), ("CPU", "cpu_s")):
                    pairs = [[answer[field] for answer in side] for side in (theirs, mine)]
                    found.append(ratio(f"stock / ours: batch of queries, {what}, k={k}", *pairs))
                read = [answer["wall_s"] + answer["read_s"] for answer in theirs]
                found.append(
                    ratio(f"stock / ours: the same with ids and scores read, k={k}", read, [a["wall_s"] for a in mine])
                )
            for what, field in (("wall", "wall_s"), ("CPU", "cpu_s")):
                found.extend(self.single_ratios(k, what, field))
        return tuple(found)

    def single_ratios(self, k: int, what: str, field: str) -> Iterator[Ratio]:
        """Single queries: other systems over ours, and ours over Lucene alone, its lower bound."""
        alone = self.single("ours", "latency", k, field)
        for name in ("stock", "faiss-flat", "faiss-hnsw", "seismic") if alone else ():
            if others := self.single(name, "latency", k, field):
                yield ratio(f"{name} / ours: single query, {what}, k={k}", others, alone)
        for task, order in (("latency", "score"), ("sorted", "score and id")) if alone else ():
            if bound := self.single("lucene", task, k, field):
                yield ratio(f"ours / lucene by {order}: single query, {what}, k={k}", alone, bound)

    def single(self, name: str, task: str, k: int, field: str = "wall_s") -> list[float]:
        """Per round, the seconds of a system's middle query: what interrupts a few does not count."""
        return [spread(answer[field]).median for answer in self.answers.get((name, task, k), ())]


def expect_agreement(answers: Mapping[tuple[str, str, int], list[Any]], hits: Sequence[int]) -> None:
    """Raises LexvlError unless ours and stock found the same documents, scores and order."""
    for k in hits:
        digests = {
            name: answers[name, "batch", k][0]["digest"] for name in ("ours", "stock") if (name, "batch", k) in answers
        }
        if len(set(digests.values())) > 1:
            raise LexvlError(f"ours and stock rank differently at k={k}; their times do not compare")


def recall_notes(workers: Mapping[str, Worker], hits: Sequence[int]) -> tuple[str, ...]:
    """How much of the exact answer the approximate systems find."""
    notes = []
    for name, reference in (("faiss-hnsw", "faiss-flat"), ("seismic", "ours")):
        for k in hits if name in workers and reference in workers else ():
            exact, found = (workers[system].ask(task="found", hits=k) for system in (reference, name))
            notes.append(f"{name} is approximate: it finds {share_found(exact, found):.4f} of the first {k}")
    return tuple(notes)


def share_found(exact: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]) -> float:
    """Mean over queries of the share of the exact list that was found; an empty list is found."""
    shares = [len(set(e) & set(f)) / len(e) if e else 1.0 for e, f in zip(exact, found, strict=True)]
    return sum(shares) / len(shares)
