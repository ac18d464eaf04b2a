"""The suite cost: the costs of indexing and searching as the collection grows, with FAISS flat for comparison."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import atomic_write

from .collection import prepare, working_folder
from .index import index_bytes, resident_bytes
from .opening import measure_opening
from .processes import Worker, run_once
from .search import HITS, Rounds, chosen, start
from .suite import Options, Ratio, Report, mib, ratio, spread
from .systems import INDEXERS
from .vectors import shape_of

SIZES = (10_000, 100_000, 1_000_000)
QUERY_COUNT = 100
ROUNDS = 2
# Of batches; single queries have one.
THREADS = 2
# A user may add other systems of the suite search.
SYSTEMS = ("ours", "ours-lucene", "faiss-flat")

# Title of a panel, and the prefixes of its columns.
PANELS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("building, seconds", ("build_s", "build_cpu_s")),
    ("size, bytes", ("bytes",)),
    ("peak memory, MiB", ("build_peak_mib", "search_peak_mib")),
    ("median query, CPU milliseconds", ("cpu_ms_k",)),
)


def measure(options: Options) -> Report:
    """One row per size and system: building time, bytes, peak memory, milliseconds per query.

    Raises:
        UsageError: ours is not among the systems; the curve is ours.
    """
    if options.system is not None and "ours" not in options.system:
        raise UsageError("the suite cost draws our curve; add --system ours")
    shape = shape_of(options.one_shape(), options.terms)
    options = replace(options, query_count=options.query_count or QUERY_COUNT)
    rows: list[dict[str, Any]] = []
    ratios: list[Ratio] = []
    for documents in options.documents or SIZES:
        with working_folder(options) as folder:
            found, compared = one_size(options, folder, documents)
        rows.extend(found)
        ratios.extend(compared)
    settings = {
        "vectors": options.one_shape(),
        "terms_per_document": shape.terms,
        "queries": options.query_count,
        "rounds": ROUNDS,
    }
    return Report(rows=tuple(rows), ratios=tuple(ratios), settings=settings)


def one_size(options: Options, folder: Path, documents: int) -> tuple[list[dict[str, Any]], list[Ratio]]:
    """Creates a collection, indexes it, and searches it with all systems in turns."""
    collection = prepare(options, folder, documents)
    index = folder / f"index-{collection.shards.name}"
    shutil.rmtree(index, ignore_errors=True)
    indexer = INDEXERS["ours"]
    built = run_once(indexer.function, indexer.environ, shards=str(collection.shards), index=str(index), threads=1)
    hits = options.hits or HITS
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(start(name, index, collection, options))
            for name in chosen(options.system or SYSTEMS)
        }
        rounds = Rounds(workers, hits, THREADS)
        # The first round warms caches and Java's compiler; its results are dropped.
        for _ in range(1 + ROUNDS):
            rounds.run()
        building = {
            "ours": {
                "build_s": round(built.result["wall_s"], 2),
                "build_cpu_s": round(built.result["cpu_s"], 2),
                "build_peak_mib": mib(built.peak_bytes),
                "bytes": index_bytes(index) + resident_bytes(index),
                **measure_opening(index, collection.queries),
            }
        }
        rows = [
            {
                "documents": documents,
                "system": name,
                **(building.get(name) or building_of(worker)),
                **latencies(rounds, name, hits),
            }
            for name, worker in workers.items()
        ]
        return rows, list(size_ratios(rounds, documents, hits))


def building_of(worker: Worker) -> dict[str, Any]:
    """The cost of the index that a worker built for itself; nothing for one that reads ours."""
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
    """The other systems over ours at one size, single queries; and our batches with one thread over several."""
    for k in hits:
        for what, found in rounds.thread_ratios(k):
            yield Ratio(f"{documents:,} documents: {what}", found)
        for what, field in (("wall", "wall_s"), ("CPU", "cpu_s")):
            mine = rounds.single("ours", "latency", k, field)
            for name in rounds.workers:
                if name != "ours":
                    others = rounds.single(name, "latency", k, field)
                    yield ratio(f"{documents:,} documents: {name} / ours, {what}, k={k}", others, mine)


def panel_lines(rows: Sequence[Mapping[str, Any]], beginnings: tuple[str, ...]) -> dict[str, list[tuple[int, float]]]:
    """The lines of a panel: by system and column, (documents, value)."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(beginnings):
                lines.setdefault(f"{row['system']} {key.replace('_', ' ')}", []).append((row["documents"], value))
    return lines


def draw_cost(report: Report, path: Path) -> None:
    """Draws a panel for each of time, size, memory and latency over the number of documents, both axes logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, beginnings) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        for label, points in panel_lines(report.rows, beginnings).items():
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
        axes.set(title=title, xlabel="documents", xscale="log", yscale="log")
        axes.grid(True, which="both", alpha=0.3)
        axes.legend(fontsize="small")
    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    # Lines need few colours: a third of the bytes.
    Image.open(drawn).convert("RGB").quantize(32).save(small, format="png", optimize=True)
    with atomic_write(path) as out:
        out.write(small.getvalue())
