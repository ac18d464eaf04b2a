"""Your own pictures: one command encodes a folder, indexes it, answers queries and draws the answers.

list -> compare with the index -> encode what is new or changed -> index -> search -> explain -> contact sheet

    DIR/index/            the index, for `search`, `explain`, `localise` and `sheet`
    DIR/contact-sheet.png
    DIR/unreadable.jsonl  the pictures that cannot be read, and why, if there are any

A second call encodes only pictures that are new or changed, and drops those that are gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from lexvl_eval.report.answers import TypedAnswer, strips_of_answers
from lexvl_eval.report.strips import draw_sheet
from lexvl_eval.sheet import DEFAULT_HITS, DEFAULT_TERMS

from lexvl_anserini.cli import Checkpoint, Device, Verbose, progress_bar, run
from lexvl_anserini.data.checks import unescape_id
from lexvl_anserini.data.corpora.folder import load_pictures
from lexvl_anserini.data.lines import printable
from lexvl_anserini.encoders.cards import default_encoder, direction_option
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.machine import expanded_path
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.searching.cuts import Cut
from lexvl_anserini.searching.index import Index
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.searching.shared_terms import explain
from lexvl_plugins.photos.following import Album, Differences, Followed, compare, follow

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_plugins.photos.command")

DIRECTION = "text-to-image"

# The folder of all albums, and the picture of the answers in an album.
ALBUMS = "lexvl-photos"
SHEET = "contact-sheet.png"

# What is said where a cut leaves no hit.
NOTHING = "nothing fits; nearest"

# Terms printed beside a hit, and unreadable pictures named.
PRINTED_TERMS = 6
NAMED = 3


def default_output(folder: Path, here: Path, albums: str = ALBUMS) -> Path:
    """`lexvl-photos/NAME` in the working folder `here`, or beside the folder of pictures if `here` is in it."""
    return (folder.parent if here.is_relative_to(folder) else Path()) / albums / folder.name


def pictures_in(folder: Path) -> Dataset:
    """The pictures of a folder (or tar), by its absolute path; names may have spaces."""
    return load_pictures(CorpusRef(f"folder:{folder}", escape_ids=True, direction=DIRECTION))


def picture_of(doc_id: str) -> str:
    """The path of a picture below the folder, on one line."""
    return printable(unescape_id(doc_id))


def changes_ahead(differences: Differences, album: Album) -> str:
    """A line about what there is to do."""
    pictures, changed = len(differences.to_encode), differences.changed
    if not pictures:
        return "no new or changed picture, nothing to encode"
    if differences.manifest is None and album.index.exists():
        return f"the index is of another checkpoint: all {pictures:,} pictures are encoded anew"
    return f"{pictures - changed:,} new and {changed:,} changed pictures to encode"


def changes_made(done: Followed, album: Album) -> Iterator[str]:
    """Lines about what was done."""
    changes = {"added": done.added, "replaced": done.replaced, "removed": done.removed}
    listed = ", ".join(f"{count:,} {what}" for what, count in changes.items() if count)
    yield f"{done.documents:,} pictures in the index" + (f": {listed}" if listed else ", unchanged")
    if done.unreadable:
        named = ", ".join(picture_of(picture.doc_id) for picture in done.unreadable[:NAMED])
        more = ", ..." if len(done.unreadable) > NAMED else ""
        yield f"{len(done.unreadable):,} cannot be read ({named}{more}); {album.unreadable} says why"


def lines_of(answer: TypedAnswer) -> Iterator[str]:
    """A query and its hits: rank, score, picture, and the share of the score that each of the first terms has."""
    yield f'\n"{answer.text}"' + (f"  {answer.note}:" if answer.note else "")
    width = max((len(picture_of(hit.doc_id)) for hit in answer.hits), default=0)
    for rank, hit in enumerate(answer.hits, start=1):
        terms = ", ".join(f"{term.term} {term.product / hit.score:.0%}" for term in hit.terms[:PRINTED_TERMS])
        yield f"{rank:3}  {hit.score:6}  {picture_of(hit.doc_id):{width}}  {terms}"
    if not answer.hits:
        yield "  nothing here has a term of this query"


def knows(model: Encoder, query: str) -> bool:
    """Whether a word of the query is a term of the model, so that pictures are found by more than associations."""
    knows: Callable[[str], bool] | None = getattr(model.query, "knows", None)
    return knows is None or knows(query)


def updated(dataset: Dataset, model: Encoder, album: Album) -> Followed:
    """Brings the index up to date, with a bar."""
    differences = compare(dataset, model, album)
    log.info("%s", changes_ahead(differences, album))
    with progress_bar("encode", len(differences.to_encode), "pictures") as progress:
        return follow(dataset, model, album, differences, progress)


def answers_of(index: Index, model: Encoder, queries: Sequence[str], hits: int, cut: Cut | None) -> list[TypedAnswer]:
    """The hits of each query, explained, the best first; where none has the least score, the nearest with a note."""
    answers = []
    with Searcher(index, model) as searcher:
        for query in queries:
            listed = searcher.search(query, hits)
            fitting = searcher.search(query, hits, cut=cut) if cut else listed
            explained = explain(index, query, (fitting or listed).doc_ids, model=model)
            answers.append(TypedAnswer(query, explained, "" if fitting or not listed else NOTHING))
    return answers


def ask(dataset: Dataset, model: Encoder, album: Album, index: Index, answers: Sequence[TypedAnswer]) -> None:
    """Prints the answers to queries and draws them."""
    for answer in answers:
        for line in lines_of(answer):
            typer.echo(line)
        if not knows(model, answer.text):
            typer.echo("  no word of this query is a term of the model (English words of captions): expect little")
    sheet = album.path / SHEET
    draw_sheet(strips_of_answers(dataset, index, model, answers), sheet, DEFAULT_TERMS)
    typer.echo(f"\nqueries, their first pictures and terms: {sheet}")


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of pictures, or an uncompressed .tar of one.")],
    queries: Annotated[list[str] | None, typer.Argument(help="What to look for; several in quotes.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the index and the sheet; default lexvl-photos/<name of FOLDER>.")
    ] = None,
    hits: Annotated[int, typer.Option(min=1, max=10, help="Pictures per query.")] = DEFAULT_HITS,
    min_score: Annotated[
        str | None, typer.Option(help="Least score of a hit: 300, or 16% of the greatest that a picture could have.")
    ] = None,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
    verbose: Verbose = False,
) -> None:
    """Search your own pictures: encode what is new in a folder, index it, answer queries, draw a contact sheet.

    Without a query, only the index is brought up to date.

    Example: lexvl photos FOLDER "two dogs on a beach" "a birthday cake"
    """
    started = time.perf_counter()
    cut = None if min_score is None else Cut.of(min_score)
    pictures = expanded_path(folder).resolve()
    album = Album(output or default_output(pictures, Path.cwd()))
    if any(not query.strip() for query in queries or ()):
        raise UsageError("a query is empty; give words in quotes, or no query to bring the index up to date")
    if album.path.resolve().is_relative_to(pictures):
        raise UsageError(f"--output {album.path}: it is in {pictures}, among the pictures; name a folder outside")
    dataset = pictures_in(pictures)
    name, for_photos = default_encoder(dataset.name, DIRECTION)
    model = load_encoder(name, checkpoint or for_photos, device=device, **direction_option(name, DIRECTION))
    with exclusive(album.path):
        for line in changes_made(updated(dataset, model, album), album):
            typer.echo(line)
        index = Index(album.index, index_manifest(album.index))
    if queries:
        ask(dataset, model, album, index, answers_of(index, model, queries, hits, cut))
    else:
        typer.echo(f'to ask: lexvl photos {folder} "two dogs on a beach"')
    typer.echo(f"done in {time.perf_counter() - started:.0f} s; everything is in {album.path}/")


if __name__ == "__main__":
    run(command)
