"""The suite measures: what it costs to measure synthetic runs, each command a process of its own with its start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.files import atomic_write

from .collection import working_folder
from .processes import Outcome, run_once
from .suite import Options, Report, mib

# The passages and the small development topics of MS MARCO.
DOCUMENTS, TOPICS, HITS = 8_841_823, 6_980, 1000
SEED = 1

# The commands and the number of runs that each gets.
SYSTEMS = {"score": 1, "compare": 10}

# Lines that are written at once.
LINES = 1 << 19


def measure(options: Options) -> Report:
    """CPU seconds, wall seconds and peak memory of `eval.score` with one run and of `eval.compare` with ten.

    Every topic has one relevant document, which most runs find. A first small call compiles the measures, if that has
    not happened on this machine.

    Raises:
        UsageError: an unknown system, several numbers of hits, or fewer documents than hits.
    """
    systems, [hits, *more] = options.system or list(SYSTEMS), options.hits or [HITS]
    documents, topics = options.one_size(DOCUMENTS), options.query_count or TOPICS
    for name in systems:
        if name not in SYSTEMS:
            raise UnknownName("system", name, SYSTEMS)
    if more or documents < hits:
        raise UsageError(f"--hits {hits} of --documents {documents}; give one --hits, at most as many as documents")
    with working_folder(options) as folder:
        runs = [folder / f"run-{n}-{topics}x{hits}.trec" for n in range(max(SYSTEMS[name] for name in systems))]
        qrels = folder / f"{topics}.qrels"
        with atomic_write(qrels) as out:
            out.writelines(b"%d 0 %d 1\n" % (topic, documents + topic) for topic in range(topics))
        for number, path in enumerate(runs):
            if not path.exists():
                with atomic_write(path) as out:
                    write_run(out, documents, topics, hits, (options.seed or SEED) + number)
        small = folder / "small.trec"
        with atomic_write(small) as out:
            write_run(out, 10, 1, 1, SEED)
        _run("score", [small], qrels)
        rows = []
        for name in systems:
            outcome = _run(name, runs[: SYSTEMS[name]], qrels)
            figures = {"cpu_s": round(outcome.cpu_s, 2), "wall_s": round(outcome.wall_s, 2)}
            rows.append(
                {"command": f"eval.{name}", "runs": SYSTEMS[name], **figures, "peak_mib": mib(outcome.peak_bytes)}
            )
        size = runs[0].stat().st_size
    return Report(rows=tuple(rows), settings={"topics": topics, "hits": hits, "mib_per_run": mib(size)})


def _run(name: str, runs: list[Path], qrels: Path) -> Outcome:
    arguments = ["--qrels", str(qrels), "--measure", "RR@10", "--measure", "Recall@1000"]
    module = f"{__package__.partition('.')[0]}.{name}"
    arguments += [argument for run in runs for argument in ("--run", str(run))]
    return run_once(".process:run_command", module=module, arguments=arguments)


def write_run(out: BinaryIO, documents: int, topics: int, hits: int, seed: int) -> None:
    """Writes a run in TREC's format: random documents, falling scores; topic t's relevant document is documents + t."""
    import pyarrow
    from pyarrow import csv

    rng = np.random.default_rng(seed)
    names = ["topic", "Q0", "document", "rank", "score", "tag"]
    form = csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
    for block in _blocks(topics, max(1, LINES // hits)):
        found = rng.permuted(np.cumsum(rng.integers(1, documents // hits + 1, (len(block), hits)), axis=1) - 1, axis=1)
        places = rng.geometric(0.1, len(block)) - 1
        inside = places < hits
        found[inside, places[inside]] = documents + block[inside]
        scores = -np.sort(-rng.gamma(2, 4, found.shape), axis=1).round(4)
        columns = (
            np.repeat(block, hits),
            np.full(found.size, "Q0"),
            found.ravel(),
            np.tile(np.arange(1, hits + 1), len(block)),
            scores.ravel(),
            np.full(found.size, "toy"),
        )
        csv.write_csv(pyarrow.table(dict(zip(names, map(pyarrow.array, columns), strict=True))), out, form)


def _blocks(topics: int, size: int) -> Iterator[np.ndarray]:
    for start in range(0, topics, size):
        yield np.arange(start, min(start + size, topics))
