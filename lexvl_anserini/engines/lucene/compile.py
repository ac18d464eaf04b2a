"""Compiles clause trees to Lucene queries.

A filter has no score (FILTER, or a constant 0), so a sum has only impacts and BM25. Every sum of impacts is exact,
because it is below 2^24 whatever the shape of the tree; BM25 adds float32 numbers.
"""

from __future__ import annotations

import base64
import re
from calendar import monthrange
from collections.abc import Iterable, Mapping
from datetime import date
from math import ceil, floor, inf, isfinite, nextafter
from typing import Any, NamedTuple

import orjson

from lexvl_anserini.engines.jvm import call_cast, call_java, get_java_class
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, META, TEXT, make_text_analyzer
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.queries import clauses as trees

SEARCH = "org.apache.lucene.search"

# The ends of Java's long, for an open side of a range.
LEAST, MOST = -(2**63), 2**63 - 1

EPOCH = date(1970, 1, 1).toordinal()
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
    # Integers remain integers, whatever their size.
    for parse in (int, float):
        try:
            parsed = value if isinstance(value, int | float) else parse(str(value))
        except ValueError:
            continue
        if isfinite(parsed):
            return parsed
    raise UsageError(f"{field}: {value!r} is no number, and the field is {kind}")
