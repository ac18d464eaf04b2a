"""Lists of words, one file a list."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FUNCTION_WORDS = Path(__file__).parents[1] / "assets" / "words" / "function-words.txt"


def function_words() -> frozenset[str]:
    """Words that name nothing in an image: articles, pronouns, prepositions, conjunctions, auxiliaries and so on."""
    return read_words(FUNCTION_WORDS)


@cache
def read_words(path: Path) -> frozenset[str]:
    """The words of a list, in lower case; a line that begins with # is a comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
