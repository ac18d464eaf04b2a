"""Questions to a folder of one's own and their answers: the hits that fit, else the nearest, printed and explained.

The commands `photos` and `pages` share all of it; the search page finds by `find` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from lexvl_eval.report.answers import TypedAnswer
from lexvl_eval.sheet import DEFAULT_HITS

from lexvl_anserini.data.checks import unescape_id
from lexvl_anserini.data.lines import printable
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import refuse_inside
from lexvl_anserini.ground.machine import expand_path
from lexvl_anserini.queries.clauses import build_clause
from lexvl_anserini.queries.query_source import build_typed_topic
from lexvl_anserini.searching.search import Cut, compute_least_score, parse_cut
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.searching.shared_terms import encode_topic, explain_documents

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.queries.clauses import Clause
    from lexvl_anserini.runs.order import RankedList
    from lexvl_anserini.searching.searcher import Index
    from lexvl_anserini.searching.shared_terms import Explanation, SharedTerm

DIRECTION = "text-to-image"
# The picture of the answers in an album.
SHEET = "contact-sheet.png"
NOTHING_FITS = "nothing fits; nearest"
UNKNOWN = "  no word of this query is a term of the model (English words of captions): expect little"
# Terms printed beside a hit, and files named that cannot be read.
PRINTED_TERMS = 6
NAMED = 3


@dataclass(frozen=True)
class AskOptions:
    """The options of a command over a folder: what it asks, and where it writes."""

    queries: Annotated[list[str] | None, typer.Argument(help="What to look for; several in quotes.")] = None
    output: Annotated[
        Path | None, typer.Option(help="Folder to write; default <name of FOLDER> in lexvl-photos or lexvl-pages.")
    ] = None
    hits: Annotated[int, typer.Option(min=1, max=10, help="Hits per query.")] = DEFAULT_HITS
    min_score: Annotated[
        str | None, typer.Option(help="Least score of a hit: 300, or 16% of the greatest that a document could have.")
    ] = None

    @property
    def cut(self) -> Cut | None:
        """The least score of a hit."""
        return None if self.min_score is None else parse_cut(self.min_score)

    def find_places(self, folder: Path, albums: str, documents: str) -> tuple[Path, Path]:
        """The folder without links, and the album of its index, which is never among its documents."""
        _ = self.cut
        if any(not query.strip() for query in self.queries or ()):
            raise UsageError("a query is empty; give words in quotes, or no query to bring the index up to date")
        place = expand_path(folder).resolve()
        album = self.output or choose_album(place, Path.cwd(), albums)
        refuse_inside(album, place, f"the {documents}")
        return place, album

    def answer(self, index: Index, model: Encoder) -> list[TypedAnswer]:
        """Prints the explained hits of each query, best first; where none has the least score, the nearest."""
        answers, fields = [], index.manifest.fields
        with Searcher(index, model) as searcher:
            engine: Any = searcher.engine
            for text in self.queries or ():
                query = encode_topic(build_typed_topic(text, None), model, index.manifest)
                listed, nearest = find(searcher, query, self.hits, cut=self.cut)
                hits = explain_documents(engine, query, listed.doc_ids, fields=fields)
                if len(fields) == 1:
                    hits = [replace(why, terms=select_terms(why, fields[0])) for why in hits]
                answers.append(TypedAnswer(text, hits, NOTHING_FITS if nearest else ""))
                typer.echo("\n".join(format_answer(answers[-1])))
                if not has_known_word(model, text):
                    typer.echo(UNKNOWN)
        return answers


def choose_album(folder: Path, here: Path, albums: str) -> Path:
    """`ALBUMS/NAME` in the working folder `here`, or beside the folder of documents if `here` is in it."""
    return (folder.parent if here.is_relative_to(folder) else Path()) / albums / folder.name


def find(
    searcher: Searcher, query: Any, hits: int, where: Clause | None = None, cut: Cut | None = None
) -> tuple[RankedList, bool]:
    """The hits of an encoded query that have the least score; where none has it, the nearest ones and True."""
    listed = searcher.search(query, hits, where=where)
    if cut is None:
        return listed, False
    engine: Any = searcher.engine
    fitting = listed.down_to(compute_least_score(cut, build_clause(query), engine) if cut.relative else cut.value)
    return fitting or listed, bool(listed) and not fitting


def has_known_word(model: Encoder, text: str) -> bool:
    """Whether a word of a query is a term of the model, so that documents are found by more than associations."""
    knows: Callable[[str], bool] | None = getattr(model.query, "knows", None)
    return knows is None or knows(text)


def select_terms(why: Explanation, field: str) -> tuple[SharedTerm, ...]:
    """The terms of a field, without its name."""
    return tuple(t._replace(term=t.term.removeprefix(f"{field}:")) for t in why.terms if t.field == field)


def format_name(doc_id: str) -> str:
    """The path of a document below its folder, on one line."""
    return printable(unescape_id(doc_id))


def format_unreadable(doc_ids: Sequence[str], what: str, where: Path) -> str:
    """A line that counts documents that cannot be read and names the first."""
    named = ", ".join(map(format_name, doc_ids[:NAMED])) + (", ..." if len(doc_ids) > NAMED else "")
    return f"{len(doc_ids):,} {what}cannot be read ({named}); {where} says why"


def format_answer(answer: TypedAnswer) -> Iterator[str]:
    """A query and its hits: rank, score, document, and the share of the score that each of the first terms has."""
    yield f'\n"{answer.text}"' + (f"  {answer.note}:" if answer.note else "")
    width = max((len(format_name(hit.doc_id)) for hit in answer.hits), default=0)
    for rank, hit in enumerate(answer.hits, start=1):
        terms = ", ".join(f"{term.term} {term.product / hit.score:.0%}" for term in hit.terms[:PRINTED_TERMS])
        yield f"{rank:3}  {hit.score:6}  {format_name(hit.doc_id):{width}}  {terms}"
    if not answer.hits:
        yield "  nothing here has a term of this query"
