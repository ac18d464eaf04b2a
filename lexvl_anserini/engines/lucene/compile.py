"""Compiles clause trees to Lucene queries.

A filter has no score (FILTER, or a constant 0), so a sum has only impacts and BM25. Every sum of impacts is exact,
because it is below 2^24 whatever the shape of the tree; BM25 adds float32 numbers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from math import ceil, floor, inf, isfinite, nextafter
from typing import Any

import orjson

from lexvl_anserini.engines.jvm import java_calls, java_cast, java_class
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, META, TEXT, text_analyzer
from lexvl_anserini.ground.errors import ArtefactError, UnknownName, UsageError
from lexvl_anserini.ground.records import SCORE_LIMIT
from lexvl_anserini.queries.clauses import (
    All,
    AnyOf,
    Boost,
    Clause,
    Equals,
    Ids,
    Impacts,
    Not,
    Range,
    Term,
    Text,
    Unscored,
    Value,
    bound,
)

SEARCH = "org.apache.lucene.search"

# Of Java's long: an open side of a range.
LEAST, MOST = -(2**63), 2**63 - 1

EPOCH = date(1970, 1, 1).toordinal()


class Compiler:
    """Compiles clause trees for one index.

    fields  name -> type of every metadata field: keyword, long, double or date; `text` if the index has texts
    """

    @java_calls()
    def __init__(self, fields: Mapping[str, str]):
        self.fields = fields
        self.json = java_class("com.fasterxml.jackson.databind.ObjectMapper")()
        named = java_class("java.lang.Class").forName
        # One call receives many weights or ids, as JSON.
        self.weights = self.json.readerForMapOf(named("java.lang.Float"))
        self.refs = self.json.readerForListOf(named("org.apache.lucene.util.BytesRef"))
        self.generator = java_class("io.anserini.search.query.BagOfWordsQueryGenerator")()
        self.occur = java_class(f"{SEARCH}.BooleanClause$Occur")
        self.of: Mapping[type, Callable[[Any], Any]] = {
            All: self._all,
            AnyOf: self._any_of,
            Boost: lambda clause: self._boosted(self.query(clause.clause), clause.weight),
            Equals: lambda clause: self._unscored(self._equals(clause)),
            Ids: lambda clause: self._unscored(self._ids(clause.doc_ids)),
            Impacts: lambda clause: self._impacts(clause.vector),
            Not: self._not,
            Range: lambda clause: self._unscored(self._range(clause)),
            Term: lambda clause: self._impacts({clause.term: clause.weight}),
            Text: self._text,
            Unscored: lambda clause: self._unscored(self.query(clause.clause)),
        }

    @java_calls()
    def query(self, clause: Clause) -> Any:
        """The Lucene query of a tree."""
        return java_cast(f"{SEARCH}.Query", self.of[type(clause)](clause))

    def _boolean(self, clauses: Iterable[tuple[Any, Any]]) -> Any:
        builder = java_class(f"{SEARCH}.BooleanQuery$Builder")()
        for query, occur in clauses:
            builder.add(query, occur)
        return builder.build()

    def _impacts(self, vector: Mapping[str, int]) -> Any:
        """One clause a term, of which one must match; an empty vector matches nothing."""
        weights = self.weights.readValue(orjson.dumps(vector).decode())
        return self.generator.buildQuery(CONTENTS, weights)

    def _text(self, clause: Text) -> Any:
        if TEXT not in self.fields:
            raise UsageError("this index has no text field; build it with --text from shards with --store-contents")
        builder = java_class("org.apache.lucene.util.QueryBuilder")(text_analyzer())
        query = builder.createBooleanQuery(TEXT, clause.string)
        # A text of stop words only has no query.
        return self._boosted(self._nothing() if query is None else query, clause.weight)

    def _boosted(self, query: Any, weight: float) -> Any:
        return java_class(f"{SEARCH}.BoostQuery")(java_cast(f"{SEARCH}.Query", query), float(weight))

    def _unscored(self, query: Any) -> Any:
        constant = java_class(f"{SEARCH}.ConstantScoreQuery")(java_cast(f"{SEARCH}.Query", query))
        return self._boosted(constant, 0.0)

    def _everything(self) -> Any:
        return java_cast(f"{SEARCH}.Query", java_class(f"{SEARCH}.MatchAllDocsQuery")())

    def _nothing(self) -> Any:
        return java_cast(f"{SEARCH}.Query", java_class(f"{SEARCH}.MatchNoDocsQuery")())

    def _all(self, clause: All) -> Any:
        # With optional clauses only, Lucene would drop documents that match none; the filter keeps them.
        clauses = [(self._everything(), self.occur.FILTER)]
        for child in clause.clauses:
            if isinstance(child, Not):
                clauses.append((self.query(child.clause), self.occur.MUST_NOT))
            elif isinstance(child, Unscored | Equals | Range | Ids):
                clauses.append((self.query(child), self.occur.FILTER))
            else:
                clauses.append((self.query(child), self.occur.MUST))
        return self._boolean([*clauses, *((self.query(child), self.occur.SHOULD) for child in clause.optional)])

    def _any_of(self, clause: AnyOf) -> Any:
        return self._boolean((self.query(child), self.occur.SHOULD) for child in clause.clauses)

    def _not(self, clause: Not) -> Any:
        return self._boolean(
            [(self._everything(), self.occur.FILTER), (self.query(clause.clause), self.occur.MUST_NOT)]
        )

    def _ids(self, doc_ids: Iterable[str]) -> Any:
        packed = [
            {"bytes": base64.b64encode(raw).decode(), "offset": 0, "length": len(raw)}
            for raw in (doc_id.encode() for doc_id in doc_ids)
        ]
        refs = self.refs.readValue(orjson.dumps(packed).decode())
        return java_class(f"{SEARCH}.TermInSetQuery")(ID, java_cast("java.util.Collection", refs))

    def _equals(self, clause: Equals) -> Any:
        if self._type(clause.field) == "keyword":
            term = java_class("org.apache.lucene.index.Term")(clause.field, keyword(clause.value))
            return java_class(f"{SEARCH}.TermQuery")(term)
        return self._range(Range(clause.field, clause.value, clause.value))

    def _range(self, clause: Range) -> Any:
        kind = self._type(clause.field)
        if kind == "keyword":
            low, high = (None if end is None else keyword(end) for end in (clause.low, clause.high))
            ranges = java_class(f"{SEARCH}.TermRangeQuery")
            return ranges.newStringRange(clause.field, low, high, clause.include_low, clause.include_high)
        points = java_class(f"org.apache.lucene.document.{'Double' if kind == 'double' else 'Long'}Point")
        ends = double_range(clause) if kind == "double" else long_range(clause, kind)
        return self._nothing() if ends[0] > ends[1] else points.newRangeQuery(clause.field, *ends)

    def _type(self, field: str) -> str:
        if field not in self.fields or field == TEXT:
            raise UnknownName("metadata field", field, (name for name in self.fields if name.startswith(META)))
        return self.fields[field]


def refuse_rounding(query_id: str, clause: Clause, vector_bound: Callable[[Mapping[str, float]], float]) -> None:
    """Refuses a tree whose sums Lucene's float32 could round.

    Raises:
        ArtefactError: a score could reach 2^24.
    """
    most = bound(clause, vector_bound)
    if most >= SCORE_LIMIT:
        raise ArtefactError(
            f"topic {query_id!r}: its score could reach {ceil(most):,}, above {SCORE_LIMIT - 1:,} up to which "
            "Lucene's scores are exact; lower the weights of the tree"
        )


def keyword(value: Value) -> str:
    """A value as a keyword field holds it; true and false as JSON writes them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def long_range(clause: Range, kind: str) -> tuple[int, int]:
    """Both ends of a range of whole numbers (or days), included."""
    low, high = LEAST, MOST
    if clause.low is not None:
        end = number(clause.field, clause.low, kind)
        low = ceil(end) if clause.include_low or end != floor(end) else floor(end) + 1
    if clause.high is not None:
        end = number(clause.field, clause.high, kind)
        high = floor(end) if clause.include_high or end != ceil(end) else ceil(end) - 1
    # Every value of the field is inside the range of Java's long.
    return (1, 0) if low > MOST or high < LEAST else (max(low, LEAST), min(high, MOST))


def double_range(clause: Range) -> tuple[float, float]:
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


def number(field: str, value: Value, kind: str) -> int | float:
    """A value as its field holds it: long, double, or a date as days since 1970-01-01.

    Raises:
        UsageError: it is none.
    """
    if kind == "date":
        try:
            return date.fromisoformat(str(value)).toordinal() - EPOCH
        except ValueError as error:
            raise UsageError(f"{field}: {value!r} is no date, expected YYYY-MM-DD") from error
    # Integers remain integers, whatever their size.
    for parse in (int, float):
        try:
            parsed = value if isinstance(value, int | float) else parse(str(value))
        except ValueError:
            continue
        if isfinite(parsed):
            return parsed
    raise UsageError(f"{field}: {value!r} is no number, and the field is {kind}")
