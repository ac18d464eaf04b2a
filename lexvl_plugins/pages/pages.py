"""The command `lexvl pages`: PDFs, scans and pictures of pages are read, indexed, asked, and the answers are drawn.

list -> read words (text layer or OCR) -> index -> search -> explain -> contact sheet

A second call reads only files that are new or changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from lexvl_eval.report.answers import TypedAnswer
from lexvl_eval.report.strips import draw_sheet
from lexvl_eval.sheet import DEFAULT_HITS, DEFAULT_TERMS

from lexvl_anserini.cli import Checkpoint, Device, Verbose, progress_bar, run
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.cards import direction_option
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.machine import expanded_path
from lexvl_anserini.searching.cuts import Cut
from lexvl_anserini.searching.searcher import EncoderChanges
from lexvl_anserini.searching.shared_terms import Explanation
from lexvl_anserini.shards.manifests import SKIPPED
from lexvl_plugins.pages.answering import PageAlbum, up_to_date
from lexvl_plugins.pages.corpus import reference_of
from lexvl_plugins.pages.read_answers import strips_of_read
from lexvl_plugins.photos.command import (
    DIRECTION,
    NAMED,
    SHEET,
    answers_of,
    default_output,
    lines_of,
    picture_of,
)

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.ground.manifest import Manifest

# The folder of all indexes that this command writes.
ALBUMS = "lexvl-pages"


def counted(manifest: Manifest, album: PageAlbum) -> Iterator[str]:
    """Lines about what is in the index, and what is not."""
    yield f"{manifest.counts.documents:,} pages in the index"
    if skipped := manifest.counts.skipped:
        rows = [orjson.loads(line) for line in (album.words / SKIPPED).read_bytes().splitlines()]
        named = ", ".join(picture_of(row["id"]) for row in rows[:NAMED])
        more = ", ..." if len(rows) > NAMED else ""
        yield f"{skipped:,} pages cannot be read ({named}{more}); {album.words / SKIPPED} says why"


def without_field(why: Explanation) -> Explanation:
    """An explanation whose terms have no field before them, for an index of words alone."""
    terms = tuple(term._replace(term=term.term.removeprefix(f"{term.field}:")) for term in why.terms)
    return Explanation(why.query_id, why.doc_id, why.score, terms, why.query_terms)


def ask(dataset: Dataset, album: PageAlbum, answers: Sequence[TypedAnswer], pictures: Encoder | None) -> None:
    """Prints the answers to queries and draws them."""
    for answer in answers:
        shown = answer if pictures is not None else answer._replace(hits=[without_field(why) for why in answer.hits])
        for line in lines_of(shown):
            typer.echo(line)
    sheet = album.path / SHEET
    strips = strips_of_read(answers, partial(reference_of, dataset.ref), pictures)
    draw_sheet(strips, sheet, DEFAULT_TERMS, maps=pictures is not None)
    typer.echo(f"\nqueries, their first pages and terms: {sheet}")


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of PDFs, scans and pictures, a .tar of one, or one file.")],
    queries: Annotated[list[str] | None, typer.Argument(help="What to look for; several in quotes.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the index and the sheet; default lexvl-pages/<name of FOLDER>.")
    ] = None,
    hits: Annotated[int, typer.Option(min=1, max=10, help="Pages per query.")] = DEFAULT_HITS,
    min_score: Annotated[
        str | None, typer.Option(help="Least score of a hit: 300, or 20% of the greatest that a page could have.")
    ] = None,
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
    cut = None if min_score is None else Cut.of(min_score)
    place = expanded_path(folder).resolve()
    album = PageAlbum(output or default_output(place, Path.cwd(), ALBUMS))
    if any(not query.strip() for query in queries or ()):
        raise UsageError("a query is empty; give words in quotes, or no query to bring the index up to date")
    if album.path.resolve().is_relative_to(place):
        raise UsageError(f"--output {album.path}: it is in {place}, among the pages; name a folder outside")
    if checkpoint and not picture:
        raise UsageError("--checkpoint is of --picture; name the encoder too")
    dataset = load_dataset(f"pages:{place}", escape_ids=True, direction=DIRECTION)
    pictures = picture and load_encoder(picture, checkpoint, device=device, **direction_option(picture, DIRECTION))
    with exclusive(album.path):
        with progress_bar("pages", None, "pages") as progress:
            manifest, index = up_to_date(dataset, album, pictures or None, progress)
        for line in counted(manifest, album):
            typer.echo(line)
    if queries:
        answers = answers_of(index, EncoderChanges().load(index.manifest), queries, hits, cut)
        ask(dataset, album, answers, pictures or None)
    else:
        typer.echo(f'to ask: lexvl pages {folder} "terms of payment"')
    typer.echo(f"done in {time.perf_counter() - started:.0f} s; everything is in {album.path}/")


if __name__ == "__main__":
    run(command)
