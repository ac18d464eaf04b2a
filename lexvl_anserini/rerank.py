"""A run -> the same run with each topic's first documents scored again by a model's own inner product, in floats."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from lexvl_anserini import cli
from lexvl_anserini.cli import BatchSize, DataDir, Device, Overwrite, Settings, Style, Verbose
from lexvl_anserini.ground.manifest import RunManifest
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.runs.trec import ensure_run, read_lists, write_run
from lexvl_anserini.searching.rescoring import (
    DEPTH,
    expect_run_manifest,
    load_reranking_encoder,
    load_run_documents,
    load_run_topics,
    plan_rerank,
    rerank_lists,
)
from lexvl_anserini.searching.search import MovedCheckpoint, MovedTokenizer


def command(
    run: Annotated[Path, typer.Option("--run", help="A run that search wrote, with its manifest.")],
    output: Annotated[Path, typer.Option(help="Run to write.")],
    depth: Annotated[int, typer.Option(min=1, help="Documents of each topic that are scored again.")] = DEPTH,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Scores in place of the run's own, such as multi-vector; --checkpoint and --tokenizer are its own.",
            autocompletion=cli.encoder_names,
        ),
    ] = None,
    settings: Settings = None,
    checkpoint: MovedCheckpoint = None,
    tokenizer: MovedTokenizer = None,
    topics: Annotated[str | None, typer.Option(help="The topics' file, if the run's topics came from one.")] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    batch_size: BatchSize = 32,
    overwrite: Overwrite = False,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Score the first documents of a run again by its encoder's full vectors, or by another encoder.

    For svdr and vdr: both sides parametric, with a text's own tokens; for fdt: features.

    Example: python -m lexvl_anserini.rerank --run runs/demo.svdr.trec --output runs/demo.svdr-reranked.trec
    """
    manifest, options = expect_run_manifest(run, mixed=encoder is not None), cli.parse_settings(settings or ())
    model = load_reranking_encoder(manifest, checkpoint, tokenizer, device, options, encoder)
    source = load_run_topics(manifest, topics, data_dir)
    request = plan_rerank(run, source, model, depth)

    def write() -> RunManifest:
        documents = partial(load_run_documents, manifest, data_dir)
        stream = cast(Iterator[Topic], source.stream())
        lists = rerank_lists(stream, read_lists(run), model, documents, depth, batch_size)
        return write_run(output, lists, request, tag=f"{model.name}-reranked")

    written = ensure_run(output, request, overwrite, write)
    cli.print_rows({"run": str(output), **written.counts}, style)


if __name__ == "__main__":
    cli.run(command)
