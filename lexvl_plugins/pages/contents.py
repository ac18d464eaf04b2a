"""What a process reads: the number of pages of a file, and the picture or the words of a page.

A TIFF has as many pages as pictures; any other file of a picture is one page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lexvl_anserini.data.corpora.files import suffix_of
from lexvl_anserini.data.pictures.images import decoded, decoder_errors, open_source, opened
from lexvl_anserini.data.pictures.references import PageReference
from lexvl_anserini.ground.errors import DataError
from lexvl_plugins.pages import ocr, pdf
from lexvl_plugins.pages.page import OCR, TEXT_LAYER, PageWords

if TYPE_CHECKING:
    from PIL.Image import Image

# The longer side of the picture of a page in pixels: an A4 page has 137 dpi, at which OCR loses no word of 10 points.
LONGEST = 1600


class Pages(NamedTuple):
    """The number of pages of a file, and whether the file has an end: else pages may be missing."""

    number: int
    whole: bool = True


class Rendered(NamedTuple):
    """An RGB picture: width and height, and its bytes row by row."""

    size: tuple[int, int]
    data: bytes


def count_pages(where: str) -> Pages:
    """The pages of a file."""
    if suffix_of(where) == pdf.SUFFIX:
        return Pages(pdf.count_pages(where), pdf.is_whole(where))
    with decoder_errors(where), open_source(where) as source, opened(source, where) as image:
        return Pages(_count_frames(image))


def render_page(page: PageReference) -> Rendered:
    """The picture of a page."""
    picture = draw_page(page)
    return Rendered(picture.size, picture.tobytes())


def read_page(page: PageReference) -> PageWords:
    """The words of the text layer where it has any, else those that OCR reads in the picture."""
    if suffix_of(page.file) == pdf.SUFFIX and (words := pdf.read_text_layer(page)):
        return PageWords(words, TEXT_LAYER)
    return PageWords(ocr.read_picture(draw_page(page)), OCR)


def draw_page(page: PageReference, longest: int = LONGEST) -> Image:
    """A page as an upright RGB picture whose longer side has at most so many pixels; JPEG is decoded smaller."""
    if suffix_of(page.file) == pdf.SUFFIX:
        return pdf.draw_page(page, longest)
    where = str(page)
    with decoder_errors(where), open_source(page.file) as source, opened(source, where) as image:
        if page.page > _count_frames(image):
            raise DataError(f"{page}: no such page; the file has {_count_frames(image):,}")
        if page.page > 1:
            image.seek(page.page - 1)
        image.draft("RGB", (longest, longest))
        picture = decoded(image, where)
    picture.thumbnail((longest, longest))
    return picture


def _count_frames(image: Image) -> int:
    return int(getattr(image, "n_frames", 1)) if image.format == "TIFF" else 1
