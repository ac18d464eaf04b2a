"""Searches batches of queries, one call and a few arrays for hundreds of queries; compiles clause trees to Lucene's.

In a compiled tree a filter has no score (FILTER, or a constant 0), so a sum has only impacts and BM25. Every sum of
impacts is exact, because it is below 2^24 whatever the shape of the tree; BM25 adds float32 numbers.
"""

from __future__ import annotations

import base64
import re
from calendar import monthrange
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import date
from itertools import chain, islice
from math import ceil, floor, inf, isfinite, nextafter
from struct import Struct
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.engines.jvm import attend, call_cast, call_java, get_java_class, get_our_class, raise_java_errors
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, META, TEXT, make_text_analyzer
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery, count_bits_over
from lexvl_anserini.ground.typed import MOST_THREADS, check_count
from lexvl_anserini.queries import clauses as trees
from lexvl_anserini.queries.clauses import QueryBatch
from lexvl_anserini.runs.order import RankedList, group_by_documents

if TYPE_CHECKING:
    from lexvl_anserini.engines.resident.layout import PostingLists

BATCH_HITS = 1 << 17  # hits that one call returns, about 20 bytes each

# Queries that one call receives, and their terms.
BATCH_QUERIES = 256
BATCH_TERMS = 1 << 18

KNOWN_BYTES = 1 << 28  # of the terms whose places in the index are cached, each with `TERM_BYTES` beside its own
TERM_BYTES = 200

HEADER = Struct("<ii")  # before each list: the number of hits, and of the bytes of their ids


class BatchSearcher:
    """Computes dot products with the documents of an open index; all forms of its postings give the same lists.

    `serving` receives the number of queries that were answered, and returns the resident postings, or None where
    Lucene's answer; it is None for an index without them. `served` counts the queries of each form.
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
        assert resident is not None or allowed is None, "Lucene's postings have no filter"

        def passages(some: Sequence[ImpactQuery], depth: int) -> list[RankedList]:
            return self.lucene().lists(QueryBatch(some), min(depth, self.documents), threads)

        if resident is not None:
            lists = resident.lists(checked, hits, threads, allowed, best)
        elif best:
            lists = list(group_by_documents(passages, batch, hits, best))
        else:
            lists = self.lucene().lists(checked, hits, threads)
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
                raise trees.describe_inexact_score(query_id, int(most), remedy)

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
        self.numbers, self.known_bytes = dict[str, int](), 0
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
        new = [term for term in distinct if term not in self.numbers]
        if not new:
            return
        if self.known_bytes + sum(TERM_BYTES + len(term) for term in new) > KNOWN_BYTES:
            self.numbers.clear()
            self.static.forget(self.java)
            new, self.known_bytes = list(distinct), 0
        self.known_bytes += sum(TERM_BYTES + len(term) for term in new)
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


SEARCH = "org.apache.lucene.search"

# The ends of Java's long, for an open side of a range.
LEAST, MOST = -(2**63), 2**63 - 1

EPOCH = date(1970, 1, 1).toordinal()
MOST_END = 1000  # bytes of an end of a range of keywords, of which Lucene makes an automaton
YEAR_OR_MONTH = re.compile(r"(\d{4})(?:-(\d\d))?")


class Compiled(NamedTuple):
    """The Lucene query of a clause (of a `Not` that below it), and its MUST, FILTER or MUST_NOT in a conjunction."""

    query: Any
    occur: str


class Compiler:
    """Compiles clause trees for one index, of these types of metadata fields; it has texts if `text` is among them."""

    @call_java()
    def __init__(self, fields: Mapping[str, str]):
        self.fields = fields
        self.json = get_java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        named = get_java_class("java.lang.Class").forName
        # One call receives many weights or ids, as JSON.
        self.weights = self.json.readerForMapOf(named("java.lang.Float"))
        self.refs = self.json.readerForListOf(named("org.apache.lucene.util.BytesRef"))
        self.generator = get_java_class("io.anserini.search.query.BagOfWordsQueryGenerator")()
        self.occur = get_java_class(f"{SEARCH}.BooleanClause$Occur")

    @call_java()
    def query(self, clause: trees.Clause) -> Any:
        """The Lucene query of a tree."""
        query = trees.fold(clause, self._leaf, self._join_all, self._join_any, self._negate, self._scale)
        return call_cast(f"{SEARCH}.Query", self._alone(query))

    def _leaf(self, clause: trees.Clause) -> Compiled:
        if isinstance(clause, trees.Impacts | trees.Term):
            vector = clause.vector if isinstance(clause, trees.Impacts) else {clause.term: clause.weight}
            return Compiled(self._impacts(vector), "MUST")
        if isinstance(clause, trees.Text):
            return Compiled(self._text(clause), "MUST")
        if isinstance(clause, trees.Ids):
            condition = self._ids(clause.doc_ids)
        else:
            assert isinstance(clause, trees.Equals | trees.Range), clause
            condition = self._equals(clause) if isinstance(clause, trees.Equals) else self._range(clause)
        return Compiled(self._drop_score(condition), "FILTER")

    def _join_all(self, required: list[Compiled], optional: list[Compiled]) -> Compiled:
        # With optional clauses only, Lucene would drop documents that match none; the filter keeps them.
        clauses = [(self._match("All"), "FILTER"), *required]
        clauses += [(self._alone(child), "SHOULD") for child in optional]
        return Compiled(self._boolean(clauses), "MUST")

    def _join_any(self, children: list[Compiled]) -> Compiled:
        return Compiled(self._boolean((self._alone(child), "SHOULD") for child in children), "MUST")

    def _negate(self, clause: trees.Not, below: Compiled) -> Compiled:
        return Compiled(self._alone(below), "MUST_NOT")

    def _scale(self, clause: trees.Boost | trees.Unscored, below: Compiled) -> Compiled:
        if isinstance(clause, trees.Boost):
            return Compiled(self._boost(self._alone(below), clause.weight), "MUST")
        return Compiled(self._drop_score(self._alone(below)), "FILTER")

    def _alone(self, compiled: Compiled) -> Any:
        """The query of a clause that is no part of a conjunction."""
        if compiled.occur == "MUST_NOT":
            return self._boolean([(self._match("All"), "FILTER"), compiled])
        return compiled.query

    def _boolean(self, clauses: Iterable[tuple[Any, str]]) -> Any:
        builder = get_java_class(f"{SEARCH}.BooleanQuery$Builder")()
        for query, occur in clauses:
            builder.add(call_cast(f"{SEARCH}.Query", query), getattr(self.occur, occur))
        return call_cast(f"{SEARCH}.Query", builder.build())

    def _impacts(self, vector: Mapping[str, int]) -> Any:
        """One clause a term, of which one must match; an empty vector matches nothing."""
        weights = self.weights.readValue(orjson.dumps(vector).decode())
        return self.generator.buildQuery(CONTENTS, weights)

    def _text(self, clause: trees.Text) -> Any:
        if TEXT not in self.fields:
            raise UsageError("this index has no text field; build it with --text from shards with --store-contents")
        builder = get_java_class("org.apache.lucene.util.QueryBuilder")(make_text_analyzer())
        query = builder.createBooleanQuery(TEXT, clause.string)
        # A text of stop words only has no query.
        return self._boost(self._match("No") if query is None else query, clause.weight)

    def _boost(self, query: Any, weight: float) -> Any:
        return get_java_class(f"{SEARCH}.BoostQuery")(call_cast(f"{SEARCH}.Query", query), float(weight))

    def _drop_score(self, query: Any) -> Any:
        constant = get_java_class(f"{SEARCH}.ConstantScoreQuery")(call_cast(f"{SEARCH}.Query", query))
        return self._boost(constant, 0.0)

    def _match(self, what: str) -> Any:
        return call_cast(f"{SEARCH}.Query", get_java_class(f"{SEARCH}.Match{what}DocsQuery")())

    def _ids(self, doc_ids: Iterable[str]) -> Any:
        packed = [
            {"bytes": base64.b64encode(raw).decode(), "offset": 0, "length": len(raw)}
            for raw in (doc_id.encode() for doc_id in doc_ids)
        ]
        refs = self.refs.readValue(orjson.dumps(packed).decode())
        return get_java_class(f"{SEARCH}.TermInSetQuery")(ID, call_cast("java.util.Collection", refs))

    def _equals(self, clause: trees.Equals) -> Any:
        if self._type(clause.field) == "keyword":
            term = get_java_class("org.apache.lucene.index.Term")(clause.field, keyword(clause.value))
            return get_java_class(f"{SEARCH}.TermQuery")(term)
        return self._range(trees.Range(clause.field, clause.value, clause.value))

    def _range(self, clause: trees.Range) -> Any:
        kind = self._type(clause.field)
        if kind == "keyword":
            low, high = (None if end is None else keyword(end) for end in (clause.low, clause.high))
            if (longest := max(len((end or "").encode()) for end in (low, high))) > MOST_END:
                raise UsageError(f"{clause.field}: an end of {longest:,} bytes, expected at most {MOST_END:,}")
            ranges = get_java_class(f"{SEARCH}.TermRangeQuery")
            return ranges.newStringRange(clause.field, low, high, clause.include_low, clause.include_high)
        points = get_java_class(f"org.apache.lucene.document.{'Double' if kind == 'double' else 'Long'}Point")
        ends = double_range(clause) if kind == "double" else long_range(clause, kind)
        return self._match("No") if ends[0] > ends[1] else points.newRangeQuery(clause.field, *ends)

    def _type(self, field: str) -> str:
        if field not in self.fields or field == TEXT:
            raise UnknownName("metadata field", field, (name for name in self.fields if name.startswith(META)))
        return self.fields[field]


def keyword(value: trees.Value) -> str:
    """A value as a keyword field holds it; true and false as JSON writes them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def long_range(clause: trees.Range, kind: str) -> tuple[int, int]:
    """Both ends of a range of whole numbers (or days), included."""
    low, high = LEAST, MOST
    if clause.low is not None:
        first, last = span(clause.field, clause.low, kind)
        low = first if clause.include_low else last + 1
    if clause.high is not None:
        first, last = span(clause.field, clause.high, kind)
        high = last if clause.include_high else first - 1
    # Every value of the field is inside the range of Java's long.
    return (1, 0) if low > MOST or high < LEAST else (max(low, LEAST), min(high, MOST))


def span(field: str, value: trees.Value, kind: str) -> tuple[int, int]:
    """The first and the last whole number (or day since 1970-01-01) of a value: a year and a month have many days.

    Of a number with a fraction, they are the next one above and the next one below.
    """
    if kind != "date":
        end = number(field, value, kind)
        return ceil(end), floor(end)
    text = str(value)
    try:
        if match := YEAR_OR_MONTH.fullmatch(text):
            year, month = int(match[1]), int(match[2] or 1)
            months = 1 if match[2] else 12
            days = sum(monthrange(year, month + later)[1] for later in range(months))
            first = date(year, month, 1).toordinal() - EPOCH
            return first, first + days - 1
        return (day := date.fromisoformat(text).toordinal() - EPOCH), day
    except ValueError as error:
        raise UsageError(f"{field}: {value!r} is no date, expected YYYY-MM-DD, YYYY-MM or YYYY") from error


def double_range(clause: trees.Range) -> tuple[float, float]:
    """Both ends of a range of floats, included."""
    low, high = -inf, inf
    if clause.low is not None:
        end = float(number(clause.field, clause.low, "double"))
        # In Lucene -0.0 is less than 0.0.
        low = (end or -0.0) if clause.include_low else nextafter(end, inf)
    if clause.high is not None:
        end = float(number(clause.field, clause.high, "double"))
        high = (end or 0.0) if clause.include_high else nextafter(end, -inf)
    return low, high


def number(field: str, value: trees.Value, kind: str) -> int | float:
    """A value as its field holds it: long or double."""
    # Integers remain integers, up to the largest float.
    for parse in (int, float):
        try:
            if isfinite(parsed := value if isinstance(value, int | float) else parse(str(value))):
                return parsed
        except (ValueError, OverflowError):
            continue
    raise UsageError(f"{field}: {value!r} is no number, and the field is {kind}")
