"""Words that a user teaches an encoder: further terms, whose impacts follow from those of the encoder's own terms.

    x_w = (sum_t c_wt x_t + round(1000 b_w scale)) / 1000, rounded, from 0 to the largest impact

x_t is the impact of own term t in a document, c_wt a whole number of thousandths, b_w in units of weight, and `scale`
that of the index. The sum is one of integers. So a document has the same impact of a taught word on every machine,
whether it is encoded before the word is taught or after.

A query is searched for the names of the words. Each that is there is taken out of the text, and gets the largest weight
that the rest of the text has for a term.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.inputs import reads_images
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser, quantised
from lexvl_anserini.ground.typed import Entry, Key, check, check_text
from lexvl_anserini.ground.vocabulary import Vocabulary, check_term

if TYPE_CHECKING:
    from scipy import sparse

    from lexvl_anserini.encoders.encoder import Encoder

# The option of an encoder that has such words.
TAUGHT = "taught"

# The unit of coefficients.
UNIT = 1000

# Characters of a name.
LONGEST = 64

# Writing systems without blanks between words: a name is found wherever it is written.
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR")


class TaughtWord(Entry):
    """A taught word in a manifest, and in a file that `teach` exports.

    bias          b_w, in units of weight
    coefficients  c_wt by term, in thousandths
    pictures      the SHA-256 of the pictures that taught it
    held_out      see `searching.teaching`
    """

    bias: Key[float] = Key(0.0, required=True)
    coefficients: Key[Mapping[str, int]] = Key({}, required=True)
    pictures: Key[list[str]] = Key([])
    held_out: Key[float] = Key(0.0)


class TaughtEntry(Entry):
    """The option `taught` of an encoder.

    vocabulary  the digest of the encoder's own terms
    scale       impacts per unit of weight
    largest     the largest impact; None for no limit
    """

    vocabulary: Key[str] = Key("", required=True)
    scale: Key[float] = Key(1.0, required=True)
    largest: Key[int | None] = Key(None)
    words: Key[Mapping[str, Any]] = Key({}, required=True)


def term_of(name: str) -> str:
    """The term of a name: lower case, one `_` for white space.

    >>> term_of("Aunt  Miso")
    'aunt_miso'

    Raises:
        UsageError: no name that can be a term.
    """
    check_text("the word", name)
    term = "_".join(unicodedata.normalize("NFC", name).lower().split())
    if len(term) > LONGEST or not any(map(str.isalnum, term)):
        raise UsageError(
            f"the word {name[:LONGEST]!r}: expected a name with a letter or digit, of {LONGEST} characters"
        )
    try:
        check_term(term, "the word")
    except ArtefactError as error:
        raise UsageError(str(error)) from None
    return term


def pattern_of(term: str) -> re.Pattern[str]:
    """What finds the name of a term in a text, as a word of its own."""
    name = r"[\s_]+".join(map(re.escape, filter(None, term.split("_")))) or re.escape(term)
    first, last = term[0], term[-1]
    before, after = r"(?<!\w)" if _spaced(first) else "", r"(?!\w)" if _spaced(last) else ""
    return re.compile(before + name + after, re.IGNORECASE)


def _spaced(character: str) -> bool:
    """Whether a name that begins or ends so has blanks, or other marks, around it."""
    return character.isalnum() and not unicodedata.name(character, "").startswith(UNSPACED)


@dataclass(frozen=True)
class TaughtWords:
    """The taught words of an index.

    own    the encoder's terms
    entry  its option `taught`
    """

    own: Vocabulary
    entry: TaughtEntry

    @property
    def words(self) -> dict[str, TaughtWord]:
        """The words by term."""
        return {term: TaughtWord(word) for term, word in self.entry.words.items()}

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The encoder's terms, and after them the words."""
        return Vocabulary([*self.own.terms, *self.entry.words], "the terms with the taught words")

    @cached_property
    def matrix(self) -> sparse.csr_matrix:
        """Coefficients, CSR int64 [V, words]."""
        from scipy import sparse

        matrix = sparse.dok_matrix((len(self.own), len(self.entry.words)), dtype=np.int64)
        for column, word in enumerate(self.words.values()):
            for term, coefficient in word.coefficients.items():
                matrix[self.own.dimension[term], column] = coefficient
        return matrix.tocsr()

    def of_own(self, dimensions: Sequence[int]) -> sparse.csr_matrix:
        """Some terms and words as sums of own terms, CSR float [V, dimensions]."""
        from scipy import sparse

        every = sparse.hstack([sparse.identity(len(self.own), format="csc"), self.matrix / UNIT], "csc")
        return every[:, list(dimensions)].tocsr()

    def impacts(self, own: sparse.csr_matrix) -> np.ndarray:
        """The impacts of the words, int64 [n, words], from those of the own terms, CSR int64 [n, V]."""
        biases = [round(word.bias * self.entry.scale * UNIT) for word in self.words.values()]
        sums = (own.astype(np.int64) @ self.matrix).toarray() + np.array(biases, np.int64)
        return np.clip((sums + UNIT // 2) // UNIT, 0, self.entry.largest)

    def with_words(self, own: sparse.csr_matrix) -> sparse.csr_matrix:
        """Impacts of the own terms [n, V], and after them those of the words, [n, V + words]."""
        from scipy import sparse

        return sparse.hstack([own, sparse.csr_matrix(self.impacts(own))], "csr", dtype=np.int64)

    @cached_property
    def patterns(self) -> list[re.Pattern[str]]:
        """What finds each word in a text."""
        return [pattern_of(term) for term in self.entry.words]

    @cached_property
    def longest_first(self) -> list[int]:
        """The numbers of the words in the order in which a text is searched for them."""
        return sorted(range(len(self.patterns)), key=lambda n: -len(self.patterns[n].pattern))

    def taken_out(self, text: str) -> tuple[str, list[int]]:
        """A text without the names of words, the longest first, and the numbers of these words."""
        there, text = [], unicodedata.normalize("NFC", text) if self.patterns else text
        for number in self.longest_first:
            text, count = self.patterns[number].subn(" ", text)
            there += [number] if count else []
        return text, sorted(there)


class TaughtSide:
    """A side of an encoder with taught words; what is not here is that of the side below."""

    def __init__(self, below: Any, taught: TaughtWords):
        self.below, self.taught = below, taught

    def __getattr__(self, name: str) -> Any:
        if name in ("below", "taught", "csr_rows"):
            raise AttributeError(name)
        return getattr(self.below, name)

    @property
    def vocabulary(self) -> Vocabulary:
        """The encoder's terms, and after them the words."""
        return self.taught.vocabulary

    def dense_weights(self, inputs: Sequence[Any], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V + words] before the sparsifier; of the words, their weights."""
        weights = self.weights(inputs, batch_size)[:, len(self.taught.own) :].toarray()
        return np.concatenate([self.below.dense_weights(inputs, batch_size), weights], axis=1)

    def weights(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """CSR [n, V + words] float32."""
        raise NotImplementedError


class TaughtDocuments(TaughtSide):
    """The side of documents: a word's weight is its impact over the scale of the index."""

    def weights(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """CSR [n, V + words] float32."""
        from scipy import sparse

        own, entry = self.below.weights(inputs, batch_size, progress, on_error), self.taught.entry
        impacts = self.taught.impacts(quantised(own, entry.scale, entry.largest).impacts)
        return sparse.hstack([own, sparse.csr_matrix((impacts / entry.scale).astype(np.float32))], "csr")


class TaughtQueries(TaughtSide):
    """The side of texts: words are found by their names."""

    def knows(self, text: str) -> bool:
        """Whether a taught word or a term is in a text."""
        rest, words = self.taught.taken_out(text)
        return bool(words) or self.below.knows(rest)

    def weights(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """CSR [n, V + words] float32."""
        from scipy import sparse

        texts, words = zip(*map(self.taught.taken_out, inputs), strict=True) if inputs else ((), ())
        # A text of names alone has no rest, whatever the network gives for an empty text.
        rest = [n for n, text in enumerate(texts) if not words[n] or any(map(str.isalnum, text))]
        weights = self.below.weights([texts[n] for n in rest], batch_size, progress, on_error).tocoo()
        own = sparse.csr_matrix(
            (weights.data, (np.array(rest, np.int64)[weights.row], weights.col)), (len(texts), len(self.taught.own))
        )
        named = np.zeros((len(texts), len(self.taught.entry.words)), np.float32)
        for row, numbers in enumerate(words):
            largest = own.data[own.indptr[row] : own.indptr[row + 1]]
            named[row, numbers] = largest.max() if len(largest) else 1
        return sparse.hstack([own, sparse.csr_matrix(named)], "csr")


def plain(tower: Any) -> Any:
    """The side without taught words."""
    return tower.below if isinstance(tower, TaughtSide) else tower


def with_taught(model: Encoder, option: Mapping[str, Any] | None) -> Encoder:
    """An encoder with the taught words of an index; None and no words give the encoder without.

    Raises:
        ArtefactError: no such option, or one for other terms.
    """
    model = without_taught(model)
    if not option or not option.get("words"):
        return model
    check(option, TaughtEntry, "taught words", "teach them again")
    entry = TaughtEntry(option)
    if entry.vocabulary != model.vocabulary.digest:
        raise ArtefactError(
            f"taught words of the vocabulary {entry.vocabulary[:16]}, this encoder has {model.vocabulary.digest[:16]}; "
            "teach them again"
        )
    taught = TaughtWords(model.vocabulary, entry)
    for term, word in taught.entry.words.items():
        checked_word(word, taught.own, f"the taught word {term!r:.60}", "teach it again")
    of_queries = TaughtDocuments if reads_images(model.query) else TaughtQueries
    return replace(
        model,
        query=of_queries(model.query, taught),
        document=TaughtDocuments(model.document, taught),
        options={**model.options, TAUGHT: dict(option)},
    )


def without_taught(model: Encoder) -> Encoder:
    """The encoder without taught words."""
    if TAUGHT not in model.options:
        return model
    options = {key: value for key, value in model.options.items() if key != TAUGHT}
    return replace(model, query=plain(model.query), document=plain(model.document), options=options)


def checked_word(word: Any, own: Vocabulary, where: str, remedy: str) -> TaughtWord:
    """A word of a manifest or a file, whose coefficients name terms of the encoder.

    Raises:
        ArtefactError: it is no word, or one of other terms.
    """
    check(word, TaughtWord, where, remedy)
    if unknown := [term for term in word["coefficients"] if term not in own.dimension]:
        raise ArtefactError(f"{where}: {unknown[0]!r:.60} is no term of the encoder; {remedy}")
    return TaughtWord(word)


def side_of(quantiser: Mapping[str, Any]) -> SideQuantiser:
    """The quantiser of documents of an index to which words can be taught.

    Raises:
        UsageError: impacts without a common scale.
    """
    side = Quantiser.from_json(quantiser).settled().document
    if side.scheme != "fixed" or side.scale is None:
        raise UsageError(f"impacts of the scheme {side.scheme!r} have no common scale; words are taught to others")
    return side
