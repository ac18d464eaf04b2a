"""Your own pictures: one command encodes a folder, indexes it, answers queries and draws the answers.

list -> compare with the index -> encode what is new or changed -> index -> search -> group -> explain -> contact sheet

    DIR/index/            the index, for `search`, `explain`, `localise` and `sheet`
    DIR/contact-sheet.png
    DIR/unreadable.jsonl  the pictures that cannot be read, and why, if there are any

A second call encodes only pictures that are new or changed, and drops those that are gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from lexvl_eval.report.answers import TypedAnswer, documents_of, strips_of_answers
from lexvl_eval.report.strips import Strip, draw_sheet
from lexvl_eval.sheet import DEFAULT_HITS, DEFAULT_TERMS

from lexvl_anserini.cli import Checkpoint, Device, Verbose, expanded, progress_bar, run
from lexvl_anserini.data.checks import unescape_id
from lexvl_anserini.data.entries import printable
from lexvl_anserini.data.pictures.exif import BASIC, GPS, RANGE_KEYS, TEXT_KEYS, read_facts
from lexvl_anserini.encoders.cards import default_encoder, direction_option
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.index_folder import index_manifest, is_index
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.files import exclusive
from lexvl_anserini.ground.manifest import CorpusRef, read_manifest
from lexvl_anserini.ground.user_folders import expanded_path
from lexvl_anserini.runs.order import in_date_order
from lexvl_anserini.search import filter_of
from lexvl_anserini.searching.cuts import Cut
from lexvl_anserini.searching.following import Album, Differences, Followed, compare, follow, pictures_to_follow
from lexvl_anserini.searching.index import Index
from lexvl_anserini.searching.refine import Refinement
from lexvl_anserini.searching.searcher import EncoderChanges, Searcher
from lexvl_anserini.searching.shared_terms import explain

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.runs.order import RankedList

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_anserini.photos")

DIRECTION = "text-to-image"

# The folder of all albums, and the picture of the answers in an album.
ALBUMS = "lexvl-photos"
SHEET = "contact-sheet.png"

# What is said where a cut leaves no hit.
NOTHING = "nothing fits; nearest"

# The orders of a query's pictures.
ORDERS = (SCORE, OLDEST, NEWEST) = ("score", "date", "-date")

# Terms printed beside a hit, and unreadable pictures named.
PRINTED_TERMS = 6
NAMED = 3


def default_output(folder: Path, here: Path, albums: str = ALBUMS) -> Path:
    """`lexvl-photos/NAME` in the working folder `here`, or beside the folder of pictures if `here` is in it."""
    return (folder.parent if here.is_relative_to(folder) else Path()) / albums / folder.name


def pictures_in(folder: Path, extent: str | None = BASIC) -> Dataset:
    """The pictures of a folder (or tar), by its absolute path; names may have spaces. `extent` is of EXIF data."""
    return pictures_to_follow(CorpusRef(f"folder:{folder}", escape_ids=True, direction=DIRECTION, exif=extent))


def extent_of(album: Album, gps: bool | None) -> str:
    """What is read of EXIF data: with the place if that is wanted; None for what the index has."""
    if gps is None:
        gps = is_index(album.index) and read_manifest(album.index).corpus.exif == GPS
    return GPS if gps else BASIC


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


@dataclass(frozen=True)
class AnswerOptions:
    """Which pictures answer a query, and how they are listed."""

    hits: Annotated[int, typer.Option(min=1, max=10, help="Pictures per query.")] = DEFAULT_HITS
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only pictures that match: date:2019..2021, camera:pixel, orientation:portrait; repeatable."),
    ] = None
    sort: Annotated[str, typer.Option(help="Order of a query's pictures: score, date or -date (newest first).")] = SCORE
    min_score: Annotated[
        str | None, typer.Option(help="Least score of a hit: 300, or 16% of the greatest that a picture could have.")
    ] = None

    def check(self) -> None:
        """Raises UsageError for an unknown order, an expression or a score that cannot be read."""
        if self.sort not in ORDERS:
            raise UsageError(f"--sort {self.sort!r}: expected {', '.join(ORDERS[:-1])} or {ORDERS[-1]}")
        _ = self.cut, self.refinement

    @property
    def cut(self) -> Cut | None:
        """The least score; None for none."""
        return None if self.min_score is None else Cut.of(self.min_score)

    @property
    def refinement(self) -> Refinement | None:
        """What pictures must match; None for nothing."""
        return Refinement(where=filter_of(self.where, (), ())) if self.where else None


def find(searcher: Searcher, query: str, options: AnswerOptions) -> tuple[RankedList, bool]:
    """The pictures of a query, the best first; and whether they have the least score, or are the nearest."""
    listed: RankedList = searcher.search(query, options.hits, options.refinement)
    fitting = searcher.search(query, options.hits, options.refinement, cut=options.cut) if options.cut else listed
    return fitting or listed, bool(fitting) or not listed


class PhotoAnswer(NamedTuple):
    """The hits of a query, explained, and of each what is known of the picture."""

    typed: TypedAnswer
    remarks: Mapping[str, str] = {}


def lines_of(answer: PhotoAnswer) -> Iterator[str]:
    """A query and its hits: rank, score, picture, and the share of the score that each of the first terms has."""
    typed = answer.typed
    yield f'\n"{typed.text}"' + (f"  {typed.note}:" if typed.note else "")
    width = max((len(picture_of(hit.doc_id)) for hit in typed.hits), default=0)
    for rank, hit in enumerate(typed.hits, start=1):
        terms = ", ".join(f"{term.term} {term.product / hit.score:.0%}" for term in hit.terms[:PRINTED_TERMS])
        yield f"{rank:3}  {hit.score:6}  {picture_of(hit.doc_id):{width}}  {terms}"
        if remark := answer.remarks.get(hit.doc_id):
            yield f"{'':13}{remark}"
    if not typed.hits:
        yield "  nothing here has a term of this query" + answer.remarks.get("", "")


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


def index_of_words(dataset: Dataset, album: Album) -> Index:
    """Brings the index of the words in the pictures up to date, with a bar."""
    from lexvl_anserini.doors.pages.photo_words import with_words

    with progress_bar("read words", None, "pictures") as progress:
        return with_words(dataset, album, progress)


def answers_of(index: Index, model: Encoder, queries: Sequence[str], options: AnswerOptions) -> list[PhotoAnswer]:
    """The hits of each query, explained, the best first; where none has the least score, the nearest with a note."""
    with Searcher(index, model) as searcher:
        try:
            every = [find(searcher, query, options) for query in queries]
        except UnknownName as unknown:
            raise without_fact(unknown) from unknown
    none = {"": ", or none of those that match has one"} if options.where else {}
    answers = []
    for query, (hits, fit) in zip(queries, every, strict=True):
        explained = explain(index, query, hits.doc_ids, model=model)
        answers.append(PhotoAnswer(TypedAnswer(query, explained, "" if fit else NOTHING), none))
    return answers


def without_fact(unknown: UnknownName) -> UsageError:
    """The error of a condition on what EXIF data says if the index has it of no picture; else the error as it is."""
    key = unknown.name.removeprefix("meta.")
    if key not in (*TEXT_KEYS, *RANGE_KEYS):
        return unknown
    remedy = "; --gps indexes where pictures were taken" if key in ("latitude", "longitude") else ""
    return UsageError(f"--where {key}:...: no picture of this album has a {key} in its EXIF data{remedy}")


def with_facts(dataset: Dataset, answers: Sequence[PhotoAnswer], sort: str) -> list[PhotoAnswer]:
    """Answers with what is known of the pictures, in their order."""
    facts = facts_of(dataset, {hit.doc_id for answer in answers for hit in answer.typed.hits})
    complete = []
    for answer in answers:
        hits = {hit.doc_id: hit for hit in answer.typed.hits}
        remarks = {
            doc_id: ", ".join(str(value) for key, value in facts[doc_id].items() if key != "orientation")
            for doc_id in hits
        }
        ordered = [hits[doc_id] for doc_id in in_order(list(hits), facts, sort)]
        complete.append(
            answer._replace(typed=answer.typed._replace(hits=ordered), remarks={**answer.remarks, **remarks})
        )
    return complete


def facts_of(dataset: Dataset, doc_ids: Collection[str]) -> dict[str, Mapping[str, str | float]]:
    """What the EXIF data of some pictures say, by id."""
    documents = documents_of(dataset, doc_ids)
    return {
        doc_id: read_facts(documents[doc_id].image or "", dataset.exif or BASIC).metadata if doc_id in documents else {}
        for doc_id in doc_ids
    }


def in_order(doc_ids: Sequence[str], facts: Mapping[str, Mapping[str, str | float]], sort: str) -> list[str]:
    """Pictures by date, those of one date as before; pictures without a date are last."""
    if sort == SCORE:
        return list(doc_ids)
    return in_date_order(doc_ids, lambda doc_id: str(facts[doc_id].get("date", "")), sort == NEWEST)


def drawn(dataset: Dataset, index: Index, model: Encoder, answers: Sequence[TypedAnswer]) -> list[Strip]:
    """Answers as they are drawn; `index` is the album's own, or that of the words too."""
    if not index.manifest.fields:
        return strips_of_answers(dataset, index, model, answers)
    from lexvl_eval.report.read_answers import strips_of_read

    doc_ids = {why.doc_id for answer in answers for why in answer.hits}
    images = {doc_id: document.image or "" for doc_id, document in documents_of(dataset, doc_ids).items()}
    return strips_of_read(answers, images.__getitem__, model)


def ask(
    dataset: Dataset, model: Encoder, album: Album, index: Index, queries: Sequence[str], options: AnswerOptions
) -> None:
    """Prints the answers to queries and draws them."""
    fields = index.manifest.fields
    reader = EncoderChanges().load(index.manifest) if fields else model
    answers = with_facts(dataset, answers_of(index, reader, queries, options), options.sort)
    for answer in answers:
        for line in lines_of(answer):
            typer.echo(line)
        if not (fields or knows(reader, answer.typed.text)):
            typer.echo("  no word of this query is a term of the model (English words of captions): expect little")
    sheet = album.path / SHEET
    strips = drawn(dataset, index, model, [answer.typed for answer in answers])
    draw_sheet(strips, sheet, DEFAULT_TERMS, maps=bool(fields))
    typer.echo(f"\nqueries, their first pictures and terms: {sheet}")


@expanded
def command(
    folder: Annotated[Path, typer.Argument(help="Folder of pictures, or an uncompressed .tar of one.")],
    queries: Annotated[list[str] | None, typer.Argument(help="What to look for; several in quotes.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the index and the sheet; default lexvl-photos/<name of FOLDER>.")
    ] = None,
    *,
    options: AnswerOptions,
    gps: Annotated[
        bool | None,
        typer.Option("--gps/--no-gps", help="Index where pictures were taken, too; default as the index has it."),
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
    options.check()
    pictures = expanded_path(folder).resolve()
    album = Album(output or default_output(pictures, Path.cwd()))
    if any(not query.strip() for query in queries or ()):
        raise UsageError("a query is empty; give words in quotes, or no query to bring the index up to date")
    if album.path.resolve().is_relative_to(pictures):
        raise UsageError(f"--output {album.path}: it is in {pictures}, among the pictures; name a folder outside")
    dataset = pictures_in(pictures, extent_of(album, gps))
    name, for_photos = default_encoder(dataset.name, DIRECTION)
    model = load_encoder(name, checkpoint or for_photos, device=device, **direction_option(name, DIRECTION))
    with exclusive(album.path):
        for line in changes_made(updated(dataset, model, album), album):
            typer.echo(line)
        index = Index(album.index, index_manifest(album.index))
        if read_text:
            index = index_of_words(dataset, album)
    if queries:
        ask(dataset, model, album, index, queries, options)
    else:
        typer.echo(f'to ask: lexvl photos {folder} "two dogs on a beach"')
    typer.echo(f"done in {time.perf_counter() - started:.0f} s; everything is in {album.path}/")


if __name__ == "__main__":
    run(command)
