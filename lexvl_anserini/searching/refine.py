"""Searches encoded queries with the settings of a `Search`: lists of terms, cuts, filters, texts, feedback, phases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import ImpactQuery, heaviest
from lexvl_anserini.queries.clauses import All, AnyOf, Clause, Ids, Text, TreeQuery, Unscored, build_clause
from lexvl_anserini.queries.query_vectors import Feedback, VectorOf, integers, rocchio
from lexvl_anserini.runs.order import group_by_documents, read_best
from lexvl_anserini.searching.search import Search, compute_least_score

if TYPE_CHECKING:
    from lexvl_anserini.engines.engine import ImpactEngine
    from lexvl_anserini.runs.order import RankedList

# Queries held at once.
PIECE = 256

Vector = Mapping[str, int]


class RefinedQuery(NamedTuple):
    """A query after lists of terms and cuts, or a tree as it was; and the topic's text, if the search needs it."""

    query: ImpactQuery | TreeQuery
    text: str | None = None

    @property
    def vector(self) -> Vector:
        """The terms and weights of an encoded query."""
        assert isinstance(self.query, ImpactQuery)
        return self.query.vector

    def with_vector(self, vector: Vector) -> RefinedQuery:
        """Replaces the vector."""
        return self._replace(query=ImpactQuery(self.query.query_id, vector))


def filter_terms(vector: Vector, search: Search) -> dict[str, int]:
    """Keeps the terms that the lists allow."""
    only, without = search.only_terms, search.without_terms or ()
    return {t: w for t, w in vector.items() if t not in without and (only is None or t in only)}


def cut_vector(vector: Vector, search: Search) -> dict[str, int]:
    """Applies the lists of terms, the threshold and the number of terms."""
    vector = filter_terms(vector, search)
    least = search.threshold * max(vector.values(), default=0)
    return heaviest({t: w for t, w in vector.items() if w >= least}, search.query_terms)


def cut_queries(queries: Iterable[Any], search: Search) -> Iterator[Any]:
    """Applies lists and cuts to encoded queries; query trees are unchanged."""
    for query in queries:
        yield query._replace(vector=cut_vector(query.vector, search)) if isinstance(query, ImpactQuery) else query


def build_tree(refined: RefinedQuery, search: Search) -> Clause:
    """Joins a query with its text and the filter, as one tree."""
    clause = build_clause(refined.query)
    if search.text_weight:
        if refined.text is None:
            raise UsageError(
                f"topic {refined.query.query_id!r}: no text for BM25 (an image, or encoded already); give topics with "
                "texts"
            )
        clause = AnyOf((clause, Text(refined.text, search.text_weight)))
    return clause if search.where is None else All((clause, Unscored(search.where)))


def search_refined(
    engine: ImpactEngine, queries: Iterable[RefinedQuery], search: Search, hits: int, vector_of: VectorOf | None = None
) -> Iterator[RankedList]:
    """Yields one ranked list per query, whose lists of terms and cuts are already applied.

    Feedback reads documents by `vector_of`; with `remove_query` it ignores a document whose id is the query's.
    """
    passages, feedback = read_best(search.passages), search.rocchio

    def trees(piece: Sequence[RefinedQuery], hits: int, required: Clause | None = None) -> Iterator[RankedList]:
        for refined in piece:
            tree = build_tree(refined, search)
            yield engine.search_tree(refined.query.query_id, All((tree, required)) if required else tree, hits)

    def lists(piece: Sequence[RefinedQuery], hits: int, best: int = 0) -> Iterator[RankedList]:
        queries = [refined.query for refined in piece if isinstance(refined.query, ImpactQuery)]
        if len(queries) < len(piece) or search.text_weight:
            return group_by_documents(trees, piece, hits, best) if best else trees(piece, hits)
        if best:
            return engine.search_passages(queries, best, hits, search.threads, search.where)
        if search.approximate is not None:
            return engine.search_approximately(queries, hits, search.approximate, search.threads)
        if search.where is None:
            return engine.search(queries, hits, search.threads)
        return engine.search_where(queries, search.where, hits, search.threads)

    def in_phases(piece: Sequence[RefinedQuery], terms: int) -> Iterator[RankedList]:
        reduced = [refined.with_vector(heaviest(refined.vector, terms)) for refined in piece]
        for refined, first in zip(piece, lists(reduced, max(search.candidates, hits)), strict=True):
            among = partial(trees, required=Ids(tuple(first.doc_ids)))
            yield from group_by_documents(among, [refined], hits, passages) if passages else among([refined], hits)

    def expand(refined: RefinedQuery, first: RankedList, feedback: Feedback) -> RefinedQuery:
        assert vector_of is not None
        taken = first.without(refined.query.query_id) if search.remove_query else first
        documents = [vector_of(doc_id) for doc_id in taken.doc_ids[: feedback.documents]]
        moved = integers(rocchio(refined.vector, documents, feedback), engine.bound)
        return refined.with_vector(filter_terms(moved, search))

    stream = iter(queries)
    while piece := list(islice(stream, PIECE)):
        if feedback or search.first_terms or search.approximate is not None:
            _refuse_trees(piece)
        if feedback:
            firsts = lists(piece, feedback.documents + search.remove_query)
            piece = [expand(refined, first, feedback) for refined, first in zip(piece, firsts, strict=True)]
        ranked_lists = in_phases(piece, search.first_terms) if search.first_terms else lists(piece, hits, passages)
        if search.min_score is None:
            yield from ranked_lists
            continue
        for refined, listed in zip(piece, ranked_lists, strict=True):
            yield listed.down_to(compute_least_score(search.min_score, build_tree(refined, search), engine))


def _refuse_trees(piece: Sequence[RefinedQuery]) -> None:
    if tree := next((refined.query for refined in piece if not isinstance(refined.query, ImpactQuery)), None):
        raise UsageError(
            f"topic {tree.query_id!r} is a query tree; feedback, phases and approximate search need an encoded query"
        )
