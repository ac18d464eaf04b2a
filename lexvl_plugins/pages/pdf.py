"""Pages of PDFs by PDFium: how many there are, their pictures, and the words of their text layer.

PDFium may crash or hang on a hostile file, and takes the memory that such a file demands: call it by `reading.start`.
"""

from __future__ import annotations

import ctypes
import io
import re
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexvl_anserini.data.lines import FileState, read_file_state
from lexvl_anserini.data.pictures.archives import PageReference, find_file
from lexvl_anserini.data.pictures.images import open_source
from lexvl_anserini.ground.errors import DataError
from lexvl_plugins.pages.page import SOFT_HYPHEN, Box, Word

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIX = ".pdf"

# A PDF ends with this mark, in its last so many bytes.
_END, _TAIL = b"%%EOF", 1024

# What PDFium's numbers of errors mean.
_REASONS = {
    2: "it cannot be read",
    3: "not a PDF, or a damaged one",
    4: "a password protects it",
    5: "it is encrypted in a way that PDFium does not know",
}

# The most pixels per point, 1/72 inch: small pages are not enlarged beyond 200 dpi.
_FINEST = 200 / 72

# A page's width and height in the numbers that PDFium places letters by.
_GRID = 1 << 16

# PDFium's mark of a hyphen that a line end brings; ligatures and Arabic letters by their shape, which no query has.
_HYPHEN = "\x02"
_SHAPED = re.compile("[\ufb00-\ufdff\ufe70-\ufefc]")

# Categories of letters that have no meaning outside their font, or none at all.
_UNKNOWN = frozenset({"Cc", "Cn", "Co"})


def count_pages(where: str) -> int:
    """The number of pages."""
    return len(_open(where, read_file_state(find_file(where))))


def is_whole(where: str) -> bool:
    """Whether the file ends as a PDF does; PDFium opens others if it can, but perhaps not all of their pages."""
    with open_source(where) as source:
        source.seek(max(source.seek(0, io.SEEK_END) - _TAIL, 0))
        return _END in source.read()


def draw_page(page: PageReference, longest: int) -> Image:
    """A page as an RGB picture whose longer side has at most so many pixels."""
    with closing(_load_page(page)) as loaded:
        scale = min(longest / max(*loaded.get_size(), 1.0), _FINEST)
        picture: Image = loaded.render(scale=scale).to_pil().convert("RGB")
        return picture


def read_text_layer(page: PageReference) -> tuple[Word, ...]:
    """The words of a page's text layer, in the order of PDFium."""
    with closing(_load_page(page)) as loaded:
        return tuple(word for letters in _split_runs(loaded.get_textpage()) if (word := _build_word(loaded, letters)))


# One document stays open, because its pages are read one after the other.
@lru_cache(maxsize=1)
def _open(where: str, state: FileState) -> Any:
    import pypdfium2

    # A PDF without pages fails with the number of an earlier error: let it be that of no PDF.
    pypdfium2.raw.FPDF_LoadMemDocument(b"-", 1, None)
    with open_source(where) as source:
        content: bytes | Path = source.getvalue() if isinstance(source, io.BytesIO) else find_file(where)
        if not source.seek(0, io.SEEK_END):
            raise DataError(f"{where}: it is empty")
    try:
        document = pypdfium2.PdfDocument(content)
        document.init_forms()
    except pypdfium2.PdfiumError as problem:
        code = getattr(problem, "err_code", None)
        raise DataError(f"{where}: {_REASONS.get(code or 0, str(problem))}") from problem
    return document


def _load_page(page: PageReference) -> Any:
    import pypdfium2

    document = _open(page.file, read_file_state(find_file(page.file)))
    if page.page > len(document):
        raise DataError(f"{page}: no such page; the file has {len(document):,}")
    try:
        return document[page.page - 1]
    except pypdfium2.PdfiumError as problem:
        raise DataError(f"{page}: a damaged page ({problem})") from problem


def _split_runs(text: Any) -> Iterator[list[tuple[str, tuple[float, ...]]]]:
    """The letters of each word of a text page, each with its left, right, bottom and top in points."""
    from pypdfium2 import raw

    sides = [ctypes.c_double() for _ in range(4)]
    run: list[tuple[str, tuple[float, ...]]] = []
    for number in range(text.count_chars()):
        letter = chr(raw.FPDFText_GetUnicode(text, number))
        raw.FPDFText_GetCharBox(text, number, *sides)
        place = tuple(side.value for side in sides)
        if letter == _HYPHEN:
            yield [*run, (SOFT_HYPHEN, place)]
            run = []
        elif letter.isspace():
            yield run
            run = []
        elif unicodedata.category(letter) not in _UNKNOWN:
            run.append((letter, place))
    yield run


def _build_word(page: Any, letters: list[tuple[str, tuple[float, ...]]]) -> Word | None:
    """The word of some letters; None of none. PDFium gives letters beyond U+FFFF in two halves."""
    halves = "".join(letter for letter, _ in letters)
    text = halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if not text.strip(SOFT_HYPHEN):
        return None
    text = _SHAPED.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    lefts, rights, bottoms, tops = zip(*(place for _, place in letters), strict=True)
    corners = [(min(lefts), min(bottoms)), (max(rights), max(tops))]
    return Word(unicodedata.normalize("NFC", text), Box.fit([_place(page, *c) for c in corners], _GRID, _GRID))


def _place(page: Any, across: float, up: float) -> tuple[float, float]:
    """A point of a page on the grid from its top left corner, after the page was cropped and turned."""
    from pypdfium2 import raw

    right, down = ctypes.c_int(), ctypes.c_int()
    raw.FPDF_PageToDevice(page, 0, 0, _GRID, _GRID, 0, across, up, right, down)
    return right.value, down.value
