"""Query trees over a store: evaluated here, on stored vectors, for the documents that can match.

A document scores at most the dot product with all scored terms of the tree, by which the store finds candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.queries.clauses import Boost, Clause, Equals, Ids, Impacts, Range, Term, Text, fold, walk


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

    def leaf(node: Clause) -> int | None:
        if isinstance(node, Ids):
            return 0 if doc_id in node.doc_ids else None
        assert isinstance(node, Impacts | Term)
        weights = node.vector if isinstance(node, Impacts) else {node.term: node.weight}
        shared = [weight * vector[term] for term, weight in weights.items() if term in vector]
        return sum(shared) if shared else None

    def total(scores: Sequence[int | None]) -> int:
        return sum(score for score in scores if score is not None)

    return fold(
        clause,
        on_leaf=leaf,
        on_all=lambda required, optional: None if None in required else total([*required, *optional]),
        on_any=lambda scores: None if all(score is None for score in scores) else total(scores),
        on_not=lambda score: 0 if score is None else None,
        on_factor=lambda factor, score: None if score is None else int(factor) * score,
    )


def among(clause: Clause) -> frozenset[str] | None:
    """Ids of which every matching document has one; None where the tree names none."""

    def common(required: Sequence[frozenset[str] | None], optional: object) -> frozenset[str] | None:
        named = [ids for ids in required if ids is not None]
        return frozenset.intersection(*named) if named else None

    def joined(sets: Sequence[frozenset[str] | None]) -> frozenset[str] | None:
        named = [ids for ids in sets if ids is not None]
        return frozenset[str]().union(*named) if len(named) == len(sets) else None

    def leaf(node: Clause) -> frozenset[str] | None:
        return frozenset(node.doc_ids) if isinstance(node, Ids) else None

    return fold(
        clause,
        on_leaf=leaf,
        on_all=common,
        on_any=joined,
        on_not=lambda ids: None,
        on_factor=lambda factor, ids: ids,
    )


def has_scored_term(clause: Clause) -> bool:
    """True if every matching document has a term that scores: then the store finds them all by their scores."""

    def leaf(node: Clause) -> bool:
        return isinstance(node, Impacts | Term)

    def required_one(required: Sequence[bool], optional: object) -> bool:
        return any(required)

    def each(clauses: Sequence[bool]) -> bool:
        return all(clauses)

    def never(below: bool) -> bool:
        return False

    def weighted(factor: float, below: bool) -> bool:
        return factor > 0 and below

    return fold(clause, on_leaf=leaf, on_all=required_one, on_any=each, on_not=never, on_factor=weighted)
