"""The words that rapidocr reads in a picture: PP-OCRv6 small (in its wheel), run by ONNX Runtime on one thread.

Its models read Chinese, Japanese, and the languages of Latin letters. Lines upside down are not turned: the model that
would decide it turns upright lines too, and loses words of clean pages.

Lines are read down one column, then down the next. Two rules say which of two lines comes first (Breuel, "High
performance document layout analysis", 2003): of lines above each other, the upper; and every line of a column to the
left before those to the right, down to a line across both.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_plugins.pages.page import Box, Word

if TYPE_CHECKING:
    from PIL.Image import Image

    Corners = Sequence[tuple[float, float]]

# The detector enlarges a picture until its shorter side has 736 pixels. How often the longer side may have the shorter
# one, and pixels of the shorter one.
LONGER = 4
SHORTEST = 32

# Lines beyond which a page keeps the order from the top: the rules compare three lines at a time.
MOST_LINES = 1000

# The options of rapidocr. Processes read pages beside each other, so that each needs one thread.
_OPTIONS = {
    "Global.log_level": "error",
    "Global.use_cls": False,
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
}


def read_picture(picture: Image) -> tuple[Word, ...]:
    """The words of an RGB picture, line by line in the order of `sort_lines`."""
    blue_first = np.ascontiguousarray(np.asarray(_pad(picture))[:, :, ::-1])
    read = _load_engine()(blue_first, return_word_box=True, return_single_char_box=True)
    if read.boxes is None:
        return ()
    lines = list(zip(read.txts, read.boxes.tolist(), read.word_results, strict=True))
    order = sort_lines(np.hstack([read.boxes.min(1), read.boxes.max(1)]))
    return tuple(word for number in order for word in _split_line(*lines[number], picture.width, picture.height))


def _pad(picture: Image) -> Image:
    """The picture at the top left of a white one whose sides differ less, so that enlarging takes bounded memory."""
    import PIL.Image

    shortest = max(max(picture.size) // LONGER, SHORTEST)
    if min(picture.size) >= shortest:
        return picture
    canvas = PIL.Image.new("RGB", (max(picture.width, shortest), max(picture.height, shortest)), "white")
    canvas.paste(picture)
    return canvas


@cache
def _load_engine() -> Any:
    import cv2
    from rapidocr import RapidOCR

    cv2.setNumThreads(1)
    return RapidOCR(params=_OPTIONS)


def _split_line(text: str, corners: Corners, letters: Sequence[Any], width: int, height: int) -> Iterator[Word]:
    """The words of a line: its text, its corners, and a text, a confidence and corners of each letter.

    rapidocr's own words end where the script changes. Where it does not say where the letters are, a word has the box
    of its line.
    """
    words = text.split()
    placed = len(letters) == sum(map(len, words))
    after = 0
    for word in words:
        before, after = after, after + len(word)
        points = [point for _, _, places in letters[before:after] for point in places] if placed else corners
        yield Word(unicodedata.normalize("NFC", word), Box.fit(points, width, height))


def sort_lines(boxes: np.ndarray) -> list[int]:
    """The numbers of lines in the order in which they are read.

    Where the rules contradict each other, the line that fewest others precede is next, of these the first.
    Boxes, float [n, 4], are left, top, right and bottom of each line in one unit, downwards; in an order from the top.
    """
    if not 1 < len(boxes) <= MOST_LINES:
        return list(range(len(boxes)))
    rows = [sorted(row, key=lambda number: boxes[number, 0]) for row in _join_rows(boxes)]
    whole = np.array([(*boxes[row, :2].min(0), *boxes[row, 2:].max(0)) for row in rows])
    return [number for place in _sort(_compare(whole)) for number in rows[place]]


def _join_rows(boxes: np.ndarray) -> list[list[int]]:
    """Lines, each of the pieces that have less than their height between: no column ends there."""
    from scipy.sparse.csgraph import connected_components

    left, top, right, bottom = boxes.T
    height, middle = bottom - top, (top + bottom) / 2
    lower = np.minimum(height[:, None], height)
    level = np.abs(middle[:, None] - middle) < lower / 2
    gap = np.maximum(left[:, None] - right, left - right[:, None])
    count, labels = connected_components(level & (np.abs(gap) < lower), directed=False)
    return [np.flatnonzero(labels == label).tolist() for label in range(count)]


def _compare(boxes: np.ndarray) -> np.ndarray:
    """Booleans [n, n]: whether line i comes before line j."""
    left, top, right, bottom = boxes.T
    middle = (top + bottom) / 2
    above = middle[:, None] < middle
    across = (left[:, None] < right) & (left < right[:, None])
    before = right[:, None] <= left
    for other in range(len(boxes)):
        # Line `other` parts what is above it on the right from what is below it on the left.
        before &= ~np.outer(across[other] & above[other], across[other] & above[:, other])
    return before | (across & above)


def _sort(before: np.ndarray) -> Iterator[int]:
    waits = before.sum(0)
    for _ in range(len(before)):
        place = int(waits.argmin())
        yield place
        waits = waits - before[place]
        waits[place] = len(before) + 1
