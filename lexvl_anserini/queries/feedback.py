"""Pseudo-relevance feedback: a query moves towards its own best documents, by Rocchio over impacts, by RM3 with BM25.

Rocchio: q' = alpha q/|q| + beta mean(d/|d|), where the mean keeps only its largest terms; the weights of q' are then
rounded to integers, the largest to 255. This is Anserini's Rocchio without its term for non-relevant documents.
RM3 (Abdul-Jaleel et al., TREC 2004): see `RM3`; Anserini computes it.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path

from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.manifest import Manifest, read_manifest
from lexvl_anserini.ground.records import SCORE_LIMIT
from lexvl_anserini.ground.typed import check_count

# The largest weight of an expanded query: 8 bits, whatever the query bits of the index are; 8 is their default.
LARGEST = 255

VectorOf = Callable[[str], Mapping[str, int]]


@dataclass(frozen=True)
class Feedback:
    """How a query is expanded.

    documents    number of best documents, assumed relevant
    terms        number of terms of their mean that are kept
    alpha, beta  shares of the query and of the mean, each of length 1
    """

    documents: int = 10
    terms: int = 20
    alpha: float = 1.0
    beta: float = 0.5

    def __post_init__(self) -> None:
        check_count("documents of feedback", self.documents)
        check_count("terms of feedback", self.terms)
        if not (0 <= self.alpha < inf and 0 <= self.beta < inf and self.alpha + self.beta > 0):
            raise UsageError(f"feedback with alpha {self.alpha} and beta {self.beta}: expected >= 0, one of them above")


# Anserini's RM3 reads no further document of the first list.
MOST_RM3_DOCUMENTS = 50


@dataclass(frozen=True)
class RM3:
    """How BM25 expands a query, with Anserini's defaults.

        q' = weight q/|q|_1 + (1 - weight) r/|r|_1,   r(t) = sum over documents d of score(d) tf(t, d)/|d|_1

    d has its `terms` most frequent terms of 2 to 20 characters, each in at most a tenth of all documents (of English
    letters and digits, if the analyser is English), and r its `terms` largest.

    documents  number of best documents, assumed relevant
    terms      number of terms that are kept
    weight     share of the query, from 0 to 1
    """

    documents: int = 10
    terms: int = 10
    weight: float = 0.5

    def __post_init__(self) -> None:
        check_count("documents of RM3", self.documents, most=MOST_RM3_DOCUMENTS)
        check_count("terms of RM3", self.terms)
        if not 0 <= self.weight <= 1:
            raise UsageError(f"RM3 with weight {self.weight}: expected a share of the query from 0 to 1")


def rocchio(query: Mapping[str, int], documents: Sequence[Mapping[str, int]], feedback: Feedback) -> dict[str, float]:
    """The expanded query, term -> weight > 0; without documents the scaled query alone."""
    documents = [vector for vector in documents if vector]
    moved: dict[str, float] = defaultdict(float)
    for term, weight in unit(query).items():
        moved[term] += feedback.alpha * weight
    mean: dict[str, float] = defaultdict(float)
    for vector in documents:
        for term, weight in unit(vector).items():
            mean[term] += weight / len(documents)
    for term in sorted(mean, key=lambda term: (-mean[term], term))[: feedback.terms]:
        moved[term] += feedback.beta * mean[term]
    return {term: weight for term, weight in moved.items() if weight > 0}


def unit(vector: Mapping[str, int]) -> dict[str, float]:
    """The vector scaled to length 1."""
    length = sqrt(sum(weight * weight for weight in vector.values()))
    return {term: weight / length for term, weight in vector.items()}


def integers(weights: Mapping[str, float], bound: Callable[[Mapping[str, float]], float]) -> dict[str, int]:
    """Weights as integers, the largest 255, or half of that until no score can reach 2^24."""
    largest = LARGEST
    while True:
        scale = largest / max(weights.values(), default=1.0)
        vector = {term: round(weight * scale) for term, weight in weights.items()}
        vector = {term: weight for term, weight in vector.items() if weight}
        if largest == 1 or bound(vector) < SCORE_LIMIT:
            return vector
        largest //= 2


class ShardVectors:
    """The vectors of all documents of shards, or of a collection of parts: a function from id to vector.

    They are in memory, eight bytes a posting.
    """

    def __init__(self, shards: Path, index: Manifest):
        from lexvl_anserini.shards.collection import combined, part_folders
        from lexvl_anserini.shards.reading import read_impacts, read_vocabulary

        folders = part_folders(shards)
        manifests = [read_manifest(folder) for folder in folders]
        if combined(manifests, folders) != index:
            raise ArtefactError(f"{shards}: not the shards that the index was built from; feedback needs their vectors")
        self.vocabulary = read_vocabulary(folders[0], manifests[0])
        self.dims, self.impacts, self.spans = array("i"), array("i"), {}
        for folder, manifest in zip(folders, manifests, strict=True):
            for document in read_impacts(folder, manifest, self.vocabulary):
                start = len(self.dims)
                self.dims.extend(self.vocabulary.dimension[term] for term in document.vector)
                self.impacts.extend(document.vector.values())
                self.spans[document.doc_id] = slice(start, len(self.dims))

    def __call__(self, doc_id: str) -> dict[str, int]:
        """The document's vector."""
        if doc_id not in self.spans:
            raise DataError(f"no document {doc_id!r} in the shards")
        span = self.spans[doc_id]
        terms = (self.vocabulary.terms[dim] for dim in self.dims[span])
        return dict(zip(terms, self.impacts[span], strict=True))
