"""The best hits of a query: more are fetched until the order across the cut is certain; long queries go in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from lexvl_anserini.doors.stores.store import ImpactStore
from lexvl_anserini.ground.errors import ArtefactError

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


def best_hits(store: ImpactStore, dims: Sequence[int], weights: Sequence[int], hits: int, where: str) -> Scored:
    """The documents that can be among the `hits` best, all ties of the last one included.

    Args:
        where: the query, for errors.
    """
    # The list of a query in parts has gaps below its end, also where each part's list is ordered.
    ordered = store.ordered and not is_long(store, dims)

    def certain(fetched: Fetched) -> Scored | None:
        hits_so_far = fetched.hits
        enough = len(hits_so_far) > hits and hits_so_far[hits - 1][1] > hits_so_far[-1][1]
        return hits_so_far if fetched.all or enough or (ordered and len(hits_so_far) >= hits) else None

    return growing(store, lambda count: top(store, dims, weights, count, where), certain, hits, where)


def growing(
    store: ImpactStore,
    fetch: Callable[[int], Fetched],
    certain: Callable[[Fetched], Result | None],
    hits: int,
    where: str,
) -> Result:
    """What `certain` makes of enough hits: it gets more of them, twice as many each time, until it is not None."""
    most, count = store.most_hits, hits + MARGIN
    while True:
        count = count if most is None else min(count, most)
        if (found := certain(fetch(count))) is not None:
            return found
        if count == most:
            raise ArtefactError(
                f"{where}: the cut at {hits} hits is in a tie, or beyond the {most:,} hits that {store.title} returns; "
                "which documents come first cannot be known: use fewer --hits, or an index of lucene"
            )
        count *= 2


def top(store: ImpactStore, dims: Sequence[int], weights: Sequence[int], count: int, where: str) -> Fetched:
    """The `count` best documents of a query of any number of terms."""
    if is_long(store, dims):
        return in_parts(store, dims, weights, count, where)
    hits = store.top(dims, weights, count)
    return Fetched([hit for hit in hits if hit[1] > 0], len(hits) < count)


def is_long(store: ImpactStore, dims: Sequence[int]) -> bool:
    """True for a query of more terms than the store takes."""
    return store.most_terms is not None and len(dims) > store.most_terms


def in_parts(store: ImpactStore, dims: Sequence[int], weights: Sequence[int], count: int, where: str) -> Fetched:
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
        new = {doc_id for found in lists for doc_id, _ in found} - scores.keys()
        scores.update((doc_id, dot(query, vector)) for doc_id, vector in vectors(store, sorted(new)).items())
        rest = sum(found[-1][1] for found in lists if len(found) == size)
        best = sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))
        # Below `rest`, documents that no list has may come between.
        return Fetched([hit for hit in best if hit[1] >= rest], rest == 0)

    def certain(fetched: Fetched) -> Fetched | None:
        return fetched if fetched.all or len(fetched.hits) >= count else None

    return growing(store, fetch, certain, count, where)


def dot(query: Mapping[int, int], vector: Mapping[int, int]) -> int:
    """The integer dot product."""
    return sum(weight * vector[dim] for dim, weight in query.items() if dim in vector)


def vectors(store: ImpactStore, doc_ids: Sequence[str]) -> dict[str, dict[int, int]]:
    """Vectors of any number of documents; those that the index does not have are absent."""
    vectors_by_id: dict[str, dict[int, int]] = {}
    for start in range(0, len(doc_ids), VECTORS):
        vectors_by_id |= store.vectors(doc_ids[start : start + VECTORS])
    return vectors_by_id
