"""Lists of English words. The lists are data, `lexvl_anserini/assets/words/*.txt`; lines with # are comments."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "assets" / "words"
FUNCTION_WORDS, LEFT_OUT = FOLDER / "function-words.txt", FOLDER / "left-out-words.txt"


def function_words() -> frozenset[str]:
    """Words that name nothing in an image: articles, pronouns, prepositions, conjunctions, auxiliaries and so on."""
    return read_words(FUNCTION_WORDS)


def left_out_words() -> frozenset[str]:
    """Words that name something, and that a model must not say of a picture: people's descent, and monkeys."""
    return read_words(LEFT_OUT)


@cache
def read_words(path: Path) -> frozenset[str]:
    """The words of a list, in lower case."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
