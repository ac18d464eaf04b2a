"""Answers batches of queries from resident postings, on as many threads as requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, repeat
from threading import Lock

import numpy as np

from lexvl_anserini.engines.resident.kernels import Postings, Queries, Space, expand, search, spell
from lexvl_anserini.engines.resident.layout import BLOCK, REMEDY, WIDTHS, Sections, slot_places
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import ImpactQuery, ScoredDoc
from lexvl_anserini.runs.order import hit_list

# Queries that a thread takes at a time: enough that a call costs little, few enough that all threads end together.
STEP = 8

# Room for keys of hits that are not the best in the end: it is sorted out each time it is full.
LEAST_KEYS = 1024

# Where no filter excludes documents.
ALL_DOCUMENTS = np.zeros(0, np.uint8)

# The part of a key that holds 2^32 - 1 - rank.
RANKS = 2**32 - 1


class ResidentPostings:
    """The postings of an open file, ready for queries; threads may call at once.

    Args:
        sections: of the file, whose checksum was compared: the kernels trust what it says.
    """

    name = "resident"

    def __init__(self, sections: Sections):
        arrays, contents = sections.arrays, sections.contents
        place, column = slot_places(sections)
        octets, width = arrays["octets"], np.dtype(WIDTHS[contents.width])
        self.postings = Postings(
            slots=arrays["slots"].astype(np.int64),
            block=arrays["block"],
            kind=arrays["kind"],
            counts=arrays["counts"],
            most=arrays["most"],
            place=place,
            column=column,
            octets=octets,
            shorts=octets.view("<u2"),
            impacts=octets.view(width),
            # The system gives memory where a column is filled, not before.
            columns=np.zeros(contents.columns, width),
            rank=arrays["rank"],
        )
        self.ids, self.id_ends, self.longest_id = arrays["ids"], arrays["id_ends"], contents.longest_id
        names = bytes(arrays["terms"]).decode("utf-8", "replace").split("\0")
        self.numbers = {term: n for n, term in enumerate(names[: len(arrays["slots"]) - 1])}
        starts = self.postings.slots[:-1]
        self.most = np.maximum.reduceat(arrays["most"], starts) if len(starts) else arrays["most"]
        self.expanded, self.lock = np.zeros(len(place), bool), Lock()
        self.spaces: list[Space] = []

    def warm(self) -> None:
        """Loads or compiles the kernels, which their first call does."""
        self.lists([ImpactQuery("", dict.fromkeys(islice(self.numbers, 1), 1))], 1, 1)

    def lists(
        self, queries: Sequence[ImpactQuery], hits: int, threads: int, allowed: np.ndarray | None = None
    ) -> list[list[ScoredDoc]]:
        """One ranked list per query, whose scores are below 2^24.

        Args:
            allowed: uint8 [documents], 1 for those that can be hits; None if all can.
        """
        allowed = ALL_DOCUMENTS if allowed is None else allowed
        ranked_lists: list[list[ScoredDoc]] = [[]] * len(queries)
        steps = iter(range(0, len(queries), STEP))

        def work() -> None:
            for first in steps:
                ranked_lists[first : first + STEP] = self._some(queries[first : first + STEP], hits, allowed)

        if threads == 1 or len(queries) <= STEP:
            work()
        else:
            with ThreadPoolExecutor(threads) as pool:
                for done in [pool.submit(work) for _ in range(threads)]:
                    done.result()
        return ranked_lists

    def max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""
        numbers = map(self.numbers.get, terms, repeat(-1))
        return [0 if number < 0 else int(self.most[number]) for number in numbers]

    def _batch(self, queries: Sequence[ImpactQuery]) -> Queries:
        """The queries' terms that the index has."""
        vectors = [query.vector for query in queries]
        ends = np.cumsum([0, *map(len, vectors)])
        terms = np.fromiter(map(self.numbers.get, chain.from_iterable(vectors), repeat(-1)), np.int64, ends[-1])
        weights = np.fromiter(chain.from_iterable(vector.values() for vector in vectors), np.int32, ends[-1])
        there = terms >= 0
        if not there.all():
            ends = np.concatenate([[0], np.cumsum(there)])[ends]
            terms, weights = terms[there], weights[there]
        return Queries(ends, terms, weights)

    def _some(self, queries: Sequence[ImpactQuery], hits: int, allowed: np.ndarray) -> Iterator[list[ScoredDoc]]:
        """The lists of some queries, by this thread alone."""
        batch = self._batch(queries)
        with self.lock:
            expand(self.postings, batch, self.expanded)
        keys, counts = np.empty(len(queries) * hits, np.int64), np.empty(len(queries), np.int64)
        space = self._space(hits, int(np.diff(batch.ends).max()))
        self._fill(batch, hits, allowed, space, keys, counts)
        self.spaces.append(space)
        spelt = np.empty(hits * (self.longest_id + 1), np.uint8)
        for place, (query, count) in enumerate(zip(queries, counts.tolist(), strict=True)):
            best = np.sort(keys[place * hits : place * hits + count])[::-1]
            size = spell(self.ids, self.id_ends, RANKS - (best & RANKS), spelt)
            if size < 0:
                raise ArtefactError(
                    f"topic {query.query_id!r}: resident postings are damaged, an id cannot be read; {REMEDY}"
                )
            yield hit_list(query.query_id, spelt[:size].tobytes(), (best >> 32).astype(np.float64))

    def _fill(
        self, batch: Queries, hits: int, allowed: np.ndarray, space: Space, keys: np.ndarray, counts: np.ndarray
    ) -> None:
        """Finds the keys of the hits of a batch, as `search` does."""
        search(self.postings, batch, (0, len(counts)), allowed, hits, space, keys, counts)

    def _space(self, hits: int, terms: int) -> Space:
        """One thread's arrays, those of an earlier call if they are large enough."""
        try:
            space = self.spaces.pop()
        except IndexError:
            space = None
        if space is not None and len(space.next) >= terms and len(space.keys) >= 2 * hits:
            return space
        keys = np.empty(max(4 * hits, LEAST_KEYS), np.int64)
        wide, narrow = np.zeros((4, terms), np.int64), np.zeros((2, terms), np.int32)
        return Space(np.empty(BLOCK, np.int32), keys, wide[0], wide[1], narrow[0], wide[2], narrow[1], wide[3])
