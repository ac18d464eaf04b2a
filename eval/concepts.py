"""Counts what an image model names in the demo's images: `python -m eval.concepts --images 200 --seed 1`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, encoder_names, parse_settings, run
from lexvl_anserini.data.corpora.demo import scenes
from lexvl_anserini.encoders.cards import default_encoder

from . import options
from .analyses.image_concepts import PLACES, concept_report, image_terms, sample
from .report.image_tables import concept_table
from .report.render import check_format, render


def command(
    encoder: Annotated[
        str | None,
        typer.Option(help="A lexical one that reads images; default the demo's.", autocompletion=encoder_names),
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Folder or hub id (owner/name[@revision]).")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of the encoder.")] = None,
    split: Annotated[str, typer.Option(help="val or test.")] = "test",
    images: Annotated[int, typer.Option(help="Number of images, drawn at random.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the random choice of images.")] = 1,
    places: Annotated[int, typer.Option(min=1, help="Different concepts read per image.")] = PLACES,
    data_dir: DataDir = None,
    device: options.Device = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 32,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Count the correct objects, colours and places among the first concepts of the demo's images.

    Example: python -m eval.concepts --images 200 --seed 1
    """
    check_format(output_format)
    listed = list(scenes(split))
    chosen = sample(len(listed), images, seed)
    from lexvl_anserini.encoders.loading import load_encoder

    name, default_checkpoint = default_encoder("demo", "text-to-image", encoder)
    model = load_encoder(name, checkpoint or default_checkpoint, device=device, **parse_settings(settings or ()))
    terms = image_terms(model, split, chosen, data_dir, batch_size)
    report = concept_report(model.name, terms, [listed[number] for number in chosen], places)
    sys.stdout.write(render(concept_table(report.rows), report, output_format))


if __name__ == "__main__":
    run(command)
