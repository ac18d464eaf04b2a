"""Synthetic lexical vectors whose terms occur together: texts about topics, whose words bring related terms along.

SPLADE gives a text its words, and with lower weights the terms that it relates to each word; texts about one topic
share words. A mixture draws the same from a language of its own: a vocabulary, for each word its related terms, and for
each topic its words, all by Zipf's law with Mandelbrot's shift. A text is some words of one topic and some of none. A
term weighs as the heaviest of the words that bring it, with noise.

The numbers are fitted to mixtures of real vectors: 20,000 documents, each of a SPLADE++ (EnsembleDistil) query of MS
MARCO dev, five of its neighbours and a stranger. Fitted are the terms of a document and of a query (143 and 46, there
143 and 46), weights by rank, frequencies of terms, the postings that a query and a document share (3.7, there 4.2), and
how the scores of a query fall with the rank (the tenth is 0.69 of the first, there 0.77; the thousandth 0.17, there
0.20). Documents are less alike than there: the cosine with the third neighbour is 0.35, there 0.56; between the real
queries it is 0.36.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse

from lexvl_anserini.ground.errors import UsageError

LARGEST = 255

# A key of a posting: its row, its term, its impact, in so many bits.
TERM_BITS, IMPACT_BITS = 16, 8

# The language is the same for every seed of documents.
LANGUAGE = 7


class Language(NamedTuple):
    """What texts are drawn from.

    words    float64 [size], the cumulated probability of each word in a text
    related  int64 [size, related], the terms that a word brings, itself first
    topics   int64 [topics, topic_words], words
    """

    words: np.ndarray
    related: np.ndarray
    topics: np.ndarray


@dataclass(frozen=True)
class Mixture:
    """The distribution of vectors of at most `terms` terms; those of a query are as many as its words bring.

    size, exponent, shift          of the vocabulary, and of the law of related terms
    topics, topic_words            topics of so many words
    related, fall                  terms of a word: the weight of the n-th is exp(-n / fall) times the word's
    document_words, query_words    words of a text; the last `strangers` of a document, and the last of a query, belong
                                   to no topic
    heaviest, decay, noise         the word number n of a text weighs heaviest * exp(-n / decay), and each of its terms
                                   that times exp(noise * a normal number)
    """

    terms: int = 150
    size: int = 30_522
    exponent: float = 1.3
    shift: float = 150.0
    topics: int = 3000
    topic_words: int = 30
    related: int = 12
    fall: float = 4.0
    document_words: int = 16
    query_words: int = 4
    strangers: int = 2
    heaviest: float = 200.0
    decay: float = 8.0
    noise: float = 0.35

    def with_terms(self, terms: int) -> Mixture:
        """The same distribution with another greatest number of terms."""
        if not 1 <= terms <= self.size:
            raise UsageError(f"{terms} terms: expected 1 to {self.size}, the vocabulary's size")
        return replace(self, terms=terms)

    @cached_property
    def language(self) -> Language:
        """The language of all texts."""
        random = np.random.default_rng(LANGUAGE)
        ranks = np.arange(1, self.size + 1)
        # Words are chosen for what they mean: the most frequent are rarer among them than among related terms.
        words, terms = _cumulated((ranks + 60.0) ** -1.0), _cumulated((ranks + self.shift) ** -self.exponent)
        related = np.searchsorted(terms, random.random((self.size, self.related)))
        related[:, 0] = np.arange(self.size)
        return Language(words, related, np.searchsorted(words, random.random((self.topics, self.topic_words))))

    def documents(self, rows: int, random: np.random.Generator) -> sparse.csr_matrix:
        """CSR [rows, size] int64 of impacts 1 to 255."""
        return self._texts(rows, self.document_words, self.strangers, self.terms, random)

    def queries(self, rows: int, terms: int | None, random: np.random.Generator) -> sparse.csr_matrix:
        """The same of queries, of at most `terms` terms."""
        return self._texts(rows, self.query_words, 1, terms or self.size, random)

    def _texts(
        self, rows: int, words: int, strangers: int, terms: int, random: np.random.Generator
    ) -> sparse.csr_matrix:
        language, of_topic = self.language, words - strangers
        topics = random.integers(self.topics, size=(rows, 1))
        # The first words of a topic are in more of its texts.
        places = (self.topic_words * random.random((rows, of_topic)) ** 1.5).astype(np.int64)
        others = np.searchsorted(language.words, random.random((rows, strangers)))
        chosen = np.concatenate([language.topics[topics, places], others], axis=1)
        weights = self.heaviest * np.exp(-np.arange(words) / self.decay)
        weights[of_topic:] = 0.3 * self.heaviest
        factors = np.outer(weights, np.exp(-np.arange(self.related) / self.fall)).astype(np.float32)
        drawn = np.exp(self.noise * random.standard_normal((rows, *factors.shape), dtype=np.float32)) * factors
        impacts = np.rint(np.minimum(drawn, LARGEST)).astype(np.int64)
        texts = np.broadcast_to(np.arange(rows)[:, None, None], impacts.shape)
        there = impacts > 0
        return _heaviest(texts[there], language.related[chosen][there], impacts[there], terms, (rows, self.size))


def _cumulated(law: np.ndarray) -> np.ndarray:
    """Probabilities in these proportions, cumulated."""
    return np.cumsum(law) / law.sum()


def _heaviest(
    rows: np.ndarray, terms: np.ndarray, impacts: np.ndarray, most: int, shape: tuple[int, int]
) -> sparse.csr_matrix:
    """CSR of the heaviest posting of each row and term, and of these the `most` heaviest of each row.

    Sorting integers that hold all three is many times faster than sorting by three keys.
    """
    keys = (rows << TERM_BITS | terms) << IMPACT_BITS | impacts
    keys.sort()
    places, last = keys >> IMPACT_BITS, np.ones(len(keys), bool)
    last[:-1] = places[1:] != places[:-1]
    places, impacts = places[last], keys[last] & LARGEST
    # By row, then by descending impact, then by term.
    keys = ((places >> TERM_BITS << IMPACT_BITS | LARGEST - impacts) << TERM_BITS) | places & (1 << TERM_BITS) - 1
    keys.sort()
    rows = keys >> TERM_BITS + IMPACT_BITS
    heaviest = np.arange(len(keys)) - np.searchsorted(rows, rows) < most
    keys, ends = keys[heaviest], np.searchsorted(rows[heaviest], np.arange(shape[0] + 1))
    impacts = LARGEST - (keys >> TERM_BITS & LARGEST)
    matrix = sparse.csr_matrix((impacts, (keys & (1 << TERM_BITS) - 1).astype(np.int32), ends), shape=shape)
    matrix.sort_indices()
    return matrix
