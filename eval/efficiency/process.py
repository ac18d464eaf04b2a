"""The suites of whole processes: the start of a command, memory as the corpus grows, and the overhead of encoding."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lexvl_anserini.cli import make_app

from .collection import write_corpus
from .processes import run_once
from .suite import Options, Report

STARTUP_REPEATS = 5
MEMORY_SIZES = (10_000, 100_000)
OVERHEAD_DOCUMENTS = 2000


def measure_startup(options: Options) -> Report:
    """Median seconds until a fresh interpreter has imported the package, and until a command has printed its help."""
    cases: Mapping[str, list[str]] = {
        "python_alone_s": ["-c", "pass"],
        "import_lexvl_anserini_s": ["-c", "import lexvl_anserini"],
        **{f"{hop}_help_s": ["-m", f"lexvl_anserini.{hop}", "--help"] for hop in ("encode", "index", "search")},
        "score_help_s": ["-m", "eval.score", "--help"],
    }
    figures = {}
    for name, arguments in cases.items():
        seconds = []
        for _ in range(options.repeats or STARTUP_REPEATS):
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
        figures[name] = round(statistics.median(seconds), 3)
    return Report(figures)


def run_command(module: str, arguments: list[str]) -> None:
    """Runs a command of ours in this process; its errors are raised."""
    make_app(import_module(module).command)(arguments, standalone_mode=False)


def measure_memory(options: Options) -> Report:
    """Peak resident memory of `encode` and of `index`, each its own process, for a corpus and one ten times larger."""
    figures: dict[str, Any] = {}
    sizes = options.documents or MEMORY_SIZES
    with TemporaryDirectory() as folder:
        for size in sizes:
            corpus, shards, index = (Path(folder) / f"{name}-{size}" for name in ("corpus", "impacts", "index"))
            write_corpus(corpus, size)
            encode = ["--corpus", f"beir:{corpus}", "--encoder", options.encoder or "bag-of-tokens"]
            encode += ["--output", str(shards)]
            if options.checkpoint:
                encode += ["--checkpoint", options.checkpoint]
            for hop, arguments in (("encode", encode), ("index", [str(shards), "--index", str(index)])):
                outcome = run_once(".process:run_command", module=f"lexvl_anserini.{hop}", arguments=arguments)
                figures[f"{hop}_{size}_peak_mib"] = round(outcome.peak_bytes / (1 << 20))
                figures[f"{hop}_{size}_s"] = round(outcome.wall_s, 1)
    small, large = min(sizes), max(sizes)
    for hop in ("encode", "index"):
        figures[f"{hop}_memory_ratio"] = round(
            figures[f"{hop}_{large}_peak_mib"] / figures[f"{hop}_{small}_peak_mib"], 2
        )
    return Report(figures)


def measure_overhead(options: Options) -> Report:
    """Share of the wall time of encoding that is not the model's forward pass (backbone, head and pooling).

    A corpus of demo captions is read from a file and its shards are written, as the command does it, including
    calibration; loading the model does not count.
    """
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.encoders.parts.towers import LexicalTower
    from lexvl_anserini.shards.writing import write_impacts

    documents = options.one_size(OVERHEAD_DOCUMENTS)
    checkpoint = options.checkpoint or ("minilm" if options.encoder is None else None)
    model = load_encoder(options.encoder or "vdr", checkpoint)
    forward_s = 0.0
    tower = model.document
    assert isinstance(tower, LexicalTower), "an encoder whose weights come from a network"
    pooled: Callable[..., Any] = tower.pooled

    def timed(*inputs: Any) -> Any:
        nonlocal forward_s
        started = time.perf_counter()
        result = pooled(*inputs)
        forward_s += time.perf_counter() - started
        return result

    tower.pooled = timed  # type: ignore[method-assign, assignment]
    tower.weights(["warm up"] * 64)
    forward_s = 0.0
    with TemporaryDirectory() as folder:
        write_corpus(Path(folder) / "corpus", documents)
        dataset = load_dataset(f"beir:{folder}/corpus")
        started = time.perf_counter()
        manifest = write_impacts(dataset, model, Path(folder) / "impacts")
        wall_s = time.perf_counter() - started
    figures = {
        "documents": manifest.counts.documents,
        "postings_per_document": round(manifest.counts.postings / documents, 1),
        "documents_per_s": round(documents / wall_s, 1),
        "wall_s": round(wall_s, 2),
        "forward_s": round(forward_s, 2),
        "overhead_share": round(1 - forward_s / wall_s, 4),
    }
    return Report(figures)
