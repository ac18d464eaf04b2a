"""Collections of lexical vectors without a model: synthetic ones by a law, the same for the same seed, and matrices.

mixture  terms that occur together, as those of real texts do: `Mixture`
splade   independent terms, with the term frequencies of 6,980 SPLADE++ (EnsembleDistil) queries of MS MARCO dev
vdr      independent terms, with terms and weights of 768-term vectors of an untrained VDR over MiniLM on SciFact

Independent term number r, by descending frequency, is in a document with a probability proportional to
(r + shift)^-exponent, Zipf's law with Mandelbrot's shift. `write_impacts` writes the shards like those of any model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import sparse

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.lines import parse_object, read_lines
from lexvl_anserini.encoders.encoder import Encoder, Kind
from lexvl_anserini.ground.errors import FAIL, DataError, OnError, UnknownName, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import Quantiser, SideQuantiser
from lexvl_anserini.ground.records import Document, ImpactDocument, ImpactQuery, Topic, Vocabulary
from lexvl_anserini.shards.layout import Layout
from lexvl_plugins.exchange.vectors import read_matrix

LARGEST = 255
# A key of a posting: its row, its term, its impact, in so many bits.
TERM_BITS, IMPACT_BITS = 16, 8
# The language is the same for every seed of documents.
LANGUAGE = 7
# Vectors that are generated together: a seed determines a block, and one block is in memory.
BLOCK = 4096
SHARD_SIZE = 8192
SEED = 20240307
# Terms of a query of independent terms.
QUERY_TERMS = 30
# Independent streams of random numbers.
DOCUMENTS, QUERIES = 0, 1


@dataclass(frozen=True)
class VectorShape:
    """Vectors of `terms` terms each, by the law above over `size` terms; a weight is `least` plus a Gamma number."""

    terms: int
    size: int
    exponent: float
    shift: float
    least: int
    gamma: float
    scale: float

    @cached_property
    def inclusion(self) -> np.ndarray:
        """The probability that a document has each term, float64 [size], descending, at most 1; sums to `terms`."""
        law = (np.arange(1, self.size + 1) + self.shift) ** -self.exponent
        sure = 0
        # Terms that would exceed 1 are in every document; the others share the rest.
        while True:
            rest = law[sure:] * (self.terms - sure) / law[sure:].sum()
            over = int((rest > 1).sum())
            if not over:
                return np.concatenate([np.ones(sure), rest])
            sure += over

    def documents(self, rows: int, random: np.random.Generator) -> sparse.csr_matrix:
        """CSR [rows, size] int64 of impacts 1 to 255, each row with exactly `terms` terms.

        The cumulated probabilities are divided into strata of length 1, with one point drawn in each. Two neighbouring
        strata can hit one term: the later one then moves to the next term.
        """
        edges = np.cumsum(self.inclusion)
        strata = np.arange(self.terms)
        points = (strata + random.random((rows, self.terms))) * (edges[-1] / self.terms)
        dims = np.searchsorted(edges, points, side="right")
        # Strictly ascending, and none beyond the last term.
        dims = np.minimum(np.maximum.accumulate(dims - strata, axis=1), self.size - self.terms) + strata
        weights = self.least + random.gamma(self.gamma, self.scale, size=dims.shape)
        impacts = np.clip(weights, 1, LARGEST).astype(np.int64)
        ends = np.arange(rows + 1) * self.terms
        return sparse.csr_matrix((impacts.ravel(), dims.ravel().astype(np.int32), ends), shape=(rows, self.size))

    def queries(self, rows: int, terms: int | None, random: np.random.Generator) -> sparse.csr_matrix:
        """The same of queries of `terms` terms; default `QUERY_TERMS`."""
        return change_terms(self, terms or QUERY_TERMS).documents(rows, random)


class Language(NamedTuple):
    """The cumulated probability of each word, the terms that a word brings, itself first, and words by topic."""

    words: np.ndarray
    related: np.ndarray
    topics: np.ndarray


@dataclass(frozen=True)
class Mixture:
    """Vectors of at most `terms` terms that occur together; a query has as many as its words bring.

    SPLADE gives a text its words, and with lower weights the terms that it relates to each word; texts about one topic
    share words. A mixture draws the same from a language of its own, all by Zipf's law with Mandelbrot's shift. A term
    weighs as the heaviest of the words that bring it, with noise.

    The numbers are fitted to 20,000 mixtures of SPLADE++ (EnsembleDistil) queries of MS MARCO dev with their
    neighbours: the terms of a document and of a query (143 and 46), weights by rank, frequencies of terms, the postings
    that both share (3.7, there 4.2), and how scores fall with the rank (the tenth is 0.69 of the first, there 0.77; the
    thousandth 0.17, there 0.20). The cosine with the third neighbour is 0.35, there 0.56.

    The term number n of a word has exp(-n / fall) of its weight, the word number n of a text weighs heaviest *
    exp(-n / decay), times exp(noise * a normal number). The last words of a text, `strangers`, belong to no topic.
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

    @cached_property
    def language(self) -> Language:
        """The language of all texts."""
        random = np.random.default_rng(LANGUAGE)
        ranks = np.arange(1, self.size + 1)
        # Words are chosen for what they mean: the most frequent are rarer among them than among related terms.
        laws = (ranks + 60.0) ** -1.0, (ranks + self.shift) ** -self.exponent
        words, terms = (np.cumsum(law) / law.sum() for law in laws)
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


def _heaviest(
    rows: np.ndarray, terms: np.ndarray, impacts: np.ndarray, most: int, shape: tuple[int, int]
) -> sparse.csr_matrix:
    """CSR of the heaviest posting of each row and term, and of these the `most` heaviest of each row."""
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


SHAPES: Mapping[str, VectorShape | Mixture] = {
    "mixture": Mixture(),
    "splade": VectorShape(terms=120, size=30_522, exponent=1.3, shift=150.0, least=1, gamma=2.0, scale=40.0),
    "vdr": VectorShape(terms=768, size=29_523, exponent=1.0, shift=250.0, least=90, gamma=1.5, scale=18.0),
}


def change_terms(shape: VectorShape | Mixture, terms: int | None) -> VectorShape | Mixture:
    """The same distribution with another number of terms, unless it is None."""
    if terms is not None and not 1 <= terms <= shape.size:
        raise UsageError(f"{terms} terms: expected 1 to {shape.size}, the vocabulary's size")
    return shape if terms is None else replace(shape, terms=terms)


def find_shape(name: str, terms: int | None = None) -> VectorShape | Mixture:
    """A shape by name, with another number of terms if one is named."""
    if name not in SHAPES:
        raise UnknownName("shape", name, SHAPES)
    return change_terms(SHAPES[name], terms)


class NumberTower:
    """A document tower without a model: a text is a number, its vector a row of `block(number // BLOCK)`, CSR."""

    kind: ClassVar[Kind] = "impact"
    binary = False

    def __init__(self, block: Callable[[int], sparse.csr_matrix], size: int):
        self.block, self.size = block, size
        self.vocabulary = number_terms(size)

    def read(self, document: Document) -> str:
        """The number of a document."""
        return document.text or ""

    def read_topic(self, topic: Topic) -> str:
        """The number of a document, as a topic."""
        return topic.text or ""

    def weights(
        self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """CSR [n, size] float32; a document's vector depends on its number only."""
        numbers = np.array(list(map(int, inputs)), dtype=np.int64)
        pieces = [sparse.csr_matrix((0, self.size), dtype=np.float32)]
        # Runs of one block, so that rows come out in the order of the inputs.
        for run in filter(len, np.split(numbers, np.flatnonzero(np.diff(numbers // BLOCK)) + 1)):
            pieces.append(self.block(int(run[0]) // BLOCK)[run % BLOCK])
            progress(len(run))
        return sparse.vstack(pieces, format="csr").astype(np.float32)


def number_terms(size: int) -> Vocabulary:
    """Terms by number: of synthetic vectors, by descending frequency."""
    return Vocabulary([f"t{number:05d}" for number in range(size)], "made-up vocabulary")


def write_synthetic(
    folder: Path, shape: VectorShape | Mixture, documents: int, seed: int = SEED, shard_format: str = "parquet"
) -> Manifest:
    """Writes a synthetic collection in the form of `encode`, unless it exists; memory does not grow with its size."""

    def block(number: int) -> sparse.csr_matrix:
        return shape.documents(BLOCK, np.random.default_rng([seed, DOCUMENTS, number]))

    options = {**asdict(shape), "seed": seed}
    return write_shards(folder, NumberTower(block, shape.size), documents, options, shard_format)


def write_matrix(folder: Path, path: Path) -> Manifest:
    """Writes the rows of a matrix of impacts in the form of `encode`, unless they exist."""
    matrix = read_impact_matrix(path)
    tower = NumberTower(lambda number: matrix[number * BLOCK : (number + 1) * BLOCK], matrix.shape[1])
    return write_shards(folder, tower, matrix.shape[0], {"sha256": compute_sha256(path)}, "parquet")


def read_impact_matrix(path: Path) -> sparse.csr_matrix:
    """A file of `scipy.sparse.save_npz` with impacts: CSR [vectors, terms], integers from 1 to 255."""
    matrix = read_matrix(path)
    values = matrix.data
    if not np.issubdtype(values.dtype, np.integer) or len(values) and not 1 <= values.min() <= values.max() <= LARGEST:
        raise DataError(f"{path}: expected impacts, integers from 1 to {LARGEST}; quantise the weights first")
    return matrix


def write_shards(
    folder: Path, tower: NumberTower, documents: int, options: Mapping[str, Any], shard_format: str
) -> Manifest:
    """Writes the shards of a tower's first documents; `options` say what decides their vectors."""
    from lexvl_anserini.shards.writing import write_impacts

    model = Encoder("made-up", "impact", query=tower, document=tower, options=dict(options))
    # Weights are impacts already: scale 1 keeps them.
    quantiser = Quantiser(SideQuantiser("fixed", 8, 1.0), SideQuantiser("peak", 8))

    def stream() -> Iterator[Document]:
        return (Document(f"d{number:08d}", text=str(number)) for number in range(documents))

    dataset = Dataset(f"made-up-{documents}", "test", stream, lambda: iter(()), lambda: iter(()))
    return write_impacts(dataset, model, folder, quantiser, Layout(shard_format, SHARD_SIZE))


def draw_queries(
    shape: VectorShape | Mixture, count: int, terms: int | None = None, seed: int = SEED
) -> list[ImpactQuery]:
    """Queries of the documents' distribution, of their own number of terms; weights 1 to 255."""
    vectors = shape.queries(count, terms, np.random.default_rng([seed, QUERIES]))
    return make_queries(vectors, number_terms(shape.size).terms)


def draw_from_pool(
    documents: Iterable[ImpactDocument], count: int, terms: int | None = None, seed: int = SEED
) -> list[ImpactQuery]:
    """Queries whose terms are drawn from the postings of `count` sampled documents: frequent terms come often."""
    random, terms = np.random.default_rng([seed, QUERIES]), terms or QUERY_TERMS
    sampled: list[Mapping[str, int]] = []
    for number, document in enumerate(documents):
        # Reservoir sampling: every document has the same probability, for any number of documents.
        place = number if number < count else int(random.integers(number + 1))
        if place < count:
            sampled[place : place + 1] = [document.vector]
    pool = [posting for vector in sampled for posting in vector.items()]
    if not pool:
        raise DataError("no document has a term; no query can be drawn")
    queries = []
    for number in range(count):
        drawn: dict[str, int] = {}
        for place in random.permutation(len(pool))[: 8 * terms].tolist():
            drawn.setdefault(*pool[place])
            if len(drawn) == terms:
                break
        queries.append(ImpactQuery(f"q{number:05d}", {t: min(w, LARGEST) for t, w in drawn.items()}))
    return queries


def read_encoded(path: Path, count: int) -> list[ImpactQuery]:
    """The first queries of a file `{"id", "vector"}` per line, requantised to 8 bits: theirs could score above 2^24."""
    ids: list[str] = []
    vectors: list[dict[str, float]] = []
    for line in islice(read_lines(path), count):
        row = parse_object(line)
        try:
            vectors.append({str(term): float(weight) for term, weight in row["vector"].items() if weight > 0})
            ids.append(str(row["id"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{line.where}: no encoded query with id and vector ({error})") from error
    if not ids:
        raise DataError(f"{path}: no query in it")
    terms = sorted({term for vector in vectors for term in vector})
    place = {term: dim for dim, term in enumerate(terms)}
    where = np.array([(row, place[term]) for row, vector in enumerate(vectors) for term in vector]).reshape(-1, 2).T
    weights = [weight for vector in vectors for weight in vector.values()]
    return make_queries(sparse.csr_matrix((weights, where), shape=(len(ids), len(terms))), terms, ids)


def make_queries(vectors: Any, terms: Sequence[str], ids: Sequence[str] | None = None) -> list[ImpactQuery]:
    """CSR rows as queries, quantised so that no score against 8-bit documents can reach 2^24."""
    impacts = Quantiser().queries(vectors.astype(np.float64), LARGEST).impacts
    queries = []
    for row in range(impacts.shape[0]):
        span = slice(impacts.indptr[row], impacts.indptr[row + 1])
        vector = {terms[d]: int(w) for d, w in zip(impacts.indices[span], impacts.data[span], strict=True)}
        queries.append(ImpactQuery(ids[row] if ids else f"q{row:05d}", vector))
    return queries
