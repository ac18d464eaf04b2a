"""Which passages of resident postings belong to one document; found at the first search by passages, and kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lexvl_anserini.data.dataset import DELIMITER
from lexvl_anserini.engines.resident.kernels import Postings, spell
from lexvl_anserini.engines.resident.layout import NO_RANK, REMEDY
from lexvl_anserini.ground.errors import ArtefactError

# Bytes for the ids that are read at once.
READ_BYTES = 1 << 24

# The byte that ends the id of a document in that of a passage.
STOP = ord(DELIMITER)


class Grouped(NamedTuple):
    """Postings whose documents are passages of P documents, in the order of the documents' ids.

    postings  with the place of its document as the rank of each passage; P for deleted passages
    passage   int64 [P + 1], the rank of one passage of each document; NO_RANK for P
    sizes     int64 [P + 1], the number of passages of each document
    """

    postings: Postings
    passage: np.ndarray
    sizes: np.ndarray

    def ends(self, best: int) -> np.ndarray:
        """Where the `best` best passages of documents with more are in one array, int64 [P + 2]."""
        return np.concatenate([[0], np.cumsum(np.where(self.sizes > best, best, 0))])


def group_passages(postings: Postings, front: np.ndarray, id_ends: np.ndarray, longest_id: int, ids: int) -> Grouped:
    """Groups passages by their ids; the order of passages is not that of documents: `a!#0`, `a#0`, but `a`, `a!`.

    Args:
        front, id_ends: the ids, as of `kernels.spell`.
        ids: how many there are.
    """
    names = [name for part in _documents(front, id_ends, longest_id, ids) for name in part]
    places: dict[str, int] = {}
    for name in sorted(names):
        places.setdefault(name, len(places))
    of_ranks = np.fromiter(map(places.__getitem__, names), np.uint32, ids)
    passage = np.full(len(places) + 1, NO_RANK, np.int64)
    passage[of_ranks] = np.arange(ids)
    rank = np.full(len(postings.rank), len(places), np.uint32)
    there = postings.rank != NO_RANK
    rank[there] = of_ranks[postings.rank[there]]
    return Grouped(postings._replace(rank=rank), passage, np.bincount(rank, minlength=len(places) + 1))


def _documents(front: np.ndarray, id_ends: np.ndarray, longest_id: int, ids: int) -> Iterator[list[str]]:
    """The ids of the documents of all passages, in the order of the passages."""
    step = READ_BYTES // (longest_id + 1) + 1
    spelt = np.empty(step * (longest_id + 1), np.uint8)
    for start in range(0, ids, step):
        size = spell(front, id_ends, np.arange(start, min(start + step, ids)), STOP, spelt)
        if size < 0:
            raise ArtefactError(f"resident postings are damaged, an id cannot be read; {REMEDY}")
        yield spelt[:size].tobytes().decode().split("\n")[:-1]
