"""Answers batches of queries from resident postings, on as many threads as requested."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from itertools import islice, pairwise, repeat
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from lexvl_anserini.engines.resident import layout
from lexvl_anserini.engines.resident.kernels import (
    SLOT,
    TERM,
    Postings,
    Queries,
    Space,
    add_up,
    find_best,
    search,
    spell,
    spell_lists,
)
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import DELIMITER, ImpactQuery, TermWeights, Vocabulary
from lexvl_anserini.queries.clauses import QueryBatch, together
from lexvl_anserini.runs.order import RankedList, select_top_positions

READ_BYTES = 1 << 24  # bytes for the ids that are read at once

STOP = ord(DELIMITER)  # the byte that ends the id of a document in that of a passage


class Grouped(NamedTuple):
    """Postings whose documents are passages of P documents, in the order of the documents' ids.

    Attributes:
        postings: with the place of its document as the rank of each passage; P for deleted passages.
        passage: int64 [P + 1], the rank of one passage of each document; NO_RANK for P.
        sizes: int64 [P + 1], the number of passages of each document.
    """

    postings: Postings
    passage: np.ndarray
    sizes: np.ndarray

    def ends(self, best: int) -> np.ndarray:
        """Where the `best` best passages of documents with more are in one array, int64 [P + 2]."""
        return np.concatenate([[0], np.cumsum(np.where(self.sizes > best, best, 0))])


def group_passages(postings: Postings, front: np.ndarray, id_ends: np.ndarray, longest_id: int, ids: int) -> Grouped:
    """Groups passages by their ids; the order of passages is not that of documents: `a!#0`, `a#0`, but `a`, `a!`."""
    names = [name for part in _documents(front, id_ends, longest_id, ids) for name in part]
    places: dict[str, int] = {}
    for name in sorted(names):
        places.setdefault(name, len(places))
    of_ranks = np.fromiter(map(places.__getitem__, names), np.uint32, ids)
    passage = np.full(len(places) + 1, layout.NO_RANK, np.int64)
    passage[of_ranks] = np.arange(ids)
    rank = np.full(len(postings.rank), len(places), np.uint32)
    there = postings.rank != layout.NO_RANK
    rank[there] = of_ranks[postings.rank[there]]
    return Grouped(postings._replace(rank=rank), passage, np.bincount(rank, minlength=len(places) + 1))


def _documents(front: np.ndarray, id_ends: np.ndarray, longest_id: int, ids: int) -> Iterator[list[str]]:
    """The ids of the documents of all passages, in the order of the passages."""
    step = READ_BYTES // (longest_id + 1) + 1
    spelt = np.empty(step * (longest_id + 1), np.uint8)
    for start in range(0, ids, step):
        size = spell(front, id_ends, np.arange(start, min(start + step, ids)), STOP, spelt)
        if size < 0:
            raise ArtefactError(f"resident postings are damaged, an id cannot be read; {layout.REMEDY}")
        yield spelt[:size].tobytes().decode().split("\n")[:-1]


# Queries that a thread takes at a time at most: enough that a call costs little, few enough for little memory.
STEP = 32

LEAST_KEYS = 1024  # room for keys of hits that are not the best in the end: it is sorted out each time it is full

ALL_DOCUMENTS = np.zeros(0, np.uint8)  # where no filter excludes documents
NO_TERM = np.zeros(0, np.int64)  # what the numbers of no terms are


class ResidentPostings(layout.PostingLists):
    """The postings of an open file, ready for queries; threads may call at once.

    Its checksum was compared: the kernels trust what it says.
    """

    def __init__(self, sections: layout.Sections):
        arrays, contents = sections.arrays, sections.contents
        octets, width = arrays["octets"], np.dtype(layout.WIDTHS[contents.width])
        starts, kind, slots = arrays["slots"].astype(np.int64), arrays["kind"], np.empty(len(arrays["kind"]), SLOT)
        slots["place"] = layout.place_slots(sections)
        slots["column"] = np.where(kind == layout.COLUMN, slots["place"] // width.itemsize, -kind.astype(np.int64))
        slots["most"], slots["count"], slots["block"] = arrays["most"], arrays["counts"], arrays["block"]
        self.postings = Postings(
            starts=np.append(starts, starts[-1]),
            slots=slots,
            octets=octets,
            shorts=octets.view("<u2"),
            impacts=octets.view(width),
            rank=arrays["rank"],
        )
        self.ids, self.id_ends, self.longest_id = arrays["ids"], arrays["id_ends"], contents.longest_id
        self.ids_there, self.documents = contents.ids, contents.documents
        self.numbers = layout.number_terms(sections)
        # The number of a term that the index does not have, behind those of its terms.
        self.absent = len(starts) - 1
        # Per term its greatest impact.
        self.most = np.zeros(len(starts), np.int64)
        self.most[:-1] = np.maximum.reduceat(arrays["most"], starts[:-1]) if self.absent else 0
        self.spaces: list[Space] = []
        # Per vocabulary of a model the number of each dimension's term, int64 [V].
        self.of_dimensions = WeakKeyDictionary[Vocabulary, np.ndarray]()

    @cached_property
    def passages(self) -> Grouped:
        """The postings as those of passages."""
        return group_passages(self.postings, self.ids, self.id_ends, self.longest_id, self.ids_there)

    def warm(self) -> None:
        """Loads or compiles the kernels, which their first call does."""
        self.lists([ImpactQuery("", dict.fromkeys(islice(self.numbers, 1), 1))], 1, 1)

    def lists(
        self, queries: layout.AnyQueries, hits: int, threads: int, allowed: np.ndarray | None = None, best: int = 0
    ) -> list[RankedList]:
        """One ranked list per query; `threads` share them."""
        batch = QueryBatch.build(queries)
        terms, most_terms = self._terms(batch), max(map(len, batch.vectors), default=0)
        allowed = ALL_DOCUMENTS if allowed is None else allowed
        ranked_lists: list[Any] = [None] * len(batch)
        passages = self.passages if best else None
        steps = iter([*split_steps(len(batch), threads)])

        def work() -> None:
            for first, last in steps:
                some = Queries(terms.ends[first : last + 1], terms.terms, terms.weights)
                columns = self._columns(some, most_terms, allowed, hits, passages, best)
                ranked_lists[first:last] = map(RankedList, batch.query_ids[first:last], *columns)

        if threads == 1 or len(batch) == 1:
            work()
        else:
            with ThreadPoolExecutor(threads) as pool:
                for done in [pool.submit(work) for _ in range(threads)]:
                    done.result()
        return ranked_lists

    def find_max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""
        return self.most[self._look_up(terms)].tolist()

    def bounds(self, batch: QueryBatch) -> np.ndarray:
        """An upper bound of the score of any document for each query, float64 [queries]."""
        ends, terms, weights = self._terms(batch)
        queries = np.repeat(np.arange(len(batch)), np.diff(ends))
        return np.bincount(queries, weights * self.most[terms].astype(np.float64), len(batch))

    def _terms(self, batch: QueryBatch) -> Queries:
        """The queries' terms by their numbers."""
        return Queries(batch.ends, together([*map(self._numbers, batch.vectors)], NO_TERM), batch.weights)

    def _numbers(self, vector: Mapping[str, int]) -> np.ndarray:
        """The number of each term of a query, int64 [n]."""
        if not isinstance(vector, TermWeights):
            return self._look_up(vector)
        numbers = self.of_dimensions.get(vector.vocabulary)
        if numbers is None:
            numbers = self.of_dimensions[vector.vocabulary] = self._look_up(vector.vocabulary.terms)
        return numbers[vector.dimensions]

    def _look_up(self, terms: Collection[str]) -> np.ndarray:
        """The number of each of these terms, int64 [n]; `absent` for one that the index does not have."""
        return np.fromiter(map(self.numbers.get, terms, repeat(self.absent)), np.int64, len(terms))

    def _columns(
        self, terms: Queries, most_terms: int, allowed: np.ndarray, hits: int, passages: Grouped | None, best: int
    ) -> tuple[list[bytes], list[np.ndarray]]:
        """Ids and scores of the lists of some queries, by this thread alone; most of it without Python's lock."""
        space = self._space(hits, most_terms, len(passages.sizes) if passages and best == 1 else 0)
        if passages and best > 1:
            places, scores, counts = sum_passages(passages, terms, best, allowed, hits, space)
        else:
            places, scores, counts = self._maxima(passages, terms, allowed, hits, space)
        self.spaces.append(space)
        # Rows that are not filled have places beyond all.
        ranks, stop = (passages.passage.take(places, mode="clip"), STOP) if passages else (places, 0)
        ends = np.zeros(len(counts) + 1, np.int64)
        spelt = np.empty(scores.size * (self.longest_id + 1), np.uint8)
        if not spell_lists(self.ids, self.id_ends, ranks, counts, stop, spelt, ends):
            raise ArtefactError(f"resident postings are damaged, an id cannot be read; {layout.REMEDY}")
        ids, bounds = spelt[: ends[-1]].tobytes(), ends.tolist()
        # Copies, so that a list that is kept does not keep those of other queries.
        of_lists = [row[:size].copy() for row, size in zip(scores, counts.tolist(), strict=True)]
        return [ids[start:end] for start, end in pairwise(bounds)], of_lists

    def _maxima(self, passages: Grouped | None, terms: Queries, allowed: np.ndarray, hits: int, space: Space) -> Hits:
        """The hits of some queries by their own scores; of passages of one document the best."""
        queries, postings = len(terms.ends) - 1, (passages or self).postings
        keys, counts = np.zeros((queries, hits), np.int64), np.zeros(queries, np.int64)
        most = search(postings, terms, allowed, hits, space, keys, counts)
        return sort_hits(keys[:, :most], counts)

    def _space(self, hits: int, terms: int, documents: int) -> Space:
        """One thread's arrays, those of an earlier call if they are large enough."""
        with suppress(IndexError):
            space = self.spaces.pop()
            # Made for the same number of documents in passages.
            if len(space.terms) >= terms and len(space.keys) >= 2 * hits and len(space.seen) == documents:
                return space
        keys, seen = np.empty(max(4 * hits, LEAST_KEYS), np.int64), np.full(documents, -1, np.int32)
        return Space(np.empty(layout.BLOCK, np.int32), keys, np.empty(terms, TERM), seen)


# The places of the hits of some queries, int64 [queries, n], best first; their scores, float64 [queries, n]; and how
# many there are, int64 [queries]. A place is that in the order of ids.
Hits = tuple[np.ndarray, np.ndarray, np.ndarray]


def sort_hits(keys: np.ndarray, counts: np.ndarray) -> Hits:
    """The hits of queries by their keys, int64 [queries, n], in any order; each has `counts` of them."""
    # Keys of hits are greater than 0, which fills the rows.
    keys.sort(axis=1)
    best = keys[:, ::-1]
    return layout.RANKS - (best & layout.RANKS), (best >> 32).astype(np.float64), counts


def sum_passages(passages: Grouped, terms: Queries, best: int, allowed: np.ndarray, hits: int, space: Space) -> Hits:
    """The hits of some queries by the sums of their best passages."""
    queries, ends = len(terms.ends) - 1, passages.ends(best)
    places, scores = np.zeros((queries, hits), np.int64), np.zeros((queries, hits))
    counts = np.zeros(queries, np.int64)
    for query in range(queries):
        of_passages, sums = np.zeros(ends[-1], np.int32), np.zeros(len(passages.sizes), np.int64)
        find_best(passages.postings, terms, query, allowed, space, ends, of_passages, sums)
        add_up(ends, of_passages, sums)
        top = select_top_positions(sums, hits)
        counts[query] = len(top)
        places[query, : len(top)], scores[query, : len(top)] = top, sums[top]
    return places, scores, counts


def split_steps(queries: int, threads: int) -> Iterator[tuple[int, int]]:
    """The spans of queries that threads take one after the other; shorter to the end, so that all end together."""
    first = 0
    while first < queries:
        last = min(queries, first + STEP)
        if threads > 1:
            last = min(last, first + max(1, (queries - first) // (2 * threads)))
        yield first, last
        first = last
