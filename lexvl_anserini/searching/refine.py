"""Refinement of encoded queries before and around the engine: lists of terms, cuts, filters, texts, feedback.

The order: keep or drop listed terms, cut weights, expand the query by feedback (and apply the lists again), then search
the vector: with BM25 of the topic's text, among the documents that match a tree, in two phases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.engines.approximation import check_recall
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery, heaviest
from lexvl_anserini.ground.typed import MOST_THREADS, check_count
from lexvl_anserini.queries.clauses import All, AnyOf, Clause, Ids, Text, TreeQuery, Unscored, build_clause
from lexvl_anserini.queries.query_vectors import RM3, Feedback, VectorOf, integers, rocchio
from lexvl_anserini.runs.order import best_of, group_by_documents
from lexvl_anserini.searching.cuts import Cut

if TYPE_CHECKING:
    from lexvl_anserini.engines.engine import ImpactEngine
    from lexvl_anserini.runs.order import RankedList

# Queries held at once.
PIECE = 256

Vector = Mapping[str, int]


class TwoPhase(NamedTuple):
    """The `terms` heaviest terms retrieve `candidates` documents, then the whole query ranks them."""

    terms: int
    candidates: int = 1000


class RefinedQuery(NamedTuple):
    """A query after lists of terms and cuts, with the topic's text if the search needs it."""

    query: ImpactQuery | TreeQuery
    text: str | None = None

    @property
    def vector(self) -> Vector:
        """The terms and weights of an encoded query."""
        assert isinstance(self.query, ImpactQuery)
        return self.query.vector

    def with_vector(self, vector: Vector) -> RefinedQuery:
        """The query with another vector."""
        return self._replace(query=ImpactQuery(self.query.query_id, vector))


@dataclass(frozen=True)
class Refinement:
    """How queries are refined; the default changes nothing.

    only_terms     terms that a query keeps; None keeps all
    without_terms  terms that a query loses
    query_terms    keep that many heaviest terms
    threshold      keep weights of at least this share (0 to 1) of the query's largest
    where          documents must match it; it does not change scores
    text_weight    times BM25 of the topic's text on the field `text`, added to the score
    two_phase      see `TwoPhase`
    feedback       see `Feedback`
    rm3            see `RM3`; for an index of texts, where it is the only refinement
    approximate    find this share of the hits at least, as the index measured it, with exact scores; None finds all
    """

    only_terms: frozenset[str] | None = None
    without_terms: frozenset[str] = frozenset()
    query_terms: int | None = None
    threshold: float = 0.0
    where: Clause | None = None
    text_weight: float = 0.0
    two_phase: TwoPhase | None = None
    feedback: Feedback | None = None
    rm3: RM3 | None = None
    approximate: float | None = None

    def __post_init__(self) -> None:
        counts = {} if self.query_terms is None else {"query_terms": self.query_terms}
        for name, count in {**counts, **(self.two_phase._asdict() if self.two_phase else {})}.items():
            check_count(name, count)
        if not 0 <= self.threshold <= 1:
            raise UsageError(f"threshold {self.threshold}: expected a share between 0 and 1 of the largest weight")
        if not 0 <= self.text_weight < SCORE_LIMIT:
            raise UsageError(f"text weight {self.text_weight}: expected a number from 0 to {SCORE_LIMIT - 1:,}")
        if self.approximate is not None:
            check_recall(self.approximate)
            exact = ("where", "text_weight", "two_phase", "feedback")
            if others := [name.replace("_", " ") for name in exact if getattr(self, name)]:
                raise UsageError(
                    f"approximate search excludes {' and '.join(others)}, where no recall is measured; leave one out"
                )

    @property
    def only_rm3(self) -> bool:
        """Whether queries are expanded by RM3, and nothing else is changed."""
        return self.rm3 is not None and replace(self, rm3=None) == Refinement()

    def listed(self, vector: Vector) -> dict[str, int]:
        """The vector with the terms that the lists allow."""
        only, without = self.only_terms, self.without_terms
        return {t: w for t, w in vector.items() if t not in without and (only is None or t in only)}

    def cut(self, vector: Vector) -> dict[str, int]:
        """The vector after the lists of terms, the threshold and the number of terms."""
        vector = self.listed(vector)
        least = self.threshold * max(vector.values(), default=0)
        return heaviest({t: w for t, w in vector.items() if w >= least}, self.query_terms)

    def tree(self, refined: RefinedQuery) -> Clause:
        """The query with its text and filter, as one tree."""
        clause = build_clause(refined.query)
        if self.text_weight:
            clause = AnyOf((clause, Text(_text_of(refined), self.text_weight)))
        return clause if self.where is None else All((clause, Unscored(self.where)))


@dataclass(frozen=True)
class SearchSettings:
    """How queries are searched.

    remove_query     leave out a document whose id is the topic's (BEIR's rule), before the cut
    threads          of the engine, where it can use more than one
    batch_size       topics per forward pass
    refinement       lists of terms, cuts, filters, texts and feedback, for an impact index
    feedback_shards  the index's shards, for feedback where the index holds no term vectors
    passages         of an index of passages `doc#n`: hits are documents, scored by the best passage (`max`), by the sum
                     of the best N (`sum:N`) or of all (`sum`)
    cut              the least score of a hit; the cut at so many hits comes first
    """

    remove_query: bool = False
    threads: int = 1
    batch_size: int = 32
    refinement: Refinement | None = None
    feedback_shards: Path | str | None = None
    passages: str | None = None
    cut: Cut | None = None

    def __post_init__(self) -> None:
        if self.cut is not None and self.cut.relative and best_of(self.passages) > 1:
            raise UsageError(f"least score {self.cut}: a sum over passages has no bound; give a score, not a share")
        if best_of(self.passages) and self.refinement is not None and (self.refinement.feedback or self.refinement.rm3):
            raise UsageError("feedback reads the vectors of hits, and documents in passages have none; leave out one")
        if best_of(self.passages) and self.refinement is not None and self.refinement.approximate is not None:
            raise UsageError("approximate search excludes passages, where no recall is measured; leave one out")
        check_count("threads", self.threads, most=MOST_THREADS)
        check_count("batch_size", self.batch_size)


def refinement_names() -> set[str]:
    """The names in a run manifest's encoder options that are refinements, not options of the encoder."""
    return {"require", "forbid", "passages", "min_score", *(field.name for field in fields(Refinement))}


def refined_queries(queries: Iterable[Any], refinement: Refinement) -> Iterator[Any]:
    """Encoded queries with lists and cuts applied; query trees are unchanged."""
    for query in queries:
        yield query._replace(vector=refinement.cut(query.vector)) if isinstance(query, ImpactQuery) else query


def search_refined(
    engine: ImpactEngine,
    queries: Iterable[RefinedQuery],
    settings: SearchSettings,
    hits: int,
    vector_of: VectorOf | None = None,
) -> Iterator[RankedList]:
    """Yields one ranked list per query, whose lists of terms and cuts are already applied.

    Args:
        engine: an open impact index.
        settings: with `remove_query`, feedback ignores a document whose id is the query's.
        vector_of: a document's vector, for feedback.
    """
    refinement, passages = settings.refinement or Refinement(), best_of(settings.passages)

    def trees(piece: Sequence[RefinedQuery], hits: int, required: Clause | None = None) -> Iterator[RankedList]:
        for refined in piece:
            tree = refinement.tree(refined)
            yield engine.search_tree(refined.query.query_id, All((tree, required)) if required else tree, hits)

    def lists(piece: Sequence[RefinedQuery], hits: int, best: int = 0) -> Iterator[RankedList]:
        queries = [refined.query for refined in piece if isinstance(refined.query, ImpactQuery)]
        if len(queries) < len(piece) or refinement.text_weight:
            return group_by_documents(trees, piece, hits, best) if best else trees(piece, hits)
        if best:
            return engine.search_passages(queries, best, hits, settings.threads, refinement.where)
        if refinement.approximate is not None:
            return engine.search_approximately(queries, hits, refinement.approximate, settings.threads)
        if refinement.where is None:
            return engine.search(queries, hits, settings.threads)
        return engine.search_where(queries, refinement.where, hits, settings.threads)

    def in_phases(piece: Sequence[RefinedQuery], phases: TwoPhase) -> Iterator[RankedList]:
        reduced = [refined.with_vector(heaviest(refined.vector, phases.terms)) for refined in piece]
        for refined, first in zip(piece, lists(reduced, max(phases.candidates, hits)), strict=True):
            among = partial(trees, required=Ids(tuple(first.doc_ids)))
            yield from group_by_documents(among, [refined], hits, passages) if passages else among([refined], hits)

    stream = iter(queries)
    while piece := list(islice(stream, PIECE)):
        if refinement.feedback or refinement.two_phase or refinement.approximate is not None:
            _refuse_trees(piece)
        if refinement.feedback:
            assert vector_of is not None
            firsts = lists(piece, refinement.feedback.documents + settings.remove_query)
            piece = [
                _expanded(refined, first, settings, engine.bound, vector_of)
                for refined, first in zip(piece, firsts, strict=True)
            ]
        phases = refinement.two_phase
        ranked_lists = lists(piece, hits, passages) if phases is None else in_phases(piece, phases)
        if settings.cut is None:
            yield from ranked_lists
            continue
        for refined, listed in zip(piece, ranked_lists, strict=True):
            yield listed.down_to(settings.cut.least(refinement.tree(refined), engine))


def read_terms(path: Path) -> frozenset[str]:
    """A list of terms, one a line."""
    try:
        terms = frozenset(line.strip() for line in path.read_text(encoding="utf-8").splitlines()) - {""}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list of terms ({error})") from error
    if not terms:
        raise DataError(f"{path}: no term in it; expected one a line")
    return terms


def _expanded(
    refined: RefinedQuery,
    first: RankedList,
    settings: SearchSettings,
    bound: Callable[[Mapping[str, float]], float],
    vector_of: VectorOf,
) -> RefinedQuery:
    """The query after feedback from its first list."""
    refinement = settings.refinement
    assert refinement is not None and refinement.feedback is not None
    taken = first.without(refined.query.query_id) if settings.remove_query else first
    documents = [vector_of(doc_id) for doc_id in taken.doc_ids[: refinement.feedback.documents]]
    vector = refinement.listed(integers(rocchio(refined.vector, documents, refinement.feedback), bound))
    return refined.with_vector(vector)


def _text_of(refined: RefinedQuery) -> str:
    if refined.text is None:
        raise UsageError(
            f"topic {refined.query.query_id!r}: no text for BM25 (an image, or encoded already); give topics with texts"
        )
    return refined.text


def _refuse_trees(piece: Sequence[RefinedQuery]) -> None:
    if tree := next((refined.query for refined in piece if not isinstance(refined.query, ImpactQuery)), None):
        raise UsageError(
            f"topic {tree.query_id!r} is a query tree; feedback, phases and approximate search need an encoded query"
        )
