"""Query trees over a store: evaluated here, on stored vectors, for the documents that can match.

A document scores at most the dot product with all scored terms of the tree, by which the store finds candidates.
"""

from __future__ import annotations

from collections.abc import Mapping

from lexvl_anserini.ground.errors import UsageError
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
    walk,
)


def refuse_unsearchable(clause: Clause, engine: str) -> None:
    """Refuses clauses that need more than vectors.

    Raises:
        UsageError: metadata, BM25, or a factor that makes floats.
    """
    for node in walk(clause):
        what = None
        if isinstance(node, Equals | Range):
            what = f"the metadata field {node.field!r}"
        elif isinstance(node, Text):
            what = "BM25 of a text"
        elif isinstance(node, Boost) and node.weight != int(node.weight):
            what = f"the factor {node.weight}, which is no integer"
        if what:
            raise UsageError(f"{what}: {engine} answers terms and ids; build an index with --engine lucene for this")


def score(clause: Clause, doc_id: str, vector: Mapping[str, int]) -> int | None:
    """The score of a document, None where the clause does not match (`queries/clauses.py` has the table)."""
    if isinstance(clause, Impacts | Term):
        weights = clause.vector if isinstance(clause, Impacts) else {clause.term: clause.weight}
        shared = [weight * vector[term] for term, weight in weights.items() if term in vector]
        return sum(shared) if shared else None
    if isinstance(clause, Ids):
        return 0 if doc_id in clause.doc_ids else None
    below = [score(child, doc_id, vector) for child in clause.children()]
    if isinstance(clause, Not):
        return 0 if below[0] is None else None
    if isinstance(clause, Boost | Unscored):
        factor = int(clause.weight) if isinstance(clause, Boost) else 0
        return None if below[0] is None else factor * below[0]
    assert isinstance(clause, All | AnyOf)
    required = below[: len(clause.clauses)]
    missing = None in required if isinstance(clause, All) else all(one is None for one in required)
    return None if missing else sum(one for one in below if one is not None)


def among(clause: Clause) -> frozenset[str] | None:
    """Ids of which every matching document has one; None where the tree names none."""
    if isinstance(clause, Ids):
        return frozenset(clause.doc_ids)
    if isinstance(clause, All):
        sets = [ids for child in clause.clauses if (ids := among(child)) is not None]
        return frozenset.intersection(*sets) if sets else None
    if isinstance(clause, AnyOf):
        every = [among(child) for child in clause.clauses]
        return None if None in every else frozenset().union(*(ids for ids in every if ids is not None))
    return among(clause.clause) if isinstance(clause, Boost | Unscored) else None


def has_scored_term(clause: Clause) -> bool:
    """True if every matching document has a term that scores: then the store finds them all by their scores."""
    if isinstance(clause, Impacts | Term):
        return True
    if isinstance(clause, All):
        return any(has_scored_term(child) for child in clause.clauses)
    if isinstance(clause, AnyOf):
        return all(has_scored_term(child) for child in clause.clauses)
    return isinstance(clause, Boost) and clause.weight > 0 and has_scored_term(clause.clause)
