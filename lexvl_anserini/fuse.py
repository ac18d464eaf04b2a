"""Runs -> one run: `python -m lexvl_anserini.fuse --run A.trec --run B.trec --output runs/fused.trec`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import Overwrite, Style, Verbose, print_rows, run
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.runs.fusion import RRF_K, Fusion, build_fused_manifest, fuse_runs
from lexvl_anserini.runs.trec import DEFAULT_HITS, ensure_run, write_run


def command(
    runs: Annotated[list[Path], typer.Option("--run", help="A run in TREC format, plain or .gz; give two or more.")],
    output: Annotated[Path, typer.Option(help="Run to write.")],
    method: Annotated[str, typer.Option(help="rrf (reciprocal ranks) or interpolation (normalised scores).")] = "rrf",
    weights: Annotated[
        list[float] | None, typer.Option("--weight", help="Weight of each run, in their order; default equal.")
    ] = None,
    k: Annotated[float, typer.Option(help="Constant of rrf: 1 / (k + rank).")] = RRF_K,
    normalisation: Annotated[str, typer.Option(help="For interpolation: min-max, z-score or none.")] = "min-max",
    hits: Annotated[int, typer.Option(min=1, help="Hits per topic.")] = DEFAULT_HITS,
    overwrite: Overwrite = False,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Fuse runs of the same topics into one.

    Example: python -m lexvl_anserini.fuse --run runs/demo.bm25.trec --run runs/demo.vdr.trec --output runs/fused.trec
    """
    if len(runs) < 2:
        raise UsageError("give --run twice or more")
    fusion = Fusion(method, tuple(weights or ()), k, normalisation)
    request = build_fused_manifest(runs, fusion, hits)
    written = ensure_run(
        output, request, overwrite, lambda: write_run(output, fuse_runs(runs, fusion, hits), request, tag=method)
    )
    print_rows({"run": str(output), **written.counts}, style)


if __name__ == "__main__":
    run(command)
