"""The best hits of a query: more are fetched until the order across the cut is certain; long queries go in parts.

Query trees are evaluated here, on the vectors that a store returns, for the documents that can match. A document scores
at most the dot product with all scored terms of the tree, by which the store finds candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.queries.clauses import (
    Boost,
    Clause,
    Equals,
    Ids,
    Impacts,
    Range,
    Term,
    Text,
    Unscored,
    fold,
    walk,
)
from lexvl_plugins.stores.store import ImpactStore

Scored = list[tuple[str, float]]
Result = TypeVar("Result")

# How many more than the hits are fetched at first, to see past ties at the cut.
MARGIN = 16

# Documents whose vectors one request fetches.
VECTORS = 256


class Fetched(NamedTuple):
    """Hits of one request, the best first, and whether the store has no more."""

    hits: Scored
    all: bool


def best_hits(store: ImpactStore, dims: Sequence[int], weights: Sequence[int], hits: int) -> Scored:
    """The documents that can be among the `hits` best, all ties of the last one included."""
    # The list of a query in parts has gaps below its end, also where each part's list is ordered.
    ordered = store.ordered and not is_long(store, dims)

    def certain(fetched: Fetched) -> Scored | None:
        hits_so_far = fetched.hits
        enough = len(hits_so_far) > hits and hits_so_far[hits - 1][1] > hits_so_far[-1][1]
        return hits_so_far if fetched.all or enough or (ordered and len(hits_so_far) >= hits) else None

    return growing(lambda count: top(store, dims, weights, count), certain, hits)


def growing(fetch: Callable[[int], Fetched], certain: Callable[[Fetched], Result | None], hits: int) -> Result:
    """What `certain` makes of enough hits: it gets more of them, twice as many each time, until it is not None."""
    count = hits + MARGIN
    while (result := certain(fetch(count))) is None:
        count *= 2
    return result


def top(store: ImpactStore, dims: Sequence[int], weights: Sequence[int], count: int) -> Fetched:
    """The `count` best documents of a query of any number of terms."""
    if is_long(store, dims):
        return in_parts(store, dims, weights, count)
    hits = store.top(dims, weights, count)
    return Fetched([hit for hit in hits if hit[1] > 0], len(hits) < count)


def is_long(store: ImpactStore, dims: Sequence[int]) -> bool:
    """True for a query of more terms than the store takes."""
    return store.most_terms is not None and len(dims) > store.most_terms


def in_parts(store: ImpactStore, dims: Sequence[int], weights: Sequence[int], count: int) -> Fetched:
    """As `top`, for a query of more terms than the store takes (Fagin's threshold algorithm).

    Each part of the query has a list of its own. A document in none of the lists scores at most the sum of their last
    scores; those in the lists are scored with their stored vectors. The lists grow until `count` documents score as
    much as any other can.
    """
    assert store.most_terms is not None
    steps = range(0, len(dims), store.most_terms)
    parts = [slice(start, start + store.most_terms) for start in steps]
    query = dict(zip(dims, weights, strict=True))
    scores: dict[str, float] = {}

    def fetch(size: int) -> Fetched:
        lists = [store.top(dims[part], weights[part], size) for part in parts]
        new = {doc_id for hits in lists for doc_id, _ in hits} - scores.keys()
        scores.update((doc_id, dot(query, vector)) for doc_id, vector in vectors(store, sorted(new)).items())
        rest = sum(hits[-1][1] for hits in lists if len(hits) == size)
        best = sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))
        # Below `rest`, documents that no list has may come between.
        return Fetched([hit for hit in best if hit[1] >= rest], rest == 0)

    def certain(fetched: Fetched) -> Fetched | None:
        return fetched if fetched.all or len(fetched.hits) >= count else None

    return growing(fetch, certain, count)


def dot(query: Mapping[int, int], vector: Mapping[int, int]) -> int:
    """The integer dot product."""
    return sum(weight * vector[dim] for dim, weight in query.items() if dim in vector)


def vectors(store: ImpactStore, doc_ids: Sequence[str]) -> dict[str, dict[int, int]]:
    """Vectors of any number of documents; those that the index does not have are absent."""
    vectors_by_id: dict[str, dict[int, int]] = {}
    for start in range(0, len(doc_ids), VECTORS):
        vectors_by_id |= store.vectors(doc_ids[start : start + VECTORS])
    return vectors_by_id


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


def score_of(clause: Clause, doc_id: str, vector: Mapping[str, int]) -> int | None:
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
