"""Runs -> one run scored by several encoders: score = sum over runs of weight x <query, document>, in floats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, cast

import typer

from lexvl_anserini.cli import BatchSize, DataDir, Device, Overwrite, Style, Verbose, print_rows, run
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import RunManifest
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.runs.trec import DEFAULT_HITS, ensure_run, write_run
from lexvl_anserini.searching.rescoring import (
    CANDIDATES,
    compute_hybrid_lists,
    expect_run_manifest,
    list_candidates,
    load_run_encoder,
    load_run_topics,
    plan_hybrid,
)
from lexvl_anserini.shards.reading import match_shards


def command(
    runs: Annotated[list[Path], typer.Option("--run", help="A run with its manifest; its encoder scores, repeatable.")],
    output: Annotated[Path, typer.Option(help="Run to write.")],
    weights: Annotated[
        list[float] | None, typer.Option("--weight", help="Weight of each run's score, in their order; default 1 each.")
    ] = None,
    shards: Annotated[
        list[Path] | None,
        typer.Option(help="Shards of a run's index: documents are read there, not encoded again; repeatable."),
    ] = None,
    candidates: Annotated[int, typer.Option(min=1, help="Documents taken from each run, per topic.")] = CANDIDATES,
    hits: Annotated[int, typer.Option(min=1, help="Hits per topic.")] = DEFAULT_HITS,
    topics: Annotated[str | None, typer.Option(help="The topics' file, if the runs' topics came from one.")] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    batch_size: BatchSize = 32,
    overwrite: Overwrite = False,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Score the documents of runs by a weighted sum of their encoders' scores.

    Example: python -m lexvl_anserini.hybrid --run runs/demo.vdr.trec --run runs/demo.sentence.trec --output runs/h.trec
    """
    if weights and len(weights) != len(runs):
        raise UsageError(f"{len(weights)} weights for {len(runs)} runs; give one for each, or none")
    weights = weights or [1.0] * len(runs)
    stored = match_shards([(path, expect_run_manifest(path)) for path in runs], shards or ())
    source = load_run_topics(expect_run_manifest(runs[0]), topics, data_dir)
    request = plan_hybrid(runs, weights, candidates, hits, source, stored)

    def write() -> RunManifest:
        stream = cast(Iterator[Topic], source.stream())
        encoders = [
            load_run_encoder(path, weight, data_dir, device, folder)
            for path, weight, folder in zip(runs, weights, stored, strict=True)
        ]
        lists = compute_hybrid_lists(stream, list_candidates(runs, candidates), encoders, hits, batch_size)
        return write_run(output, lists, request, tag=request.encoder["name"])

    written = ensure_run(output, request, overwrite, write)
    print_rows({"run": str(output), **written.counts}, style)


if __name__ == "__main__":
    run(command)
