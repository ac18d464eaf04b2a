"""Long texts, cut where a reader of so many tokens stops: its time and memory do not grow with the text.

A tokenizer splits a text into words (pieces that it encodes one by one), and what it splits and changes depends on
characters nearby. The start of a text therefore has the same words as the whole text, but for those near the cut. How
far a word reaches is unknown before it ends, so the last word before the cut does not count either: of a text that a
tokenizer takes as one word, everything is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# Characters per token of a first start, and by what each further one is longer.
FIRST_LENGTH, LONGER = 16, 4

# Characters before a cut in which words may differ from the whole text's: no added token and no rule of a tokenizer
# reaches as far.
MARGIN = 1000

# (text, length) -> about so many characters of its start, or the whole text if it is not longer.
Start = Callable[[str, int], str]


def characters(text: str, length: int) -> str:
    """The first `length` characters."""
    return text[:length]


def starts(
    texts: Sequence[str], tokens: int, encode: Callable[[list[str]], Sequence[Any]], start: Start = characters
) -> list[str]:
    """The start of each text that has its first `tokens` tokens.

    Args:
        encode: texts -> their `tokenizers.Encoding`, without special tokens and not truncated.
        start: cuts a text; `start(text, len(text))` is the whole.
    """
    length = FIRST_LENGTH * tokens + MARGIN
    beginnings = [start(text, length) for text in texts]
    open_ends = [i for i, text in enumerate(texts) if len(text) > length]
    while open_ends:
        encodings = encode([beginnings[i] for i in open_ends])
        open_ends = [
            i for i, one in zip(open_ends, encodings, strict=True) if not is_certain(one, beginnings[i], tokens)
        ]
        length *= LONGER
        for i in open_ends:
            beginnings[i] = start(texts[i], length)
        open_ends = [i for i in open_ends if len(texts[i]) > length]
    return beginnings


def is_certain(encoding: Any, text: str, tokens: int) -> bool:
    """True if the first `tokens` tokens of `text`, the start of a longer one, are also the longer one's."""
    count = len(encoding)
    if count <= tokens:
        return False
    word = encoding.token_to_word(tokens - 1)
    # Rules about runs of blanks look at the end of the run.
    return word != encoding.token_to_word(count - 1) and encoding.word_to_chars(word)[1] <= len(text.rstrip()) - MARGIN
