"""An index of the pages in a folder, and its answers as they are drawn: matched words framed, with the words around.

    ALBUM/words/      texts of the pages (`encode --encoder bm25`); skipped.jsonl lists unreadable pages
    ALBUM/pictures/   terms of their pictures, if an encoder of pictures is named
    ALBUM/joined/     both as the fields `text` and `image`
    ALBUM/index/

BM25 weighs a word by its frequency in all pages, so a change of the folder indexes all pages anew. That reads only new
and changed files, because words are remembered (`reading.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from lexvl_eval.report.answers import TypedAnswer, with_map
from lexvl_eval.report.strips import Cell, Item, Strip

from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.lucene.fields import load_word_analysis
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import Index
from lexvl_anserini.shards.fields import join_fields
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.pages.page import SOFT_HYPHEN, Box, Word, join_words
from lexvl_plugins.pages.reading import read_words
from lexvl_plugins.photos.answers import format_name, select_terms

if TYPE_CHECKING:
    from PIL.Image import Image

    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.ground.manifest import Manifest
    from lexvl_anserini.searching.shared_terms import Explanation

# The fields of the index, and the folder of the texts.
TEXT, IMAGE = "text", "image"
WORDS = "words"

# Words of a snippet before and after the first matched word.
BEFORE, AFTER = 2, 8

# Below a picture in which no word is read.
NO_WORDS = "no words in it"

# A frame: its colour, the light of the marker inside it, its width as a share of the picture's longer side; the colour
# of the edge, without which a page is no shape on white.
INK, MARKER, THICK, EDGE = (200, 60, 0, 255), (255, 214, 0, 90), 1 / 250, (140, 149, 159, 255)


def update_album(
    dataset: Dataset, album: Path, pictures: Encoder | None = None, progress: Progress = silent
) -> tuple[Manifest, Index]:
    """Brings the index of a corpus of pages up to date; an unchanged corpus is read and nothing is written.

    Returns the manifest of the texts, whose counts are those of all pages, and the index.

    Args:
        dataset: `pages:PATH`.
        album: the folder of the index and its shards.
        pictures: a lexical encoder that reads pictures; its terms are the field `image`.
        progress: called with the number of pages of a step that are done.
    """
    layout = Layout(metadata=True)
    write = partial(write_impacts, dataset, layout=layout, overwrite=True, progress=progress, on_error="skip")
    fields, joined = {TEXT: album / WORDS}, album / "joined"
    manifest = write(load_encoder("bm25"), fields[TEXT])
    if pictures is not None:
        fields[IMAGE] = album / "pictures"
        write(pictures, fields[IMAGE])
    join_fields(fields, joined, load_word_analysis, overwrite=True)
    return manifest, build_index(joined, album / "index", overwrite=True)


def match_words(
    words: Sequence[Word], terms: frozenset[str], analyse: Callable[[str], Iterable[str]]
) -> list[tuple[int, ...]]:
    """The numbers of the words on a page that have a term of BM25; two numbers of one that a line end divides."""
    has_term = cache(lambda text: not terms.isdisjoint(analyse(text)))
    text, numbers, matched = "", tuple[int, ...](), list[tuple[int, ...]]()
    for number, word in enumerate(words):
        text, numbers = text + word.text, (*numbers, number)
        divided, text = text.endswith(SOFT_HYPHEN), text.removesuffix(SOFT_HYPHEN)
        if divided and number + 1 < len(words):
            continue
        if has_term(text):
            matched.append(numbers)
        text, numbers = "", ()
    return matched


def find_words(
    reference: str, terms: Collection[str], settings: BM25Settings = BM25Settings()
) -> tuple[str, list[Box]]:
    """The words around the first with a term of BM25 on a page (as of `read_words`), and the boxes of all with one."""
    words = read_words(reference).words
    numbers = match_words(words, frozenset(terms), load_word_analysis(settings)) if terms else []
    return cut_snippet(words, numbers), [words[number].box for group in numbers for number in group]


def cut_snippet(words: Sequence[Word], numbers: Sequence[tuple[int, ...]]) -> str:
    """The words around the first matched word; of a page without one, its first words."""
    first = numbers[0][0] if numbers else 0
    begin, end = max(first - BEFORE, 0), first + AFTER
    text = join_words(words[begin:end])
    return f"{'… ' if begin else ''}{text}{' …' if end < len(words) else ''}"


def draw_frames(picture: Image, boxes: Iterable[Box]) -> Image:
    """A picture of a page with its edge, and its boxes marked and framed."""
    import PIL.Image
    import PIL.ImageDraw

    thick = max(2, round(max(picture.size) * THICK))
    marked = PIL.Image.new("RGBA", picture.size)
    draw = PIL.ImageDraw.Draw(marked)
    draw.rectangle((0, 0, picture.width - 1, picture.height - 1), outline=EDGE, width=thick)
    for box in boxes:
        left, top, right, bottom = (round(side * length) for side, length in zip(box, picture.size * 2, strict=True))
        draw.rectangle((left - thick, top - thick, right + thick, bottom + thick), MARKER, INK, thick)
    return PIL.Image.alpha_composite(picture.convert("RGBA"), marked).convert("RGB")


def build_strips(
    answers: Sequence[TypedAnswer], find_reference: Callable[[str], str], pictures: Encoder | None
) -> list[Strip]:
    """Typed queries with their first hits: matched words are framed, the terms of `pictures`, if any, are a map."""
    return [
        Strip(
            Item(answer.note, None, answer.text),
            tuple(_build_cell(why, find_reference(why.doc_id), pictures) for why in answer.hits),
        )
        for answer in answers
    ]


def _build_cell(why: Explanation, reference: str, pictures: Encoder | None) -> Cell:
    note, boxes = find_words(reference, [term.term for term in select_terms(why, TEXT)])
    image, of_image = open_image(reference), select_terms(why, IMAGE)
    cell = Cell(Item(format_name(why.doc_id), image, ""), why.score, False, of_image, (), note or NO_WORDS)
    if pictures is not None:
        from lexvl_anserini.encoders.parts.images.grounding import image_side

        image = with_map(cell, image_side(pictures)).item.image or image
    terms = why.terms if pictures is not None else select_terms(why, TEXT)
    return cell._replace(item=cell.item._replace(image=draw_frames(image, boxes)), terms=terms)
