"""Answers over pages as they are drawn: words framed, the rest a map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lexvl_eval.report.answers import TypedAnswer, with_map
from lexvl_eval.report.strips import Cell, Item, Strip

from lexvl_anserini.data.checks import unescape_id
from lexvl_anserini.data.entries import printable
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.engines.analysis import word_analysis
from lexvl_anserini.searching.shared_terms import Explanation, SharedTerm
from lexvl_plugins.pages.answering import IMAGE, TEXT, boxes_of, framed, matched, snippet
from lexvl_plugins.pages.reading import read_words

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

# Below a picture in which no word is read.
NO_WORDS = "no words in it"


def strips_of_read(
    answers: Sequence[TypedAnswer], reference_of: Callable[[str], str], pictures: Encoder | None
) -> list[Strip]:
    """Typed queries with their first hits.

    Args:
        reference_of: the picture of a document, by its id.
        pictures: the encoder of the field `image`; None without such a field.
    """
    return [
        Strip(
            Item(answer.note, None, answer.text),
            tuple(_cell(why, reference_of(why.doc_id), pictures) for why in answer.hits),
        )
        for answer in answers
    ]


def _cell(why: Explanation, reference: str, pictures: Encoder | None) -> Cell:
    words = read_words(reference).words
    terms = frozenset(term.term for term in _own(why, TEXT))
    numbers = matched(words, terms, word_analysis(BM25Settings())) if terms else []
    image = open_image(reference)
    cell = Cell(Item(printable(unescape_id(why.doc_id)), image, ""), why.score, False, _own(why, IMAGE), ())
    if pictures is not None:
        from lexvl_anserini.encoders.parts.images.grounding import image_side

        image = with_map(cell, image_side(pictures)).item.image or image
    item = cell.item._replace(image=framed(image, boxes_of(words, numbers)))
    terms_shown = why.terms if pictures is not None else _own(why, TEXT)
    return cell._replace(item=item, terms=terms_shown, note=snippet(words, numbers) or NO_WORDS)


def _own(why: Explanation, field: str) -> tuple[SharedTerm, ...]:
    """The terms of a field, without its name."""
    return tuple(t._replace(term=t.term.removeprefix(f"{field}:")) for t in why.terms if t.field == field)
