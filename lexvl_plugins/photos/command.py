"""Your own pictures: one command encodes what is new in a folder, indexes it, answers queries and draws the answers.

DIR/index/            the index, for `search`, `explain`, `localise` and `sheet`
DIR/contact-sheet.png
DIR/unreadable.jsonl  the pictures that cannot be read, and why, if there are any
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from lexvl_eval.report.answers import make_answer_strips
from lexvl_eval.report.strips import draw_sheet
from lexvl_eval.sheet import DEFAULT_TERMS

from lexvl_anserini.cli import Checkpoint, Device, Verbose, expand_options, run
from lexvl_anserini.data.corpora.folder import load_pictures
from lexvl_anserini.encoders.cards import choose_encoder, make_direction_option
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.progress import progress_bar
from lexvl_anserini.ground.records import CorpusRef
from lexvl_anserini.searching.searcher import Index
from lexvl_plugins.photos.answers import DIRECTION, SHEET, AskOptions, format_unreadable
from lexvl_plugins.photos.following import Album, Differences, Followed, compare, follow

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_plugins.photos.command")


def read_folder(folder: Path) -> Dataset:
    """The pictures of a folder (or tar), by its absolute path; names may have spaces."""
    return load_pictures(CorpusRef(f"folder:{folder}", escape_ids=True, direction=DIRECTION))


def describe_differences(differences: Differences, album: Album) -> str:
    """A line about what there is to do."""
    pictures, changed = len(differences.to_encode), differences.changed
    if not pictures:
        return "no new or changed picture, nothing to encode"
    if differences.manifest is None and album.index.exists():
        return f"the index is of another checkpoint: all {pictures:,} pictures are encoded anew"
    return f"{pictures - changed:,} new and {changed:,} changed pictures to encode"


def describe_changes(done: Followed, album: Album) -> Iterator[str]:
    """Lines about what was done."""
    changes = {"added": done.added, "replaced": done.replaced, "removed": done.removed}
    listed = ", ".join(f"{count:,} {what}" for what, count in changes.items() if count)
    yield f"{done.documents:,} pictures in the index" + (f": {listed}" if listed else ", unchanged")
    if done.unreadable:
        yield format_unreadable([picture.id for picture in done.unreadable], "", album.unreadable)


def update_album(dataset: Dataset, model: Encoder, album: Album) -> Followed:
    """Brings the index up to date, with a bar."""
    differences = compare(dataset, model, album)
    log.info("%s", describe_differences(differences, album))
    with progress_bar("encode", len(differences.to_encode), "pictures") as progress:
        return follow(dataset, model, album, differences, progress)


@expand_options
def command(
    folder: Annotated[Path, typer.Argument(help="Folder of pictures, or an uncompressed .tar of one.")],
    asking: AskOptions,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
    verbose: Verbose = False,
) -> None:
    """Search your own pictures: encode what is new in a folder, index it, answer queries, draw a contact sheet.

    Without a query, only the index is brought up to date.

    Example: lexvl photos FOLDER "two dogs on a beach" "a birthday cake"
    """
    started = time.perf_counter()
    pictures, place = asking.find_places(folder, "lexvl-photos", "pictures")
    album, dataset = Album(place), read_folder(pictures)
    name, for_photos = choose_encoder(dataset.name, DIRECTION)
    model = load_encoder(name, checkpoint or for_photos, device=device, **make_direction_option(name, DIRECTION))
    with exclusive(place):
        for line in describe_changes(update_album(dataset, model, album), album):
            typer.echo(line)
        index = Index(album.index, index_manifest(album.index))
    if asking.queries:
        answers = asking.answer(index, model)
        draw_sheet(make_answer_strips(dataset, index, model, answers), place / SHEET, DEFAULT_TERMS)
        typer.echo(f"\nqueries, their first pictures and terms: {place / SHEET}")
    else:
        typer.echo(f'to ask: lexvl photos {folder} "two dogs on a beach"')
    typer.echo(f"done in {time.perf_counter() - started:.0f} s; everything is in {place}/")


if __name__ == "__main__":
    run(command)
