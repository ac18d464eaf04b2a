"""An index of the pages in a folder, and its answers as they are drawn: matched words framed, with the words around.

    ALBUM/words/      texts of the pages (`encode --encoder bm25`); skipped.jsonl lists unreadable pages
    ALBUM/pictures/   terms of their pictures, if an encoder of pictures is named
    ALBUM/joined/     both as the fields `text` and `image`
    ALBUM/index/

BM25 weighs a word by its frequency in all pages, so a change of the folder indexes all pages anew. That reads only new
and changed files, because words are remembered (`reading.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.engines.analysis import word_analysis
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.index import Index
from lexvl_anserini.shards.fields import join_fields
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.pages.page import SOFT_HYPHEN, Box, Word
from lexvl_plugins.pages.reading import read_words

if TYPE_CHECKING:
    from PIL.Image import Image

    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.ground.manifest import Manifest

# The fields of the index.
TEXT, IMAGE = "text", "image"

LAYOUT = Layout(metadata=True)

# Words of a snippet before and after the first matched word.
BEFORE, AFTER = 2, 8

# A frame: its colour, the light of the marker inside it, its width as a share of the picture's longer side; the colour
# of the edge, without which a page is no shape on white.
INK, MARKER, THICK, EDGE = (200, 60, 0, 255), (255, 214, 0, 90), 1 / 250, (140, 149, 159, 255)


@dataclass(frozen=True)
class PageAlbum:
    """The folder of the index and the answers."""

    path: Path

    @property
    def words(self) -> Path:
        """The texts of the pages."""
        return self.path / "words"

    @property
    def pictures(self) -> Path:
        """The terms of their pictures."""
        return self.path / "pictures"

    @property
    def index(self) -> Path:
        """The folder of the index."""
        return self.path / "index"


def up_to_date(
    dataset: Dataset, album: PageAlbum, pictures: Encoder | None = None, progress: Progress = silent
) -> tuple[Manifest, Index]:
    """Brings the index of a corpus of pages up to date; an unchanged corpus is read and nothing is written.

    Args:
        dataset: `pages:PATH`.
        pictures: a lexical encoder that reads pictures; its terms are the field `image`.
        progress: called with the number of pages of a step that are done.

    Returns:
        The manifest of the texts, whose counts are those of all pages, and the index.

    Raises:
        DataError: no page can be read.
    """

    def write(encoder: Encoder, shards: Path) -> Manifest:
        return write_impacts(
            dataset, encoder, shards, layout=LAYOUT, overwrite=True, progress=progress, on_error="skip"
        )

    fields, joined = {TEXT: album.words}, album.path / "joined"
    manifest = write(load_encoder("bm25"), album.words)
    if pictures is not None:
        fields[IMAGE] = album.pictures
        write(pictures, album.pictures)
    join_fields(fields, joined, word_analysis, overwrite=True)
    return manifest, build_index(joined, album.index, overwrite=True)


class WholeWord(NamedTuple):
    """A word as it is searched, and its numbers on the page: two, if a line end divides it."""

    text: str
    numbers: tuple[int, ...]


def whole_words(words: Sequence[Word]) -> Iterator[WholeWord]:
    """The words of a page; one that a line end divides is whole again.

    >>> box = Box(0, 0, 1, 1)
    >>> [word.text for word in whole_words([Word("infor\u00ad", box), Word("mation", box), Word("desk", box)])]
    ['information', 'desk']
    """
    rest: tuple[str, tuple[int, ...]] = ("", ())
    for number, word in enumerate(words):
        text, numbers = rest[0] + word.text, (*rest[1], number)
        if text.endswith(SOFT_HYPHEN):
            rest = text[: -len(SOFT_HYPHEN)], numbers
            continue
        yield WholeWord(text, numbers)
        rest = "", ()
    if rest[1]:
        yield WholeWord(*rest)


def matched(
    words: Sequence[Word], terms: frozenset[str], analyse: Callable[[str], Iterable[str]]
) -> list[tuple[int, ...]]:
    """The numbers of the words on a page that have one of the terms of BM25, word by word."""
    having: dict[str, bool] = {}
    numbers = []
    for word in whole_words(words):
        if word.text not in having:
            having[word.text] = not terms.isdisjoint(analyse(word.text))
        if having[word.text]:
            numbers.append(word.numbers)
    return numbers


def boxes_of(words: Sequence[Word], numbers: Iterable[Iterable[int]]) -> list[Box]:
    """The boxes of matched words."""
    return [words[number].box for group in numbers for number in group]


def frames_of(reference: str, terms: Collection[str], settings: BM25Settings) -> list[Box]:
    """The boxes of the words on a page or picture that have one of the terms of BM25; arguments as of `read_words`."""
    words = read_words(reference).words
    return boxes_of(words, matched(words, frozenset(terms), word_analysis(settings)))


def snippet(words: Sequence[Word], numbers: Sequence[tuple[int, ...]]) -> str:
    """The words around the first matched word; of a page without one, its first words."""
    first = numbers[0][0] if numbers else 0
    begin, end = max(first - BEFORE, 0), first + AFTER
    text = " ".join(word.text for word in words[begin:end]).replace(f"{SOFT_HYPHEN} ", "")
    return f"{'… ' if begin else ''}{text}{' …' if end < len(words) else ''}"


def framed(picture: Image, boxes: Iterable[Box]) -> Image:
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
