"""Answers batches of queries from resident postings, on as many threads as requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain, islice, repeat
from threading import Lock

import numpy as np

from lexvl_anserini.engines.resident.grouping import STOP, Grouped, grouped
from lexvl_anserini.engines.resident.kernels import Postings, Queries, Space, add_up, expand, find_best, search, spell
from lexvl_anserini.engines.resident.layout import BLOCK, REMEDY, WIDTHS, Sections, slot_places
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import ImpactQuery, ScoredDoc
from lexvl_anserini.runs.order import hit_list, top_positions

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
        self.ids_there = contents.ids
        names = bytes(arrays["terms"]).decode("utf-8", "replace").split("\0")
        self.numbers = {term: n for n, term in enumerate(names[: len(arrays["slots"]) - 1])}
        starts = self.postings.slots[:-1]
        self.most = np.maximum.reduceat(arrays["most"], starts) if len(starts) else arrays["most"]
        self.expanded, self.lock = np.zeros(len(place), bool), Lock()
        self.spaces: list[Space] = []

    @cached_property
    def passages(self) -> Grouped:
        """The postings as those of passages."""
        return grouped(self.postings, self.ids, self.id_ends, self.longest_id, self.ids_there)

    def warm(self) -> None:
        """Loads or compiles the kernels, which their first call does."""
        self.lists([ImpactQuery("", dict.fromkeys(islice(self.numbers, 1), 1))], 1, 1)

    def lists(
        self, queries: Sequence[ImpactQuery], hits: int, threads: int, allowed: np.ndarray | None = None, best: int = 0
    ) -> list[list[ScoredDoc]]:
        """One ranked list per query, whose scores are below 2^24.

        Args:
            allowed: uint8 [documents], 1 for those that can be hits; None if all can.
            best: from 1 on, hits are documents whose passages are in the index, scored by the sum of so many of them.
        """
        allowed = ALL_DOCUMENTS if allowed is None else allowed
        ranked_lists: list[list[ScoredDoc]] = [[]] * len(queries)
        steps = iter(range(0, len(queries), STEP))
        passages = self.passages if best else None

        def work() -> None:
            for first in steps:
                some = queries[first : first + STEP]
                ranked_lists[first : first + STEP] = self._some(some, hits, allowed, best, passages)

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

    def _some(
        self, queries: Sequence[ImpactQuery], hits: int, allowed: np.ndarray, best: int, passages: Grouped | None
    ) -> Iterator[list[ScoredDoc]]:
        """The lists of some queries, by this thread alone."""
        batch = self._batch(queries)
        with self.lock:
            expand(self.postings, batch, self.expanded)
        space = self._space(hits, int(np.diff(batch.ends).max()), len(passages.sizes) if passages and best == 1 else 0)
        if passages and best > 1:
            hits_of = _sums(passages, batch, best, hits, allowed, space)
        else:
            hits_of = _maxima(passages.postings if passages else self.postings, batch, hits, allowed, space)
        spelt = np.empty(hits * (self.longest_id + 1), np.uint8)
        for query, (places, scores) in zip(queries, hits_of, strict=True):
            ranks = passages.passage[places] if passages else places
            size = spell(self.ids, self.id_ends, ranks, STOP if passages else 0, spelt)
            if size < 0:
                raise ArtefactError(
                    f"topic {query.query_id!r}: resident postings are damaged, an id cannot be read; {REMEDY}"
                )
            yield hit_list(query.query_id, spelt[:size].tobytes(), scores.astype(np.float64))
        self.spaces.append(space)

    def _space(self, hits: int, terms: int, documents: int) -> Space:
        """One thread's arrays, those of an earlier call if they are large enough."""
        try:
            space = self.spaces.pop()
        except IndexError:
            space = None
        if (
            space is not None
            and len(space.next) >= terms
            and len(space.keys) >= 2 * hits
            and len(space.seen) == documents
        ):
            return space
        keys = np.empty(max(4 * hits, LEAST_KEYS), np.int64)
        wide, narrow = np.zeros((4, terms), np.int64), np.zeros((2, terms), np.int32)
        seen = np.full(documents, -1, np.int32)
        return Space(np.empty(BLOCK, np.int32), keys, wide[0], wide[1], narrow[0], wide[2], narrow[1], wide[3], seen)


# The ranks of a query's hits, best first, and their scores.
Hits = tuple[np.ndarray, np.ndarray]


def _maxima(postings: Postings, batch: Queries, hits: int, allowed: np.ndarray, space: Space) -> Iterator[Hits]:
    """The hits of each query by their own scores; of documents of one rank the best one."""
    queries = len(batch.ends) - 1
    keys, counts = np.empty(queries * hits, np.int64), np.empty(queries, np.int64)
    search(postings, batch, (0, queries), allowed, hits, space, keys, counts)
    for place, count in enumerate(counts.tolist()):
        best = np.sort(keys[place * hits : place * hits + count])[::-1]
        yield RANKS - (best & RANKS), best >> 32


def _sums(passages: Grouped, batch: Queries, best: int, hits: int, allowed: np.ndarray, space: Space) -> Iterator[Hits]:
    """The hits of each query by the sums of their best passages."""
    ends = passages.ends(best)
    for query in range(len(batch.ends) - 1):
        scores, sums = np.zeros(ends[-1], np.int32), np.zeros(len(passages.sizes), np.int64)
        find_best(passages.postings, batch, query, allowed, space, ends, scores)
        add_up(ends, scores, sums)
        places = top_positions(sums, hits)
        yield places, sums[places]
