"""Query trees: typed clauses that define which documents match and what they score, for any impact engine.

    Impacts({"dog": 9, "sea": 4}) & ~Term("cat") & Range("meta.year", 2010, 2020)

| clause          | a document matches if                        | and scores                                   |
|-----------------|----------------------------------------------|----------------------------------------------|
| Impacts(vector) | it shares a term with the vector             | the dot product                              |
| Term(t, w)      | it has the term                              | w x its impact                               |
| Text(s, w)      | its text has a word of s, analysed           | w x BM25                                     |
| Equals, Range   | its metadata field has such a value          | 0                                            |
| Ids             | its id is one of them                        | 0                                            |
| All             | every clause matches                         | their sum, and that of the optional matching |
| AnyOf           | one clause matches at least                  | the sum of those that match                  |
| Not             | the clause does not match                    | 0                                            |
| Boost(c, w)     | c matches                                    | w x the score of c                           |
| Unscored(c)     | c matches                                    | 0                                            |

A document that matches is a hit even if it scores 0; `All(())` matches every document, `AnyOf(())` none.

Scores are exact as those of encoded queries are: the sum over terms of weight x greatest impact in the index is below
2^24 (`bound`), with a Boost as a factor of the weights below it. A Boost that is no integer, and Text, make floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate
from math import isfinite
from numbers import Real
from operator import mul
from typing import NamedTuple, TypeVar

import numpy as np

from lexvl_anserini.ground.errors import InexactScore, UsageError
from lexvl_anserini.ground.records import SCORE_LIMIT, DenseQuery, ImpactQuery, TermWeights, Topic

MAX_DEPTH = 100  # clauses within each other: engines compile and search a tree recursively
Value = str | int | float | date  # a value of a metadata field; text is converted to the field's type
Result = TypeVar("Result")  # what `fold` computes


class Clause:
    """A node of a query tree; `a & b`, `a | b` and `~a` are All, AnyOf and Not."""

    def __and__(self, other: Clause) -> All:
        return All((self, other))

    def __or__(self, other: Clause) -> AnyOf:
        return AnyOf((self, other))

    def __invert__(self) -> Not:
        return Not(self)

    def children(self) -> tuple[Clause, ...]:
        """The clauses directly below, in the order of the fields."""
        below: list[Clause] = []
        for value in vars(self).values():
            below += [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Clause)]
        return tuple(below)


@dataclass(frozen=True)
class Impacts(Clause):
    """An encoded query: term -> weight, integers from 1 to 2^24 - 1."""

    vector: Mapping[str, int]

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "vector", {term: _convert_weight(term, weight) for term, weight in self.vector.items()}
        )


@dataclass(frozen=True)
class Term(Clause):
    """One term of the vocabulary; its weight is an integer from 1 to 2^24 - 1."""

    term: str
    weight: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _convert_weight(self.term, self.weight))


@dataclass(frozen=True)
class Text(Clause):
    """Words for the ordinary text field, with the analysis of the index."""

    string: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_factor(self.weight, f"text {self.string[:40]!r}")


@dataclass(frozen=True)
class Equals(Clause):
    """A metadata field (`meta.<key>`) has this value; numbers and dates may be text, `2019` is any day of that year."""

    field: str
    value: Value


@dataclass(frozen=True)
class Range(Clause):
    """A metadata field has a value between two; None leaves a side open. Keywords compare by code points."""

    field: str
    low: Value | None = None
    high: Value | None = None
    include_low: bool = True
    include_high: bool = True


@dataclass(frozen=True)
class Ids(Clause):
    """The documents of these ids."""

    doc_ids: tuple[str, ...]


@dataclass(frozen=True)
class All(Clause):
    """Each of `clauses` must match; those of `optional` that match add their scores."""

    clauses: tuple[Clause, ...]
    optional: tuple[Clause, ...] = ()


@dataclass(frozen=True)
class AnyOf(Clause):
    """At least one clause must match."""

    clauses: tuple[Clause, ...]


@dataclass(frozen=True)
class Not(Clause):
    """The clause must not match."""

    clause: Clause


@dataclass(frozen=True)
class Boost(Clause):
    """Multiplies a score; scores are integers only if the factor is an integer."""

    clause: Clause
    weight: float

    def __post_init__(self) -> None:
        _check_factor(self.weight, "a boost")


@dataclass(frozen=True)
class Unscored(Clause):
    """Filters without a score."""

    clause: Clause


class TreeQuery(NamedTuple):
    """A query for an impact index: a topic's id and a query tree."""

    query_id: str
    clause: Clause


# What an engine answers: an impact index the first two, a dense index DenseQuery, BM25 Topic.
Query = ImpactQuery | TreeQuery | DenseQuery | Topic


def build_clause(query: ImpactQuery | TreeQuery) -> Clause:
    """A query of an impact index as a tree."""
    return query.clause if isinstance(query, TreeQuery) else Impacts(query.vector)


def walk(clause: Clause) -> Iterator[Clause]:
    """The clause and all clauses below it, however deep."""
    waiting = [clause]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(node.children())


def fold(
    clause: Clause,
    leaf: Callable[[Clause], Result],
    all_of: Callable[[list[Result], list[Result]], Result],
    any_of: Callable[[list[Result]], Result],
    negated: Callable[[Not, Result], Result],
    scaled: Callable[[Boost | Unscored, Result], Result],
) -> Result:
    """A value of a tree, computed from its leaves up: each function makes a clause's value from those below it.

    `all_of` gets the values of the clauses and of the optional ones; `scaled` is for `Boost` and `Unscored`.
    """

    def value(below: Clause) -> Result:
        return fold(below, leaf, all_of, any_of, negated, scaled)

    if isinstance(clause, All):
        return all_of([value(child) for child in clause.clauses], [value(child) for child in clause.optional])
    if isinstance(clause, AnyOf):
        return any_of([value(child) for child in clause.clauses])
    if isinstance(clause, Not):
        return negated(clause, value(clause.clause))
    if isinstance(clause, Boost | Unscored):
        return scaled(clause, value(clause.clause))
    return leaf(clause)


def check_tree(clause: Clause) -> None:
    """Refuses a tree that no engine could search or score."""
    waiting = [(clause, 1, 1.0)]
    while waiting:
        node, depth, factor = waiting.pop()
        if depth > MAX_DEPTH:
            raise UsageError(f"a query tree of clauses nested more than {MAX_DEPTH} deep; write it with fewer brackets")
        factor *= node.weight if isinstance(node, Boost) else 1
        if factor >= SCORE_LIMIT:
            raise UsageError(f"factors that multiply to {factor:,.0f}: expected at most {SCORE_LIMIT - 1:,}")
        for text in _list_texts(node):
            if not text.isascii() and text.encode(errors="ignore").decode() != text:
                raise UsageError(f"{text[:40]!r}: half a character (a lone surrogate), expected a text in UTF-8")
        waiting += [(child, depth + 1, factor) for child in node.children()]


def _list_texts(node: Clause) -> Iterator[str]:
    """The texts of a clause itself: terms, fields, values, ids."""
    for value in vars(node).values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple | Mapping):
            yield from (text for text in value if isinstance(text, str))


def list_terms(clause: Clause) -> Iterator[str]:
    """Every term in the tree."""
    for node in walk(clause):
        if isinstance(node, Impacts):
            yield from node.vector
        elif isinstance(node, Term):
            yield node.term


def list_scored_terms(
    clause: Clause, factor: float = 1, matching: Callable[[Clause], bool] = lambda clause: True
) -> Iterator[tuple[str, float]]:
    """The terms that add to a document's score, each with its weight times the factors above it.

    Clauses that are not `matching` are left out, with those below them.
    """
    if not matching(clause):
        return
    if isinstance(clause, Impacts):
        yield from ((term, factor * weight) for term, weight in clause.vector.items())
    elif isinstance(clause, Term):
        yield clause.term, factor * clause.weight
    elif not isinstance(clause, Not | Unscored):
        factor *= clause.weight if isinstance(clause, Boost) else 1
        for child in clause.children():
            yield from list_scored_terms(child, factor, matching)


def bound(clause: Clause, bound_of_vector: Callable[[Mapping[str, float]], float]) -> float:
    """An upper bound of what impacts add to a document's score in this tree; BM25 is not counted.

    It is the bound of the encoded query with the tree's terms and weights, those of a repeated term added up.
    """
    total: dict[str, float] = {}
    for term, weight in list_scored_terms(clause):
        total[term] = total.get(term, 0) + weight
    return bound_of_vector(total)


class FilteredQuery(NamedTuple):
    """A tree as an encoded query among the documents that match a condition; None is every document."""

    vector: Mapping[str, int]
    condition: Clause | None


def to_filtered(clause: Clause) -> FilteredQuery | None:
    """The encoded query and the condition with a tree's hits and scores; None for a tree that has none.

    It has one if each clause that must match is a sum of terms or adds nothing, one at least is a sum, and the optional
    clauses are sums or add nothing: then every hit scores 1 or more, the dot product with all its terms.
    """
    required, optional = _join_clauses(clause)
    sums = [_sum_weights(part) for part in required]
    scored = [part for part, terms in zip(required, sums, strict=True) if terms]
    conditions = [part for part, terms in zip(required, sums, strict=True) if not terms]
    more = [_sum_weights(part) for part in optional]
    without = [*conditions, *(part for part, terms in zip(optional, more, strict=True) if not terms)]
    if not scored or any(_is_sum(part) for part in without):
        return None
    # A hit that nothing else adds to matches the one sum that must match.
    if len(scored) > 1 or any(more):
        conditions = [*scored, *conditions]
    vector: dict[str, int] = {}
    for terms in (*sums, *more):
        for term, weight in terms:
            vector[term] = vector.get(term, 0) + weight
    if max(vector.values()) >= SCORE_LIMIT:
        return None
    return FilteredQuery(vector, All(tuple(conditions)) if conditions else None)


def has_named_documents(condition: Clause | None) -> bool:
    """True if a document must have one of some ids to match."""
    return condition is not None and any(isinstance(part, Ids) for part in _join_clauses(condition)[0])


def _join_clauses(clause: Clause) -> tuple[list[Clause], list[Clause]]:
    """The clauses that a document must match, and the optional ones; conjunctions that must match are opened."""
    if not isinstance(clause, All):
        return [clause], []
    required, optional = list[Clause](), [*clause.optional]
    for part in map(_join_clauses, clause.clauses):
        required += part[0]
        optional += part[1]
    return required, optional


def _sum_weights(clause: Clause, factor: int = 1) -> list[tuple[str, int]]:
    """The terms of a clause that matches if a term does and scores the sum of those that do; empty for another one."""
    if isinstance(clause, Impacts):
        return [(term, factor * weight) for term, weight in clause.vector.items()]
    if isinstance(clause, Term):
        return [(clause.term, factor * clause.weight)]
    if isinstance(clause, Boost) and clause.weight >= 1 and float(clause.weight).is_integer():
        return _sum_weights(clause.clause, factor * int(clause.weight))
    if isinstance(clause, AnyOf):
        parts = [_sum_weights(part, factor) for part in clause.clauses]
        return [pair for part in parts for pair in part] if all(parts) else []
    return []


def _is_sum(clause: Clause) -> bool:
    if isinstance(clause, All | AnyOf | Boost):
        return any(map(_is_sum, clause.children()))
    return isinstance(clause, Impacts | Term | Text)


def describe_inexact_score(query_id: str, most: float, remedy: str, scores: str = "Lucene's scores") -> InexactScore:
    """The error about a query whose score could reach `most`, 2^24 or more."""
    return InexactScore(
        f"topic {query_id!r}: its score could reach {most:,}, above {SCORE_LIMIT - 1:,} up to which {scores} are "
        f"exact; {remedy}"
    )


def _convert_weight(term: str, weight: int) -> int:
    """The weight as a Python integer, numpy's included."""
    number = isinstance(weight, Real) and not isinstance(weight, bool) and weight // 1 == weight
    value = int(weight) if number else 0
    if not 1 <= value < SCORE_LIMIT:
        raise UsageError(
            f"weight {str(weight)[:40]} of term {term!r}: expected an integer from 1 to {SCORE_LIMIT - 1:,}; quantise "
            "the query first"
        )
    return value


def _check_factor(weight: float, what: str) -> None:
    if not (isfinite(weight) and 0 <= weight < SCORE_LIMIT):
        raise UsageError(f"weight {weight!r} of {what}: expected a number from 0 to {SCORE_LIMIT - 1:,}")


NO_WEIGHTS = np.zeros(0, np.int64)


class QueryBatch:
    """Queries that an engine answers together; the terms of query q are numbers ends[q] to ends[q + 1].

    Weights are int64 [ends[Q]], and Python's own integers in the vectors.
    """

    def __init__(self, queries: Sequence[ImpactQuery]):
        self.query_ids, self.vectors = list[str](), list[Mapping[str, int]]()
        for query_id, vector in queries:
            plain = isinstance(vector, TermWeights) or set(map(type, vector.values())) <= {int}
            self.query_ids.append(query_id)
            self.vectors.append(vector if plain else _convert_weights(query_id, vector))
        self.ends = np.fromiter(accumulate(map(len, self.vectors), initial=0), np.int64, len(self.vectors) + 1)
        try:
            parts = [
                v.weights if isinstance(v, TermWeights) else np.fromiter(v.values(), np.int64, len(v))
                for v in self.vectors
            ]
            self.weights = together(parts, NO_WEIGHTS)
            inside = not len(self.weights) or 1 <= self.weights.min() <= self.weights.max() < SCORE_LIMIT
        except OverflowError:
            inside = False
        if not inside:
            for query_id, vector in zip(self.query_ids, self.vectors, strict=True):
                _convert_weights(query_id, vector)

    @classmethod
    def build(cls, queries: QueryBatch | Sequence[ImpactQuery]) -> QueryBatch:
        """The queries as a batch, which they may be already."""
        return queries if isinstance(queries, QueryBatch) else cls(queries)

    def __len__(self) -> int:
        return len(self.vectors)

    def bounds(self, max_impacts: Callable[[Sequence[str]], Sequence[int]]) -> np.ndarray:
        """An upper bound of each query's scores, float64 [Q], exact below 2^53, by the greatest impact of each term."""
        pairs = ((vector.values(), max_impacts(list(vector))) for vector in self.vectors)
        return np.array([sum(map(mul, *pair)) for pair in pairs], np.float64)

    def largest_sum(self) -> int:
        """The largest sum of a query's weights."""
        if len(self) == 1:
            return int(self.weights.sum())
        starts = self.ends[:-1]
        # An empty query counts with the first weight of the next, and not at all behind the last.
        starts = starts[starts < len(self.weights)]
        return int(np.add.reduceat(self.weights, starts).max()) if len(starts) else 0


def together(arrays: Sequence[np.ndarray], none: np.ndarray) -> np.ndarray:
    """Arrays after each other, of the type of `none`, which is that of no arrays; a single one is not copied."""
    return np.asarray(arrays[0], none.dtype) if len(arrays) == 1 else np.concatenate([none, *arrays])


def _convert_weights(query_id: str, vector: Mapping[str, int]) -> Mapping[str, int]:
    try:
        return Impacts(vector).vector
    except UsageError as error:
        raise UsageError(f"topic {query_id!r}: {error}") from error
