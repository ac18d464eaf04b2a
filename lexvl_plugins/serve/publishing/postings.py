"""The postings of an index for a page: by dimension, in files of similar size.

Documents have their numbers in the order of ids, which is the order of equal scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.engines.lucene.vectors import read_vectors
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import Vocabulary
from lexvl_plugins.serve.publishing.data_files import as_text, varying

# Bytes of a file of postings, before they are written as text.
RANGE = 1 << 16


class TermPostings(NamedTuple):
    """An index by dimension: the postings of dimension d are ends[d - 1]..ends[d].

    ids        of the documents, in their order
    ends       int64 [V]
    documents  int32 [postings], ascending within a dimension
    impacts    int32 [postings]
    """

    ids: list[str]
    ends: np.ndarray
    documents: np.ndarray
    impacts: np.ndarray

    def of(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents of a dimension, and its impacts in them."""
        begin = int(self.ends[dimension - 1]) if dimension else 0
        return self.documents[begin : self.ends[dimension]], self.impacts[begin : self.ends[dimension]]

    def matrix(self) -> Any:
        """Impacts as CSR float32 [V, documents]."""
        from scipy import sparse

        pointers = np.concatenate([[0], self.ends])
        shape = len(self.ends), len(self.ids)
        return sparse.csr_matrix((self.impacts.astype(np.float32), self.documents, pointers), shape=shape)


def read_postings(index: Path, vocabulary: Vocabulary) -> TermPostings:
    """Reads all postings of an index.

    Raises:
        ArtefactError: no Lucene index, or a term that is not in the vocabulary.
    """
    vectors = read_vectors(index)
    if unknown := [term for term in vectors.terms if term not in vocabulary.dimension]:
        raise ArtefactError(f"{index}: the term {unknown[0]!r:.80} is not in its vocabulary; index again")
    dimensions = np.array([vocabulary.dimension[term] for term in vectors.terms], np.int64)
    lists = vectors.impacts.tocsc()[:, np.argsort(dimensions)]
    lists.sort_indices()
    counts = np.zeros(len(vocabulary), np.int64)
    counts[np.sort(dimensions)] = np.diff(lists.indptr)
    return TermPostings(vectors.ids, np.cumsum(counts), lists.indices.astype(np.int32), lists.data.astype(np.int32))


def in_ranges(postings: TermPostings) -> Iterator[tuple[int, str]]:
    """Files of postings: the first dimension of each, and its lists as text.

    A list is the number of postings, the distances of the documents (the first to -1), and the impacts, as `varying`.
    """
    first, size = 0, 0
    pieces: list[np.ndarray] = []
    for dimension in range(len(postings.ends)):
        documents, impacts = postings.of(dimension)
        numbers = np.concatenate([[len(documents)], np.diff(documents, prepend=-1), impacts])
        octets = varying(numbers)
        if pieces and size + len(octets) > RANGE:
            yield first, as_text(np.concatenate(pieces))
            first, pieces, size = dimension, [], 0
        pieces.append(octets)
        size += len(octets)
    yield first, as_text(np.concatenate(pieces))
