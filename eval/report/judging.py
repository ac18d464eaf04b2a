"""Sheets by which people judge the terms of documents, alone or beside a caption of the same picture (VDR, appendix H).

There, a first group sees no picture: it marks which of a picture's 5 heaviest terms it understands, and takes up to 5
words from a caption that BLIP writes. A second group sees the picture and both sets of words, and says whether each set
captures the key concepts, and which set describes the picture better. Which set comes first is drawn for each picture,
and only the first sheet says whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lexvl_anserini.ground.errors import DataError

if TYPE_CHECKING:
    from ..analyses.terms import DocumentTerm

# Words of a set.
JUDGED = 5


class JudgedTerm(NamedTuple):
    """One of the first terms of a document, and whether a person understands it: empty until then."""

    document: str
    rank: int
    term: str
    weight: float
    understandable: str = ""


class JudgedWord(NamedTuple):
    """One word of a set: A or B, the model's terms or words of a caption, which have no weight."""

    document: str
    set: str
    side: str
    rank: int
    term: str
    weight: float
    understandable: str = ""


class PreferenceQuestion(NamedTuple):
    """The questions about one picture and its two sets of words; answers are empty until a person gives them."""

    document: str
    a: str
    b: str
    a_captures_the_key_concepts: str = ""
    b_captures_the_key_concepts: str = ""
    better: str = ""


def list_judged_terms(documents: Iterable[tuple[str, Sequence[DocumentTerm]]]) -> list[JudgedTerm]:
    """The first terms of some documents, for people to judge."""
    return [JudgedTerm(*term) for _, terms in documents for term in terms]


def list_judged_words(
    documents: Iterable[tuple[str, Sequence[DocumentTerm]]], captions: Mapping[str, Sequence[str]]
) -> tuple[list[JudgedWord], list[PreferenceQuestion]]:
    """The first terms of some documents beside the first words of their captions, and the questions of preference."""
    words: list[JudgedWord] = []
    preferences = []
    for document, terms in documents:
        if document not in captions:
            raise DataError(f"no caption for document {document!r}; the list has {len(captions):,}")
        of_caption = list(dict.fromkeys(captions[document]))[:JUDGED]
        if not of_caption:
            raise DataError(f"the caption of document {document!r} has no word but function words")
        if not terms:
            raise DataError(f"document {document!r} has no term; nothing can be preferred to its caption")
        sets = {"model": [(term.term, term.weight) for term in terms], "caption": [(w, np.nan) for w in of_caption]}
        order = ("model", "caption") if sha256(document.encode()).digest()[0] % 2 else ("caption", "model")
        for name, side in zip("AB", order, strict=True):
            words += [JudgedWord(document, name, side, rank, *word) for rank, word in enumerate(sets[side], start=1)]
        preferences.append(PreferenceQuestion(document, *(", ".join(word for word, _ in sets[side]) for side in order)))
    return words, preferences
