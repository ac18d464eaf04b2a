"""The best hits of a query: more are fetched until the order across the cut is certain; long queries go in parts.

Query trees are evaluated here, on stored vectors; the store finds candidates by the dot product with all their terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.queries.clauses import Boost, Clause, Equals, Ids, Impacts, Range, Term, Text, Unscored, fold, walk
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


def fetch_best(store: ImpactStore, dims: Sequence[int], weights: Sequence[int], hits: int) -> Scored:
    """The documents that can be among the `hits` best, all ties of the last one included."""
    # The list of a query in parts has gaps below its end, also where each part's list is ordered.
    ordered = store.ordered and not is_long(store, dims)

    def select(fetched: Fetched) -> Scored | None:
        so_far = fetched.hits
        enough = len(so_far) > hits and so_far[hits - 1][1] > so_far[-1][1]
        return so_far if fetched.all or enough or (ordered and len(so_far) >= hits) else None

    return fetch_until(lambda count: fetch_top(store, dims, weights, count), select, hits)


def fetch_until(fetch: Callable[[int], Fetched], select: Callable[[Fetched], Result | None], hits: int) -> Result:
    """What `select` makes of enough hits: it gets more of them, twice as many each time, until it is not None."""
    count = hits + MARGIN
    while (result := select(fetch(count))) is None:
        count *= 2
    return result


def is_long(store: ImpactStore, dims: Sequence[int]) -> bool:
    """True for a query of more terms than the store takes."""
    return store.most_terms is not None and len(dims) > store.most_terms


def fetch_top(store: ImpactStore, dims: Sequence[int], weights: Sequence[int], count: int) -> Fetched:
    """The `count` best documents of a query; of more terms than the store takes, by Fagin's threshold algorithm.

    A document in none of the parts' lists scores at most the sum of their last scores; those in the lists are scored
    with their stored vectors. The lists grow until `count` documents score as much as any other can.
    """
    if not is_long(store, dims):
        hits = store.top(dims, weights, count)
        return Fetched([hit for hit in hits if hit[1] > 0], len(hits) < count)
    assert store.most_terms is not None
    parts = [slice(start, start + store.most_terms) for start in range(0, len(dims), store.most_terms)]
    query = dict(zip(dims, weights, strict=True))
    scores: dict[str, float] = {}

    def fetch(size: int) -> Fetched:
        lists = [store.top(dims[part], weights[part], size) for part in parts]
        new = {doc_id for hits in lists for doc_id, _ in hits} - scores.keys()
        scores.update((doc_id, multiply(query, vector)) for doc_id, vector in fetch_vectors(store, sorted(new)).items())
        rest = sum(hits[-1][1] for hits in lists if len(hits) == size)
        best = sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))
        # Below `rest`, documents that no list has may come between.
        return Fetched([hit for hit in best if hit[1] >= rest], rest == 0)

    return fetch_until(fetch, lambda fetched: fetched if fetched.all or len(fetched.hits) >= count else None, count)


def multiply(query: Mapping[int, int], vector: Mapping[int, int]) -> int:
    """The integer dot product."""
    return sum(weight * vector[dim] for dim, weight in query.items() if dim in vector)


def fetch_vectors(store: ImpactStore, doc_ids: Sequence[str]) -> dict[str, dict[int, int]]:
    """Vectors of any number of documents; those that the index does not have are absent."""
    vectors: dict[str, dict[int, int]] = {}
    for start in range(0, len(doc_ids), VECTORS):
        vectors |= store.vectors(doc_ids[start : start + VECTORS])
    return vectors


def refuse_unsearchable(clause: Clause, engine: str) -> None:
    """Refuses clauses that need more than vectors."""
    for node in walk(clause):
        if isinstance(node, Equals | Range):
            what = f"the metadata field {node.field!r}"
        elif isinstance(node, Text):
            what = "BM25 of a text"
        elif isinstance(node, Boost) and node.weight != int(node.weight):
            what = f"the factor {node.weight}, which is no integer"
        else:
            continue
        raise UsageError(f"{what}: {engine} answers terms and ids; build an index with --engine lucene for this")


def score_document(clause: Clause, doc_id: str, vector: Mapping[str, int]) -> int | None:
    """The score of a document, None where the clause does not match (`queries/clauses.py` has the table)."""

    def score_leaf(clause: Clause) -> int | None:
        if isinstance(clause, Ids):
            return 0 if doc_id in clause.doc_ids else None
        assert isinstance(clause, Impacts | Term)
        weights = clause.vector if isinstance(clause, Impacts) else {clause.term: clause.weight}
        shared = [weight * vector[term] for term, weight in weights.items() if term in vector]
        return sum(shared) if shared else None

    def add(scores: list[int | None]) -> int | None:
        matching = [score for score in scores if score is not None]
        return sum(matching) if matching else None

    return fold(
        clause,
        score_leaf,
        all_of=lambda required, optional: None if None in required else add([0, *required, *optional]),
        any_of=add,
        negated=lambda _, score: 0 if score is None else None,
        scaled=lambda above, score: (
            None if score is None else score * (int(above.weight) if isinstance(above, Boost) else 0)
        ),
    )


def find_ids(clause: Clause) -> frozenset[str] | None:
    """Ids of which every matching document has one; None where the tree names none."""

    def intersect(required: list[frozenset[str] | None], _: list[frozenset[str] | None]) -> frozenset[str] | None:
        sets = [ids for ids in required if ids is not None]
        return frozenset.intersection(*sets) if sets else None

    def unite(sets: list[frozenset[str] | None]) -> frozenset[str] | None:
        return None if None in sets else frozenset().union(*(ids for ids in sets if ids is not None))

    return fold(
        clause,
        lambda leaf: frozenset(leaf.doc_ids) if isinstance(leaf, Ids) else None,
        all_of=intersect,
        any_of=unite,
        negated=lambda _, ids: None,
        scaled=lambda _, ids: ids,
    )


def has_scored_term(clause: Clause) -> bool:
    """True if every matching document has a term that scores: then the store finds them all by their scores."""

    def is_scored(leaf: Clause) -> bool:
        return isinstance(leaf, Impacts | Term)

    def keeps(above: Boost | Unscored, scored: bool) -> bool:
        return scored and isinstance(above, Boost) and above.weight > 0

    return fold(clause, is_scored, lambda required, optional: any(required), all, lambda _, scored: False, keeps)
