"""Computes the terms that a query and a document share; the products of their weights sum exactly to the score."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.ground.errors import ArtefactError, DataError
from lexvl_anserini.ground.manifest import Manifest, RunManifest
from lexvl_anserini.ground.records import ImpactQuery, Topic, get_field
from lexvl_anserini.queries.clauses import (
    All,
    Clause,
    Ids,
    Impacts,
    Term,
    TreeQuery,
    build_clause,
    fold,
    list_scored_terms,
)
from lexvl_anserini.queries.query_source import TopicSource, check_readable
from lexvl_anserini.queries.query_vectors import encode_queries
from lexvl_anserini.runs.order import score_by_passages
from lexvl_anserini.runs.trec import read_run, sort_by_rank
from lexvl_anserini.searching.search import NOTED, Search, cut_vector

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.engines.engine import ImpactEngine

log = logging.getLogger(__name__)


class SharedTerm(NamedTuple):
    """A term, its weight in the query, its impact in the document, their product, and the field, if any."""

    term: str
    weight: float
    impact: int
    product: float
    field: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns a plain dictionary, without an empty field."""
        return {name: value for name, value in self._asdict().items() if value != ""}


@dataclass(frozen=True)
class Explanation:
    """One document's score for one query.

    Attributes:
        score: the engine's; 0 for a document that shares no term.
        terms: that both have, largest product first, equal ones by term; their products sum to the score.
        query_terms: the number of terms of the query.
        passages: of a document in passages: those whose scores sum to its own, the best first; it has no terms itself.
    """

    query_id: str
    doc_id: str
    score: float
    terms: tuple[SharedTerm, ...]
    query_terms: int
    passages: tuple[Explanation, ...] = ()

    def sum_fields(self) -> dict[str, float]:
        """Sums the products of each field, the largest first; empty for an index of one encoder."""
        sums: dict[str, float] = {}
        for term in self.terms:
            if term.field:
                sums[term.field] = sums.get(term.field, 0) + term.product
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    def to_json(self) -> dict[str, Any]:
        """Returns a plain dictionary."""
        values = {**vars(self), "terms": [term.to_json() for term in self.terms]}
        del values["passages"]
        values |= {"fields": self.sum_fields()} if self.sum_fields() else {}
        return {**values, "passages": [part.to_json() for part in self.passages]} if self.passages else values


def encode_topic(topic: Topic, model: Encoder, manifest: Manifest) -> ImpactQuery:
    """Encodes one topic."""
    check_readable(topic, model)
    query = next(encode_queries(model, [topic], manifest))
    assert isinstance(query, ImpactQuery)
    return query


def explain_documents(
    engine: ImpactEngine,
    query: ImpactQuery | TreeQuery,
    doc_ids: Sequence[str],
    impacts_of: Callable[[str, Sequence[str]], Mapping[str, int]] | None = None,
    fields: Collection[str] = (),
) -> list[Explanation]:
    """Explains documents with an open engine of an impact index; of a tree, BM25 adds to the score too.

    `impacts_of` looks up a document's impacts for terms; default in the engine.
    """
    if not doc_ids:
        return []
    clause = build_clause(query)
    terms = list(dict.fromkeys(term for term, _ in list_scored_terms(clause)))
    among = All((clause, Ids(tuple(doc_ids))))
    scores = dict(engine.search_tree(query.query_id, among, len(doc_ids)).pairs())
    explanations = []
    for doc_id in doc_ids:
        impacts = (impacts_of or engine.impacts)(doc_id, terms)
        score = scores.get(doc_id, 0)
        adds = doc_id in scores or isinstance(query, ImpactQuery)
        shared = find_shared_terms(clause, impacts, fields) if adds else []
        if isinstance(query, ImpactQuery):
            total = sum(term.product for term in shared)
            if total != score:
                raise ArtefactError(
                    f"document {doc_id!r}: its products sum to {total}, the index's score is {score}; index again"
                )
            score = total
        explanations.append(Explanation(query.query_id, doc_id, score, tuple(shared), len(terms)))
    return explanations


def explain_passages(
    engine: ImpactEngine,
    query: ImpactQuery,
    doc_ids: Sequence[str] | None,
    hits: int,
    best: int,
    fields: Collection[str] = (),
) -> list[Explanation]:
    """Explains documents by their best passages, at most `best` of each."""
    if doc_ids is None:
        doc_ids = next(engine.search_passages([query], best, hits)).doc_ids
    passages = score_by_passages(engine.search, query, doc_ids, best)
    explanations = []
    for doc_id in doc_ids:
        if not passages[doc_id]:
            raise DataError(f"document {doc_id!r}: no passage {doc_id}#... in the index that has a term of the query")
        parts = tuple(explain_documents(engine, query, passages[doc_id], fields=fields))
        score = sum(part.score for part in parts)
        explanations.append(Explanation(query.query_id, doc_id, score, (), len(query.vector), parts))
    return explanations


def find_shared_terms(clause: Clause, impacts: Mapping[str, int], fields: Collection[str] = ()) -> list[SharedTerm]:
    """Finds the terms that add to a document's score, the largest product first, equal ones by term.

    A document that is a hit matches the tree, so that only clauses below an `AnyOf`, or optional ones, may not match.
    Whether metadata, ids and texts match is not known here: they count as matching.
    """
    weights: dict[str, float] = {}
    for term, weight in list_scored_terms(clause, matching=lambda clause: _matches(clause, impacts)):
        if term in impacts:
            weights[term] = weights.get(term, 0) + weight
    shared = [
        SharedTerm(term, w, impacts[term], w * impacts[term], get_field(term, fields))
        for term, w in weights.items()
        if w
    ]
    return sorted(shared, key=lambda term: (-term.product, term.term))


def _matches(clause: Clause, impacts: Mapping[str, int]) -> bool:
    """Returns whether a document of these impacts matches; clauses that are not about terms count as matching."""

    def leaf(clause: Clause) -> bool:
        if isinstance(clause, Term):
            return clause.term in impacts
        return not isinstance(clause, Impacts) or any(term in impacts for term in clause.vector)

    return fold(
        clause,
        leaf,
        all_of=lambda required, optional: all(required),
        any_of=any,
        negated=lambda clause, match: not match or not _about_terms(clause.clause),
        scaled=lambda clause, match: match,
    )


def _about_terms(clause: Clause) -> bool:
    """Returns whether terms alone decide if a document matches."""
    return fold(
        clause,
        lambda clause: isinstance(clause, Term | Impacts),
        all_of=lambda required, optional: bool(required or optional) and all([*required, *optional]),
        any_of=lambda parts: bool(parts) and all(parts),
        negated=lambda clause, part: part,
        scaled=lambda clause, part: part,
    )


def read_scores(path: Path, query_id: str, hits: int) -> dict[str, float]:
    """Reads the first documents of a topic in a run, best first, and their scores there."""
    documents = sort_by_rank(document for document in read_run(path) if document.query_id == query_id)
    if not documents:
        raise DataError(f"{path}: no line for topic {query_id!r}")
    return dict(documents[:hits].pairs())


def select_encoder_options(run: RunManifest | None) -> dict[str, Any]:
    """Selects the encoder's own options that a run was made with; none of a mixture of runs."""
    return {name: value for name, value in _options(run).items() if name not in NOTED}


def read_passages(run: RunManifest | None) -> str | None:
    """Reads how a run's documents are scored by their passages; None for documents without."""
    return _options(run).get("passages")


def cut_like_run(query: ImpactQuery, run: RunManifest | None) -> ImpactQuery:
    """Cuts a query as a run did; other settings of the run are ignored, and change the scores."""
    cuts = {name: value for name, value in _options(run).items() if name in ("query_terms", "threshold")}
    return query._replace(vector=cut_vector(query.vector, Search(**cuts)))


def _options(run: RunManifest | None) -> Mapping[str, Any]:
    return run.encoder.options if run and not run.mixes else {}


def warn_about_scores(run_path: Path, scores: Mapping[str, float], explanations: Sequence[Explanation]) -> None:
    """Logs a warning where a run has other scores than the explanations."""
    if differing := [e for e in explanations if e.doc_id in scores and scores[e.doc_id] != e.score]:
        first = differing[0]
        log.warning(
            "%s: %d of %d documents have another score there (%s: %g, here %d); it was made by another query or index",
            run_path,
            len(differing),
            len(explanations),
            first.doc_id,
            scores[first.doc_id],
            first.score,
        )


def find_topic(source: TopicSource, query_id: str) -> Topic | ImpactQuery:
    """Finds one of the topics, encoded or not."""
    for topic in source.stream():
        if topic.query_id == query_id:
            assert isinstance(topic, Topic | ImpactQuery)
            return topic
    raise DataError(f"{source.label}: no topic {query_id!r}")
