"""Answers queries from resident postings with numpy alone, until the kernels of `searching` are worth loading.

A process that answers few queries needs neither Java nor a compiler: numpy adds up the postings of a query in some
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lexvl_anserini.engines.resident.layout import (
    BLOCK,
    COLUMN,
    GAPS,
    GROUP,
    RANKS,
    REMEDY,
    WIDTHS,
    Sections,
    number_terms,
    place_slots,
)
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.query_vectors import QueryBatch
from lexvl_anserini.runs.order import RankedList, group_by_documents


class Slot(NamedTuple):
    """The postings of one term in one block; entries of impact 0 may come between.

    documents  ascending, of the whole index; of a column a slice
    impacts    of the width of the file
    """

    documents: np.ndarray | slice
    impacts: np.ndarray


class PlainPostings:
    """The postings of an open file; threads may call at once, and run one after the other for the most part.

    Args:
        sections: of the file, whose checksum was compared.
    """

    name = "resident"

    def __init__(self, sections: Sections):
        self.arrays, self.contents = sections.arrays, sections.contents
        self.documents = sections.contents.documents
        self.slots = self.arrays["slots"].astype(np.int64)
        self.places = place_slots(sections)
        self.numbers = number_terms(sections)

    def lists(
        self,
        queries: QueryBatch | Sequence[ImpactQuery],
        hits: int,
        threads: int,
        allowed: np.ndarray | None = None,
        best: int = 0,
    ) -> list[RankedList]:
        """One ranked list per query; as `searching.ResidentPostings.lists`, by this thread alone."""
        batch = QueryBatch.build(queries)
        if best:

            def passages(some: Sequence[ImpactQuery], depth: int) -> list[RankedList]:
                return self.lists(some, min(depth, self.contents.documents), threads, allowed)

            return list(group_by_documents(passages, map(ImpactQuery, batch.query_ids, batch.vectors), hits, best))
        pairs = zip(batch.query_ids, batch.vectors, strict=True)
        return [self._list(query_id, vector, hits, allowed) for query_id, vector in pairs]

    def find_max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""
        spans = (self._span(term) for term in terms)
        return [int(self.arrays["most"][first:last].max(initial=0)) for first, last in spans]

    def bounds(self, batch: QueryBatch) -> np.ndarray:
        """An upper bound of the score of any document for each query, float64 [queries]."""
        return batch.bounds(self.find_max_impacts)

    def impacts(self, number: int, terms: Iterable[str]) -> dict[str, int]:
        """The impact of the document of a number for each of `terms` that it has, in their order."""
        block, document = divmod(number, BLOCK)
        impacts: dict[str, int] = {}
        for term in terms:
            first, last = self._span(term)
            slot = first + int(np.searchsorted(self.arrays["block"][first:last], block))
            if slot < last and self.arrays["block"][slot] == block:
                postings = self._slot(slot)
                documents = np.r_[postings.documents]
                place = int(np.searchsorted(documents, block * BLOCK + document))
                if place < len(documents) and documents[place] == block * BLOCK + document:
                    impacts[term] = int(postings.impacts[place])
        return {term: impact for term, impact in impacts.items() if impact}

    def _list(self, query_id: str, vector: Mapping[str, int], hits: int, allowed: np.ndarray | None) -> RankedList:
        """The ranked list of a query whose scores are below 2^24."""
        sums = np.zeros(self.contents.documents, np.int32)
        try:
            for term, weight in vector.items():
                for slot in range(*self._span(term)):
                    documents, impacts = self._slot(slot)
                    sums[documents] += np.multiply(impacts, weight, dtype=np.int32)
            if allowed is not None:
                sums *= allowed
            positions = np.flatnonzero(sums)
            keys = (sums[positions].astype(np.int64) << 32) | (RANKS - self.arrays["rank"][positions].astype(np.int64))
            if len(keys) > hits:
                keys = np.partition(keys, len(keys) - hits)[-hits:]
            best = np.sort(keys)[::-1]
            lines = b"".join(self._id(rank) + b"\n" for rank in (RANKS - (best & RANKS)).tolist())
        except (IndexError, ValueError) as error:  # of a file whose content is not what its checksum says
            raise ArtefactError(f"topic {query_id!r}: resident postings are damaged; {REMEDY}") from error
        return RankedList(query_id, lines, (best >> 32).astype(np.float64))

    def _span(self, term: str) -> tuple[int, int]:
        """The slots of a term: from the first to before the last."""
        number = self.numbers.get(term)
        return (0, 0) if number is None else (int(self.slots[number]), int(self.slots[number + 1]))

    def _slot(self, slot: int) -> Slot:
        """The postings of a slot."""
        kind, octets = int(self.arrays["kind"][slot]), self.arrays["octets"]
        place, count = int(self.places[slot]), int(self.arrays["counts"][slot]) + 1
        first, width = int(self.arrays["block"][slot]) * BLOCK, self.contents.width
        if kind == COLUMN:
            last = min(first + BLOCK, self.contents.documents)
            end = place + (last - first) * width
            return Slot(slice(first, last), octets[place:end].view(WIDTHS[width]))
        end = place + (count if kind == GAPS else 2 * count)
        addresses = octets[place:end] if kind == GAPS else octets[place:end].view("<u2")
        documents = addresses.cumsum(dtype=np.int64) - 1 if kind == GAPS else addresses.astype(np.int64)
        start = -(-end // width) * width
        return Slot(documents + first, octets[start : start + count * width].view(WIDTHS[width]))

    def document(self, doc_id: str) -> int | None:
        """The number of the document with an id; None without one."""
        name, ends = doc_id.encode("utf-8", "surrogatepass"), self.arrays["id_ends"]
        low, high = 0, len(ends)
        while low < high:  # the last group that begins with this id or one before it
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._group(middle)[0] <= name else (low, middle)
        for place, other in enumerate(self._group(low - 1) if low else ()):
            if other == name:
                return int(np.flatnonzero(self.arrays["rank"] == (low - 1) * GROUP + place)[0])
        return None

    def _id(self, rank: int) -> bytes:
        """The id of a rank."""
        return self._group(rank // GROUP)[rank % GROUP]

    def _group(self, group: int) -> list[bytes]:
        """The ids of a group, in their order."""
        ids, ends = self.arrays["ids"], self.arrays["id_ends"]
        coded = bytes(ids[int(ends[group - 1]) if group else 0 : int(ends[group])])
        at, name, names = 0, b"", []
        while at < len(coded):
            shared, at = _number(coded, at)
            rest, at = _number(coded, at)
            name = name[:shared] + coded[at : at + rest]
            at += rest
            names.append(name)
        return names


def _number(coded: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, the lowest first, all but the last byte with its highest bit set; and its end."""
    number = shift = 0
    while coded[at] & 128:
        number |= (coded[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return number | coded[at] << shift, at + 1
