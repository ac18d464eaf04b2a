"""Whether memory grows with the corpus."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eval.efficiency.demo_corpus import write_corpus
from eval.efficiency.options import Options
from eval.efficiency.processes import run_once
from eval.efficiency.report import Report
from lexvl_anserini.cli import make_app

SIZES = (10_000, 100_000)


def run_command(module: str, arguments: list[str]) -> None:
    """A command of ours, in this process; its errors are raised."""
    make_app(import_module(module).command)(arguments, standalone_mode=False)


def measure(options: Options) -> Report:
    """Peak resident memory of `encode` and of `index`, each its own process, for a corpus and one ten times larger."""
    figures: dict[str, Any] = {}
    sizes = options.documents or SIZES
    with TemporaryDirectory() as folder:
        for size in sizes:
            corpus, shards, index = (Path(folder) / f"{name}-{size}" for name in ("corpus", "impacts", "index"))
            write_corpus(corpus, size)
            encode = ["--corpus", f"beir:{corpus}", "--encoder", options.encoder or "bag-of-tokens"]
            encode += ["--output", str(shards)]
            if options.checkpoint:
                encode += ["--checkpoint", options.checkpoint]
            for hop, arguments in (("encode", encode), ("index", [str(shards), "--index", str(index)])):
                outcome = run_once(
                    "eval.efficiency.memory:run_command", module=f"lexvl_anserini.{hop}", arguments=arguments
                )
                figures[f"{hop}_{size}_peak_mib"] = round(outcome.peak_bytes / (1 << 20))
                figures[f"{hop}_{size}_s"] = round(outcome.wall_s, 1)
    small, large = min(sizes), max(sizes)
    for hop in ("encode", "index"):
        figures[f"{hop}_memory_ratio"] = round(
            figures[f"{hop}_{large}_peak_mib"] / figures[f"{hop}_{small}_peak_mib"], 2
        )
    return Report(figures)
