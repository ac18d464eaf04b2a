"""The typed records that pass from each step to the next.

    corpus   --> encoder --> quantiser  --> shards         --> index --> run       --> measures
    Document     CSR [N, V]  CSR [N, V]     ImpactDocument     folder    ScoredDoc     Measurement
                 float32     int64 (impacts)

A topic takes the same way: `Topic`, CSR [N, V] float32, CSR int64, then `ImpactQuery`. Streaming records are
NamedTuples; the manifest beside an artefact on disk is a frozen dataclass (`manifest.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

# Lucene sums scores in 32-bit floats, which represent every integer up to this one.
SCORE_LIMIT = 1 << 24

NO_METADATA: Mapping[str, Any] = MappingProxyType({})


def bits_over(score: float) -> int:
    """The number of bits that a score of `SCORE_LIMIT` or more must lose to be below it."""
    return (int(score) // SCORE_LIMIT).bit_length()


class Document(NamedTuple):
    """One item of a corpus: a text, an image, or both.

    `image` is a path or `archive.tar::member`, of a page `scan.tif#3`; in a corpus of embeddings `table.parquet::id`,
    the place of a vector. `problem` is a reason why the document cannot be read: it is never encoded, but skipped or
    an error, as a picture that cannot be read.
    """

    doc_id: str
    title: str | None = None
    text: str | None = None
    image: str | None = None
    metadata: Mapping[str, Any] = NO_METADATA
    problem: str | None = None

    @property
    def contents(self) -> str:
        """Title and text joined by one blank, either may be absent; BM25 and most encoders read this."""
        return " ".join(part for part in (self.title, self.text) if part)


class Topic(NamedTuple):
    """One information need: a text or an image."""

    query_id: str
    text: str | None = None
    image: str | None = None


class Qrel(NamedTuple):
    """One judgement; relevance 0 is judged and not relevant."""

    query_id: str
    doc_id: str
    relevance: int


class TeacherScore(NamedTuple):
    """The score that another system gives a document of a query, which a model in training imitates."""

    query_id: str
    doc_id: str
    score: float


class ImpactDocument(NamedTuple):
    """A document of an impact index: its id and the impact (int >= 1) of each of its terms."""

    doc_id: str
    vector: Mapping[str, int]
    contents: str = ""


def heaviest(vector: Mapping[str, int], count: int | None) -> dict[str, int]:
    """The `count` largest weights, in the order of the vector; of equal weights the first ones; None keeps all."""
    if count is None or len(vector) <= count:
        return dict(vector)
    terms = set(sorted(vector, key=lambda term: -vector[term])[:count])
    return {term: weight for term, weight in vector.items() if term in terms}


class ImpactQuery(NamedTuple):
    """A query of an impact index: a topic's id and the weight (int >= 1) of each of its terms."""

    query_id: str
    vector: Mapping[str, int]


class DenseQuery(NamedTuple):
    """A query of a dense index: a topic's id and its vector, float32 [D]."""

    query_id: str
    vector: np.ndarray


class ScoredDoc(NamedTuple):
    """One line of a run: ranks count from 1; order is score descending, then doc_id ascending (code points)."""

    query_id: str
    doc_id: str
    rank: int
    score: float


class Measurement(NamedTuple):
    """One value of one measure; `query_id` "all" is the mean over the topics of the qrels.

    `ties` is the order of equal scores that it was computed with, "rank" or "trec_eval".
    """

    run: str
    dataset: str
    measure: str
    query_id: str
    value: float
    ties: str = ""
