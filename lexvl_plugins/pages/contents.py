"""What a worker reads: of a file its number of pages, of a page its picture or its words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lexvl_anserini.data.corpora.folder import suffix_of
from lexvl_anserini.data.pictures.archives import PageReference
from lexvl_plugins.pages import ocr, pdf, scans
from lexvl_plugins.pages.page import OCR, TEXT_LAYER, PageWords

if TYPE_CHECKING:
    from PIL.Image import Image

# Rendered of the longer side of a page: an A4 page has 137 dpi, at which OCR loses no word of 10 points.
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
    return Pages(scans.count_pages(where))


def pixels_of(page: PageReference) -> Rendered:
    """The picture of a page."""
    picture = _picture_of(page)
    return Rendered(picture.size, picture.tobytes())


def words_of(page: PageReference) -> PageWords:
    """The words of the text layer where it has any, else those that OCR reads in the picture."""
    if suffix_of(page.file) == pdf.SUFFIX and (words := pdf.words_of(page)):
        return PageWords(words, TEXT_LAYER)
    return PageWords(ocr.words_of(_picture_of(page)), OCR)


def _picture_of(page: PageReference) -> Image:
    return (pdf if suffix_of(page.file) == pdf.SUFFIX else scans).picture_of(page, LONGEST)
