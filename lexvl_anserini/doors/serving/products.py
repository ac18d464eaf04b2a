"""The products of a query's terms for one document, for every query tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


class Match(NamedTuple):
    """Whether a clause matches a document, and whether terms alone decide it."""

    holds: bool
    decided: bool


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

    def leaf(node: Clause) -> Match:
        terms = node.vector if isinstance(node, Impacts) else (node.term,) if isinstance(node, Term) else None
        return Match(True, False) if terms is None else Match(any(term in impacts for term in terms), True)

    return fold(
        clause,
        on_leaf=leaf,
        on_all=lambda required, optional: Match(
            all(match.holds for match in required), _decided([*required, *optional])
        ),
        on_any=lambda matches: Match(any(match.holds for match in matches), _decided(matches)),
        on_not=lambda match: Match(not match.holds or not match.decided, match.decided),
        on_factor=lambda factor, match: match,
    ).holds


def _decided(matches: Sequence[Match]) -> bool:
    return bool(matches) and all(match.decided for match in matches)


def has_text(clause: Clause) -> bool:
    """Whether BM25 is part of a tree."""
    return isinstance(clause, Text) or any(map(has_text, clause.children()))


def reweighted(clause: Clause, weights: Mapping[str, int]) -> Clause:
    """The tree with other weights of terms; a term of weight 0 must still match where it had to, and adds nothing.

    Raises:
        UsageError: a weight is below 0 or 2^24 or more.
    """
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
    """The vector with other weights, new terms at the end; a weight of 0 leaves a term out.

    Raises:
        UsageError: a weight is below 0.
    """
    if any(weight < 0 for weight in weights.values()):
        raise UsageError("a weight below 0; expected 0, which leaves the term out, or more")
    return {term: weight for term, weight in {**vector, **weights}.items() if weight}
