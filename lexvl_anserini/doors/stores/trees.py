"""Query trees over a store: evaluated here, on stored vectors, for the documents that can match.

A document scores at most the dot product with all scored terms of the tree, by which the store finds candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.queries.clauses import Boost, Clause, Equals, Ids, Impacts, Range, Term, Text, Unscored, fold, walk


def refuse_unsearchable(clause: Clause, engine: str) -> None:
    """Refuses clauses that need more than vectors."""
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

    def leaf(clause: Clause) -> int | None:
        if isinstance(clause, Ids):
            return 0 if doc_id in clause.doc_ids else None
        assert isinstance(clause, Impacts | Term)
        weights = clause.vector if isinstance(clause, Impacts) else {clause.term: clause.weight}
        shared = [weight * vector[term] for term, weight in weights.items() if term in vector]
        return sum(shared) if shared else None

    return fold(
        clause,
        leaf,
        all_of=lambda required, optional: None if None in required else added([*required, *optional]),
        any_of=lambda scores: None if all(score is None for score in scores) else added(scores),
        negated=lambda clause, score: 0 if score is None else None,
        scaled=lambda clause, score: (
            None if score is None else score * (int(clause.weight) if isinstance(clause, Boost) else 0)
        ),
    )


def added(scores: Iterable[int | None]) -> int:
    """The sum of the scores of the clauses that match."""
    return sum(score for score in scores if score is not None)


def among(clause: Clause) -> frozenset[str] | None:
    """Ids of which every matching document has one; None where the tree names none."""

    def common(required: list[frozenset[str] | None], optional: list[frozenset[str] | None]) -> frozenset[str] | None:
        sets = [ids for ids in required if ids is not None]
        return frozenset.intersection(*sets) if sets else None

    def any_of(sets: list[frozenset[str] | None]) -> frozenset[str] | None:
        return None if None in sets else frozenset().union(*(ids for ids in sets if ids is not None))

    def leaf(clause: Clause) -> frozenset[str] | None:
        return frozenset(clause.doc_ids) if isinstance(clause, Ids) else None

    return fold(
        clause,
        leaf,
        all_of=common,
        any_of=any_of,
        negated=lambda clause, ids: None,
        scaled=lambda clause, ids: ids,
    )


def has_scored_term(clause: Clause) -> bool:
    """True if every matching document has a term that scores: then the store finds them all by their scores."""

    def leaf(clause: Clause) -> bool:
        return isinstance(clause, Impacts | Term)

    def scaled(clause: Boost | Unscored, scored: bool) -> bool:
        return scored and isinstance(clause, Boost) and clause.weight > 0

    def negated(clause: Clause, scored: bool) -> bool:
        return False

    return fold(clause, leaf, lambda required, optional: any(required), all, negated, scaled)
