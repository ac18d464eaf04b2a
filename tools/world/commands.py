"""The commands of the demo's world.

python tools/world draw train val              # the splits that are not in the package
python tools/world ceiling --split test        # the best recall that the captions permit
python tools/world concepts --images 200       # what an image model names
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from lexvl_eval import options
from lexvl_eval.report.tables import COUNT, TWO_DECIMALS, FieldColumn, Table, check_format, format_percent, render

from lexvl_anserini.cli import DataDir, encoder_names, parse_settings, run_guarded
from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.encoders.cards import choose_encoder
from world.ceiling import Ceiling, ceiling
from world.concepts import PLACES, ConceptMeans, concept_report, image_terms, sample
from world.pictures import SIZE, draw_split
from world.scenes import SPLITS, scenes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.command()
def draw(
    split: Annotated[list[str], typer.Argument(help="train (20,000 scenes), val (1,000) or test (1,000).")],
    output: Annotated[Path | None, typer.Option(help="Folder; default where demo/SPLIT is read.")] = None,
    size: Annotated[int, typer.Option(help="Pixels of an image's side.")] = SIZE,
    data_dir: DataDir = None,
) -> None:
    """Draw splits of the demo: SPLIT.tar, and SPLIT.json in Karpathy's format."""
    for name in split:
        typer.echo(draw_split(name, output or data_root(data_dir) / "demo", size))


@app.command(name="ceiling")
def print_ceiling(
    split: Annotated[list[str] | None, typer.Option(help="train, val or test; repeatable. Default test.")] = None,
    output_format: options.TableFormat = "text",
) -> None:
    """Print the best R@1, R@5 and R@10 that the demo's captions allow, text to image."""
    check_format(output_format)
    rows = [ceiling(name) for name in split or ["test"]]
    sys.stdout.write(render(ceiling_table(rows), rows, output_format))


@app.command(name="concepts")
def print_concepts(
    encoder: Annotated[
        str | None,
        typer.Option(help="A lexical one that reads images; default the demo's.", autocompletion=encoder_names),
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Folder or hub id (owner/name[@revision]).")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of the encoder.")] = None,
    split: Annotated[str, typer.Option(help="val or test.")] = "test",
    images: Annotated[int, typer.Option(help="Number of images, drawn at random.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the random choice of images.")] = 1,
    places: Annotated[int, typer.Option(min=1, help="Different concepts read per image.")] = PLACES,
    data_dir: DataDir = None,
    device: options.Device = "auto",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 32,
    output_format: options.TableFormat = "text",
) -> None:
    """Count the correct objects, colours and places among the first concepts of the demo's images."""
    check_format(output_format)
    chosen = sample(SPLITS[split], images, seed)
    from lexvl_anserini.encoders.loading import load_encoder

    name, default_checkpoint = choose_encoder("demo", "text-to-image", encoder)
    model = load_encoder(name, checkpoint or default_checkpoint, device=device, **parse_settings(settings or ()))
    terms = image_terms(model, split, chosen, data_dir, batch_size)
    shown = list(scenes(split))
    report = concept_report(model.name, terms, [shown[number] for number in chosen], places)
    sys.stdout.write(render(concept_table(report.rows), report, output_format))


def ceiling_table(rows: Sequence[Ceiling]) -> Table:
    """One row per split, shares in percent."""
    counts = FieldColumn("captions", "captions", COUNT), FieldColumn("alone %", "alone", format_percent)
    scenes = FieldColumn("mean scenes", "mean_scenes", TWO_DECIMALS), FieldColumn("most scenes", "most_scenes", COUNT)
    recall = (FieldColumn(f"R@{k}", f"r_at_{k}", format_percent) for k in (1, 5, 10))
    return Table.make_columns(rows, (FieldColumn("split", "split"), *counts, *scenes, *recall))


def concept_table(rows: Sequence[ConceptMeans]) -> Table:
    """One row per ranking: shares in percent, then means per image."""
    shares = (
        FieldColumn(">= 2 objects %", "two_objects", format_percent),
        FieldColumn(">= 1 object %", "any_object", format_percent),
    )
    names = ("objects", "wrong_objects", "colours", "place", "weather", "time")
    means = (FieldColumn(name.replace("_", " "), name, TWO_DECIMALS) for name in names)
    return Table.make_columns(rows, (FieldColumn("ranking", "ranking"), *shares, *means))


def main() -> None:
    """Runs the command line."""
    run_guarded(app)
