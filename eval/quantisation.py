"""Measures what quantising costs: `python -m eval.quantisation --corpus demo --bits 4 --bits 8`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from lexvl_anserini.cli import DataDir, Verbose, corpus_names, encoder_names, parse_settings, run
from lexvl_anserini.encoders.cards import default_encoder, direction_option, natural_direction

from . import options
from .analyses.quantisation_loss import figures, quantisation_losses
from .measures.names import parse_measure
from .report.render import check_format, render
from .report.tables import loss_table

DEFAULT_BITS = [4, 8]


def command(
    corpus: Annotated[
        str, typer.Option(help="demo, beir/<name>, beir:<path>, folder:<path>.", autocompletion=corpus_names)
    ] = "demo",
    encoder: Annotated[
        str | None, typer.Option(help="A lexical encoder; default as in encode.", autocompletion=encoder_names)
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Folder, hub id (owner/name[@revision]) or packaged.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of topics and judgements; default test.")] = None,
    direction: Annotated[str | None, typer.Option(help="Of captioned images; default as in encode.")] = None,
    data_dir: DataDir = None,
    device: options.Device = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per forward pass.")] = 32,
    settings: Annotated[list[str] | None, typer.Option("--set", help="An encoder's option, KEY=VALUE.")] = None,
    quantiser: Annotated[str, typer.Option(help="calibrated, fixed (with --scale) or naver.")] = "calibrated",
    bits: Annotated[list[int], typer.Option("--bits", help="Of document impacts; repeat for several.")] = DEFAULT_BITS,
    query_bits: Annotated[int, typer.Option(help="Of query weights, lowered where a score could reach 2^24.")] = 8,
    scale: Annotated[float | None, typer.Option(help="Impacts per unit of weight, for fixed.")] = None,
    percentile: Annotated[float, typer.Option(help="Of the sample's maxima that becomes the largest impact.")] = 100.0,
    measure: Annotated[
        str, typer.Option(help="Compared on both rankings.", autocompletion=options.measure_names)
    ] = "nDCG@10",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State what quantising costs on a corpus: overlap with the float ranking, change of a measure, lost postings.

    All vectors are kept in memory.

    Example: python -m eval.quantisation --corpus demo --bits 4 --bits 8
    """
    check_format(output_format)
    parse_measure(measure)
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.loading import load_encoder
    from lexvl_anserini.ground.quantise import Quantiser

    quantisers = {b: Quantiser.named(quantiser, b, query_bits, scale, percentile) for b in bits}
    dataset = load_dataset(corpus, split, data_dir, direction=natural_direction(encoder, direction))
    name, default_checkpoint = default_encoder(corpus, dataset.direction, encoder)
    encoder_options = direction_option(name, dataset.direction) | parse_settings(settings or ())
    model = load_encoder(name, checkpoint or default_checkpoint, device=device, **encoder_options)
    losses = quantisation_losses(dataset, model, quantisers.values(), measure, batch_size)
    rows: list[dict[str, Any]] = [
        {"bits": b, "query bits": query_bits, **figures(loss), "ties": "rank"}
        for b, loss in zip(quantisers, losses, strict=True)
    ]
    sys.stdout.write(render(loss_table(rows), rows, output_format))


if __name__ == "__main__":
    run(command)
