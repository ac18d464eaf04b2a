"""Queries with the user's weights of terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.queries.clauses import All, AnyOf, Clause, Impacts, Not, Term, Unscored, fold


def reweighted(clause: Clause, weights: Mapping[str, int]) -> Clause:
    """The tree with other weights of terms; a term of weight 0 must still match where it had to, and adds nothing."""

    def leaf(clause: Clause) -> Clause:
        if isinstance(clause, Term) and clause.term in weights:
            weight = weights[clause.term]
            return replace(clause, weight=weight) if weight else Unscored(Term(clause.term))
        return Impacts(changed(clause.vector, weights)) if isinstance(clause, Impacts) else clause

    return fold(
        clause,
        leaf,
        all_of=lambda required, optional: All(tuple(required), tuple(optional)),
        any_of=lambda clauses: AnyOf(tuple(clauses)),
        negated=lambda clause, below: Not(below),
        scaled=lambda clause, below: replace(clause, clause=below),
    )


def changed(vector: Mapping[str, int], weights: Mapping[str, int]) -> dict[str, int]:
    """The vector with other weights, new terms at the end; a weight of 0 leaves a term out."""
    if any(weight < 0 for weight in weights.values()):
        raise UsageError("a weight below 0; expected 0, which leaves the term out, or more")
    return {term: weight for term, weight in {**vector, **weights}.items() if weight}
