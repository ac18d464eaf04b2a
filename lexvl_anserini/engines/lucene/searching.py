"""Searches batches of queries: one call and a few arrays for hundreds of queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain, islice
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.engines.jvm import attend, get_our_class, raise_java_errors
from lexvl_anserini.engines.lucene.fields import CONTENTS
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery, count_bits_over
from lexvl_anserini.ground.typed import MOST_THREADS, check_count
from lexvl_anserini.queries.clauses import describe_inexact_score
from lexvl_anserini.queries.query_vectors import QueryBatch
from lexvl_anserini.runs.order import RankedList, group_by_documents

if TYPE_CHECKING:
    from lexvl_anserini.engines.resident.layout import PostingLists

# Hits that one call returns, about 20 bytes each.
BATCH_HITS = 1 << 17

# Queries that one call receives, and their terms.
BATCH_QUERIES = 256
BATCH_TERMS = 1 << 18

# Terms whose places in the index are cached; some hundred bytes each.
KNOWN_TERMS = 1 << 20

# Before each list: the number of hits, and of the bytes of their ids.
HEADER = Struct("<ii")


class BatchSearcher:
    """Computes dot products with the documents of an open index; all forms of its postings give the same lists.

    Attributes:
        lucene: returns Lucene's postings.
        max_impact: the greatest impact of all, if known.
        serving: receives the number of queries that were answered, and returns the resident postings, or None where
            Lucene's answer; itself None for an index without them.
        served: the number of queries that each form has answered.
    """

    def __init__(
        self,
        lucene: Callable[[], LucenePostings],
        documents: int,
        max_impact: int | None,
        serving: Callable[[int], PostingLists | None] | None = None,
    ):
        self.lucene, self.documents, self.max_impact, self.serving = lucene, documents, max_impact, serving
        self.served: Counter[str] = Counter()
        self._counting = Lock()

    def over(self, serving: Callable[[int], PostingLists]) -> BatchSearcher:
        """The same over other resident postings, which serve at once; counts with this one."""
        other = copy(self)
        other.serving = serving
        return other

    def search(
        self,
        queries: Iterable[ImpactQuery],
        hits: int,
        threads: int = 1,
        allowed: np.ndarray | None = None,
        best: int = 0,
    ) -> Iterator[RankedList]:
        """One list per query, in their order; memory does not grow with their number.

        `allowed` and `best` are as of `ResidentPostings.lists`; only resident postings have a filter.
        """
        check_count("hits", hits)
        check_count("threads", threads, most=MOST_THREADS)
        stream = iter(queries)
        size = max(1, min(BATCH_QUERIES, BATCH_HITS // min(hits, self.documents)))
        # Batches grow, so that the first lists are returned early.
        step = 1
        while batch := list(islice(stream, step)):
            for part in _split_batch(batch):
                yield from self._lists(part, min(hits, self.documents), threads, allowed, best)
            step = min(2 * step, size)

    def bound(self, vector: Mapping[str, float]) -> float:
        """The highest score that any document could reach: sum over terms of weight x greatest impact.

        Where already the index's greatest impact shows that it is below 2^24, the bound is not the tightest.
        """
        if self.max_impact is not None:
            quick = self.max_impact * sum(vector.values())
            if quick < SCORE_LIMIT:
                return quick
        form = self.resident() or self.lucene()
        most = sum(w * m for w, m in zip(vector.values(), form.find_max_impacts(list(vector)), strict=True))
        if most < SCORE_LIMIT:
            return most
        # The greatest impacts of postings can be of deleted documents; the first hits of single terms are of others.
        firsts = form.lists(QueryBatch([ImpactQuery(term, {term: 1}) for term in vector]), 1, 1)
        return sum(w * hits.scores[0] for w, hits in zip(vector.values(), firsts, strict=True) if hits)

    def resident(self) -> PostingLists | None:
        """Returns the resident postings; None where Lucene's answer."""
        return self.serving(sum(self.served.values())) if self.serving else None

    def _lists(
        self, batch: list[ImpactQuery], hits: int, threads: int, allowed: np.ndarray | None, best: int
    ) -> list[RankedList]:
        checked = QueryBatch(batch)
        self._refuse_inexact(checked)
        resident = self.resident()

        def passages(some: Sequence[ImpactQuery], depth: int) -> list[RankedList]:
            return self.lucene().lists(QueryBatch(some), min(depth, self.documents), threads)

        if resident is not None:
            lists = resident.lists(checked, hits, threads, allowed, best)
        else:
            assert allowed is None, "Lucene's postings have no filter"
            lists = (
                list(group_by_documents(passages, batch, hits, best))
                if best
                else self.lucene().lists(checked, hits, threads)
            )
        self.count((resident or self.lucene()).name, len(batch))
        return lists

    def _refuse_inexact(self, batch: QueryBatch) -> None:
        """Refuses (ArtefactError) a query whose score could reach 2^24."""
        if self.max_impact is not None and batch.largest_sum() * self.max_impact < SCORE_LIMIT:
            return
        bounds = (self.resident() or self.lucene()).bounds(batch).tolist()
        for query_id, vector, most in zip(batch.query_ids, batch.vectors, bounds, strict=True):
            if most >= SCORE_LIMIT and (most := self.bound(vector)) >= SCORE_LIMIT:
                bits = count_bits_over(most)
                remedy = f"quantise queries (or documents) with {bits} bit{'s' * (bits > 1)} less"
                raise describe_inexact_score(query_id, int(most), remedy)

    def count(self, form: str, queries: int) -> None:
        """Notes that a form of the postings has answered queries."""
        with self._counting:
            self.served[form] += queries


class LucenePostings:
    """The postings in Lucene's own files, read by Java; calls from several threads run one after the other."""

    name = "lucene"

    def __init__(self, reader: Any):
        self.static = get_our_class("ImpactSearcher")  # static methods, which threads may call at once
        self.java = self.static(reader, CONTENTS)
        self.numbers: dict[str, int] = {}
        self.lock = Lock()

    def lists(self, batch: QueryBatch, hits: int, threads: int) -> list[RankedList]:
        """One ranked list per query; `threads` of Java."""
        attend()
        with self.lock:
            self._know(chain.from_iterable(batch.vectors))
            terms = chain.from_iterable(batch.vectors)
            numbers = np.fromiter(map(self.numbers.__getitem__, terms), "<i4", len(batch.weights))
            with raise_java_errors("the index cannot be searched"):
                arrays = (batch.ends[1:].astype("<i4"), numbers, batch.weights.astype("<f4"))
                raw = self.static.search(self.java, *map(bytes, arrays), hits, threads).tostring()
        return list(_read_lists(raw, batch.query_ids))

    def find_max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each of these terms, from all its postings."""
        attend()
        with self.lock:
            self._know(terms)
            numbers = np.array([self.numbers[term] for term in terms], dtype="<i4")
            with raise_java_errors("the index cannot be searched"):
                raw = self.static.maxImpacts(self.java, numbers.tobytes()).tostring()
        return np.frombuffer(raw, "<i4").tolist()

    def bounds(self, batch: QueryBatch) -> np.ndarray:
        """An upper bound of the score of any document for each query, float64 [queries]."""
        return batch.bounds(self.find_max_impacts)

    def _know(self, terms: Iterable[str]) -> None:
        """Numbers the terms; looks new ones up in the index."""
        distinct = set(terms)
        if len(self.numbers) + len(distinct) > KNOWN_TERMS:
            self.numbers.clear()
            self.static.forget(self.java)
        new = [term for term in distinct if term not in self.numbers]
        if not new:
            return
        with raise_java_errors("the index cannot be searched"):
            # No indexed term contains a zero byte, which ends a term in this call.
            names = [term.encode("utf-8", "surrogatepass") for term in new]
            self.static.know(self.java, b"".join((b"\x01" if b"\0" in name else name) + b"\0" for name in names))
        self.numbers.update(zip(new, range(len(self.numbers), len(self.numbers) + len(new)), strict=True))


def _split_batch(batch: list[ImpactQuery]) -> Iterator[list[ImpactQuery]]:
    """A batch in pieces of at most `BATCH_TERMS` terms; a query is never split."""
    part: list[ImpactQuery] = []
    terms = 0
    for query in batch:
        if part and terms + len(query.vector) > BATCH_TERMS:
            yield part
            part, terms = [], 0
        part.append(query)
        terms += len(query.vector)
    yield part


def _read_lists(raw: bytes, query_ids: Iterable[str]) -> Iterator[RankedList]:
    """Ranked lists from Java's bytes: per query int32 hits, int32 bytes, float32 scores, ids one a line."""
    at = 0
    for query_id in query_ids:
        hits, length = HEADER.unpack_from(raw, at)
        ids = at + HEADER.size + 4 * hits
        scores = np.frombuffer(raw, "<f4", hits, at + HEADER.size)
        yield RankedList(query_id, raw[ids : ids + length], scores.astype(np.float64))
        at = ids + length
