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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from lexvl_eval.report.answers import TypedAnswer, documents_of, strips_of_answers
from lexvl_eval.report.strips import Strip, draw_sheet
from lexvl_eval.sheet import DEFAULT_HITS, DEFAULT_TERMS

from lexvl_anserini.cli import Checkpoint, Device, Verbose, progress_bar, run
from lexvl_anserini.data.checks import unescape_id
from lexvl_anserini.data.entries import printable
from lexvl_anserini.encoders.cards import default_encoder, direction_option
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.searching.cuts import Cut
from lexvl_anserini.searching.following import Album, Differences, Followed, compare, follow
from lexvl_anserini.searching.index import Index
from lexvl_anserini.searching.searcher import EncoderChanges, Searcher
from lexvl_anserini.searching.shared_terms import explain

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.photos")

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
    from lexvl_anserini.data.corpora.folder import load_pictures

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
    hits = answer.hits
    width = max((len(picture_of(hit.doc_id)) for hit in hits), default=0)
    for rank, hit in enumerate(hits, start=1):
        terms = ", ".join(f"{term.term} {term.product / hit.score:.0%}" for term in hit.terms[:PRINTED_TERMS])
        yield f"{rank:3}  {hit.score:6}  {picture_of(hit.doc_id):{width}}  {terms}"
    if not hits:
        yield "  nothing here has a term of this query"


def knows(model: Encoder, query: str) -> bool:
    """Whether a word of the query is a term of the model, so that pictures are found by more than associations."""
    from lexvl_anserini.encoders.parts.towers import TextTower

    tower = model.query
    return not isinstance(tower, TextTower) or len(tower.columns.own(tower.reader([query]))[0]) > 0


def updated(dataset: Dataset, model: Encoder, album: Album) -> Followed:
    """Brings the index up to date, with a bar."""
    differences = compare(dataset, model, album)
    log.info("%s", changes_ahead(differences, album))
    with progress_bar("encode", len(differences.to_encode), "pictures") as progress:
        return follow(dataset, model, album, differences, progress)


def index_of_words(dataset: Dataset, model: Encoder, album: Album) -> Index:
    """Brings the index of the words in the pictures up to date, with a bar."""
    from lexvl_anserini.doors.pages.photo_words import with_words

    with progress_bar("read words", None, "pictures") as progress:
        return with_words(dataset, model, album, progress)


def answers_of(index: Index, model: Encoder, queries: Sequence[str], hits: int, cut: Cut | None) -> list[TypedAnswer]:
    """The hits of each query, explained; where none has the least score, the nearest with a note."""
    answers = [TypedAnswer(query, explain(index, query, hits=hits, model=model)) for query in queries]
    if cut is None:
        return answers
    with Searcher(index, model) as searcher:
        fitting = [len(listed) for listed in searcher.search(list(queries), hits, cut=cut)]
    return [
        answer._replace(hits=answer.hits[:count]) if count else answer._replace(note=NOTHING if answer.hits else "")
        for answer, count in zip(answers, fitting, strict=True)
    ]


def answered(dataset: Dataset, index: Index, model: Encoder, answers: Sequence[TypedAnswer]) -> list[Strip]:
    """Answers as they are drawn; `index` is the album's own, or that of the words too."""
    if not index.manifest.fields:
        return strips_of_answers(dataset, index, model, answers)
    from lexvl_eval.report.read_answers import strips_of_read

    doc_ids = {why.doc_id for answer in answers for why in answer.hits}
    images = {doc_id: document.image or "" for doc_id, document in documents_of(dataset, doc_ids).items()}
    return strips_of_read(answers, images.__getitem__, model)


def ask(
    dataset: Dataset, model: Encoder, album: Album, index: Index, queries: Sequence[str], hits: int, cut: Cut | None
) -> None:
    """Prints the answers to queries and draws them."""
    reader = EncoderChanges().load(index.manifest) if index.manifest.fields else model
    answers = answers_of(index, reader, queries, hits, cut)
    for answer in answers:
        for line in lines_of(answer):
            typer.echo(line)
        if not (index.manifest.fields or knows(model, answer.text)):
            typer.echo("  no word of this query is a term of the model (English words of captions): expect little")
    sheet = album.path / SHEET
    strips = answered(dataset, index, model, answers)
    draw_sheet(strips, sheet, DEFAULT_TERMS, maps=bool(index.manifest.fields))
    typer.echo(f"\nqueries, their first pictures and terms: {sheet}")


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of pictures, or an uncompressed .tar of one.")],
    queries: Annotated[list[str] | None, typer.Argument(help="What to look for; several in quotes.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the index and the sheet; default lexvl-photos/<name of FOLDER>.")
    ] = None,
    hits: Annotated[int, typer.Option(min=1, max=10, help="Pictures per query.")] = DEFAULT_HITS,
    min_score: Annotated[
        str | None, typer.Option(help="Least score of a hit: 300, or 20% of the greatest that a picture could have.")
    ] = None,
    read_text: Annotated[
        bool, typer.Option("--read-text", help="Read the words in the pictures too, by OCR (extra [pages]).")
    ] = False,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
    verbose: Verbose = False,
) -> None:
    """Search your own pictures: encode what is new in a folder, index it, answer queries, draw a contact sheet.

    Without a query, only the index is brought up to date.

    Example: python -m lexvl_anserini.photos FOLDER "two dogs on a beach" "a birthday cake"
    """
    started = time.perf_counter()
    cut = None if min_score is None else Cut.of(min_score)
    pictures = folder.expanduser().resolve()
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
        if read_text:
            index = index_of_words(dataset, model, album)
    if queries:
        ask(dataset, model, album, index, queries, hits, cut)
    else:
        typer.echo(f'to ask: lexvl photos {folder} "two dogs on a beach"')
    typer.echo(f"done in {time.perf_counter() - started:.0f} s; everything is in {album.path}/")


if __name__ == "__main__":
    run(command)
