"""The command `lexvl pages`: PDFs, scans and pictures of pages are read, indexed, asked, and the answers are drawn.

list -> read words (text layer or OCR) -> index -> search -> explain -> contact sheet

A second call reads only files that are new or changed.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import orjson
import typer
from lexvl_eval.report.strips import draw_sheet
from lexvl_eval.sheet import DEFAULT_TERMS

from lexvl_anserini.cli import Checkpoint, Device, Verbose, expand_options, run
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.cards import make_direction_option
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.progress import progress_bar
from lexvl_anserini.searching.search import EncoderChanges
from lexvl_anserini.shards.writing import SKIPPED
from lexvl_plugins.pages.answers import WORDS, build_strips, update_album
from lexvl_plugins.pages.corpus import find_reference
from lexvl_plugins.photos.answers import DIRECTION, SHEET, AskOptions, format_unreadable


@expand_options
def command(
    folder: Annotated[Path, typer.Argument(help="Folder of PDFs, scans and pictures, a .tar of one, or one file.")],
    asking: AskOptions,
    picture: Annotated[
        str | None, typer.Option(help="Also index terms of the pages' pictures, by this encoder, as a second field.")
    ] = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
    verbose: Verbose = False,
) -> None:
    """Search your own PDFs and scans: read what is new in a folder, index it, answer queries, draw a contact sheet.

    Without a query, only the index is brought up to date.

    Example: python -m lexvl_plugins.pages.pages FOLDER "terms of payment"
    """
    started = time.perf_counter()
    place, album = asking.find_places(folder, "lexvl-pages", "pages")
    if checkpoint and not picture:
        raise UsageError("--checkpoint is of --picture; name the encoder too")
    dataset = load_dataset(f"pages:{place}", escape_ids=True, direction=DIRECTION)
    options = {"device": device, **make_direction_option(picture, DIRECTION)} if picture else {}
    pictures = load_encoder(picture, checkpoint, **options) if picture else None
    with exclusive(album):
        with progress_bar("pages", None, "pages") as progress:
            manifest, index = update_album(dataset, album, pictures, progress)
        typer.echo(f"{manifest.counts.documents:,} pages in the index")
        if manifest.counts.skipped:
            list_of_skipped = album / WORDS / SKIPPED
            skipped = [orjson.loads(line)["id"] for line in list_of_skipped.read_bytes().splitlines()]
            typer.echo(format_unreadable(skipped, "pages ", list_of_skipped))
    if asking.queries:
        model = EncoderChanges().load(index.manifest)
        answers = asking.answer(index, model)
        strips = build_strips(answers, partial(find_reference, dataset.ref), pictures)
        draw_sheet(strips, album / SHEET, DEFAULT_TERMS, maps=pictures is not None)
        typer.echo(f"\nqueries, their first pages and terms: {album / SHEET}")
    else:
        typer.echo(f'to ask: lexvl pages {folder} "terms of payment"')
    typer.echo(f"done in {time.perf_counter() - started:.0f} s; everything is in {album}/")


if __name__ == "__main__":
    run(command)
