"""The words of a page, each with its box."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

# Where words come from.
TEXT_LAYER, OCR = "text layer", "ocr"

# A word that ends with it goes on in the next line: a hyphen that is not part of the word.
SOFT_HYPHEN = "\u00ad"

# Digits of a coordinate: a thousandth of a line of text.
_DIGITS = 4


class Box(NamedTuple):
    """A rectangle in fractions of the page's width and height; the origin is the top left corner."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def fit(cls, points: Iterable[tuple[float, float]], width: float, height: float) -> Self:
        """The box around points on a page of this size, which end at the edges of the page."""
        across, down = zip(*points, strict=True)
        sides = (min(across) / width, min(down) / height, max(across) / width, max(down) / height)
        return cls(*(round(min(max(side, 0.0), 1.0), _DIGITS) for side in sides))


class Word(NamedTuple):
    """A word without white space, and where it is."""

    text: str
    box: Box


class PageWords(NamedTuple):
    """The words of a page in reading order, and where they come from: `TEXT_LAYER` or `OCR`."""

    words: tuple[Word, ...]
    source: str

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {"source": self.source, "words": [[word.text, *word.box] for word in self.words]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The words that `to_json` wrote."""
        return cls(tuple(Word(text, Box(*sides)) for text, *sides in content["words"]), content["source"])


def join_words(words: Iterable[Word]) -> str:
    """The words with a blank between; a word that a line end divides is whole again.

    >>> join_words([Word("infor\u00ad", Box(0.8, 0.1, 0.9, 0.2)), Word("mation", Box(0.1, 0.2, 0.2, 0.3))])
    'information'
    """
    return " ".join(word.text for word in words).replace(f"{SOFT_HYPHEN} ", "")
