"""English words that name nothing in an image: articles, pronouns, prepositions, conjunctions, auxiliaries and so on.

The list is data, `lexvl_anserini/assets/words/function-words.txt`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

FILE = Path(__file__).parents[1] / "assets" / "words" / "function-words.txt"


@cache
def function_words() -> frozenset[str]:
    """The words of the list, in lower case."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
