"""The words that rapidocr reads in a picture: PP-OCRv6 small (in its wheel), run by ONNX Runtime on one thread.

Its models read Chinese, Japanese, and the languages of Latin letters. Lines upside down are not turned: the model that
would decide it turns upright lines too, and loses words of clean pages.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_plugins.pages.order import reading_order
from lexvl_plugins.pages.page import Box, Word

if TYPE_CHECKING:
    from PIL.Image import Image

    Corners = Sequence[tuple[float, float]]

# The detector enlarges a picture until its shorter side has 736 pixels. How often the longer side may have the shorter
# one, and pixels of the shorter one.
LONGER = 4
SHORTEST = 32

# The options of rapidocr. Processes read pages beside each other, so that each needs one thread.
_OPTIONS = {
    "Global.log_level": "error",
    "Global.use_cls": False,
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
}


def words_of(picture: Image) -> tuple[Word, ...]:
    """The words of an RGB picture, line by line in the order of `order.py`."""
    blue_first = np.ascontiguousarray(np.asarray(_padded(picture))[:, :, ::-1])
    read = _engine()(blue_first, return_word_box=True, return_single_char_box=True)
    if read.boxes is None:
        return ()
    lines = list(zip(read.txts, read.boxes.tolist(), read.word_results, strict=True))
    order = reading_order(np.hstack([read.boxes.min(1), read.boxes.max(1)]))
    return tuple(word for number in order for word in _words(*lines[number], picture.width, picture.height))


def _padded(picture: Image) -> Image:
    """The picture at the top left of a white one whose sides differ less, so that enlarging takes bounded memory."""
    import PIL.Image

    shortest = max(max(picture.size) // LONGER, SHORTEST)
    if min(picture.size) >= shortest:
        return picture
    canvas = PIL.Image.new("RGB", (max(picture.width, shortest), max(picture.height, shortest)), "white")
    canvas.paste(picture)
    return canvas


@cache
def _engine() -> Any:
    import cv2
    from rapidocr import RapidOCR

    cv2.setNumThreads(1)
    return RapidOCR(params=_OPTIONS)


def _words(text: str, corners: Corners, letters: Sequence[Any], width: int, height: int) -> Iterator[Word]:
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
        yield Word(unicodedata.normalize("NFC", word), Box.of(points, width, height))
