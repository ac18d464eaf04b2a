"""The products of a query's terms for one document, for every query tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.queries.clauses import Boost, Clause, Impacts, Not, Term, Text, Unscored, fold


class TermProduct(NamedTuple):
    """A term of query and document: product = weight x impact."""

    term: str
    weight: float
    impact: int

    @property
    def product(self) -> float:
        """What the term adds to the score."""
        return self.weight * self.impact


def products_of(clause: Clause, impacts: Mapping[str, int]) -> list[TermProduct]:
    """The terms that add to a document's score, the largest product first, equal ones by term.

    A document that is a hit matches the tree, so that only clauses below an `AnyOf`, or optional ones, may not match.
    Whether metadata, ids and texts match is not known here: they count as matching.

    Args:
        clause: the query.
        impacts: of the document, at least for the terms of the tree that it has.
    """
    totals: dict[str, float] = {}
    for term, weight in _adding(clause, impacts, 1):
        totals[term] = totals.get(term, 0) + weight
    products = [TermProduct(term, weight, impacts[term]) for term, weight in totals.items() if weight]
    return sorted(products, key=lambda one: (-one.product, one.term))


def _adding(clause: Clause, impacts: Mapping[str, int], factor: float) -> Iterator[tuple[str, float]]:
    """Terms with their weights, of the clauses that match."""
    if not matches(clause, impacts) or isinstance(clause, Not | Unscored):
        return
    if isinstance(clause, Impacts):
        yield from ((term, factor * weight) for term, weight in clause.vector.items() if term in impacts)
    elif isinstance(clause, Term):
        yield clause.term, factor * clause.weight
    else:
        factor *= clause.weight if isinstance(clause, Boost) else 1
        for child in clause.children():
            yield from _adding(child, impacts, factor)


def matches(clause: Clause, impacts: Mapping[str, int]) -> bool:
    """Whether a document of these impacts matches; clauses that are not about terms count as matching."""

    def leaf(clause: Clause) -> bool:
        if isinstance(clause, Term):
            return clause.term in impacts
        return not isinstance(clause, Impacts) or any(term in impacts for term in clause.vector)

    return fold(
        clause,
        leaf,
        all_of=lambda required, optional: all(required),
        any_of=any,
        negated=lambda clause, match: not match or not _about_terms(clause.clause),
        scaled=lambda clause, match: match,
    )


def _about_terms(clause: Clause) -> bool:
    """Whether terms alone decide if a document matches."""

    def leaf(clause: Clause) -> bool:
        return isinstance(clause, Term | Impacts)

    return fold(
        clause,
        leaf,
        all_of=lambda required, optional: bool(required or optional) and all([*required, *optional]),
        any_of=lambda parts: bool(parts) and all(parts),
        negated=lambda clause, part: part,
        scaled=lambda clause, part: part,
    )


def has_text(clause: Clause) -> bool:
    """Whether BM25 is part of a tree."""
    return isinstance(clause, Text) or any(map(has_text, clause.children()))


def reweighted(clause: Clause, weights: Mapping[str, int]) -> Clause:
    """The tree with other weights of terms; a term of weight 0 must still match where it had to, and adds nothing."""
    if isinstance(clause, Term) and clause.term in weights:
        weight = weights[clause.term]
        return replace(clause, weight=weight) if weight else Unscored(Term(clause.term))
    if isinstance(clause, Impacts):
        return Impacts(changed(clause.vector, weights))
    changes: dict[str, Any] = {}
    for field in fields(clause):  # type: ignore[arg-type]
        value = getattr(clause, field.name)
        if isinstance(value, Clause):
            changes[field.name] = reweighted(value, weights)
        elif isinstance(value, tuple) and any(isinstance(one, Clause) for one in value):
            changes[field.name] = tuple(reweighted(one, weights) for one in value)
    return replace(clause, **changes) if changes else clause  # type: ignore[type-var]


def changed(vector: Mapping[str, int], weights: Mapping[str, int]) -> dict[str, int]:
    """The vector with other weights, new terms at the end; a weight of 0 leaves a term out."""
    if any(weight < 0 for weight in weights.values()):
        raise UsageError("a weight below 0; expected 0, which leaves the term out, or more")
    return {term: weight for term, weight in {**vector, **weights}.items() if weight}
