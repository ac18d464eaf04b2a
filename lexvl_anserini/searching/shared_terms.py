"""Computes the terms that a query and a document share; the products of their weights sum exactly to the score."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.engines.index_folder import BuiltIndex
from lexvl_anserini.engines.opening import open_impact_index, verified
from lexvl_anserini.ground.errors import ArtefactError, DataError
from lexvl_anserini.ground.manifest import Manifest, RunManifest, expect_lexical
from lexvl_anserini.ground.records import ImpactQuery, Topic
from lexvl_anserini.ground.typed import check_count
from lexvl_anserini.queries.clauses import All, Ids, Impacts
from lexvl_anserini.queries.query_source import TYPED, TopicSource, check_readable
from lexvl_anserini.queries.query_vectors import encode_queries
from lexvl_anserini.runs.trec import in_rank_order, read_run
from lexvl_anserini.searching.refine import Refinement, refinement_names
from lexvl_anserini.searching.searcher import EncoderChanges, located

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.engines.engine import ImpactEngine

log = logging.getLogger(__name__)

DEFAULT_HITS = 3


class SharedTerm(NamedTuple):
    """A term of query and document: product = weight x impact."""

    term: str
    weight: int
    impact: int
    product: int


@dataclass(frozen=True)
class Explanation:
    """One document's score for one query.

    score        the engine's; 0 for a document that shares no term
    terms        that both have, largest product first, equal ones by term; their products sum to the score
    query_terms  the number of terms of the query
    """

    query_id: str
    doc_id: str
    score: int
    terms: tuple[SharedTerm, ...]
    query_terms: int

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return {**vars(self), "terms": [term._asdict() for term in self.terms]}


def explain(
    index: BuiltIndex | Path | str,
    query: Topic | ImpactQuery | str,
    doc_ids: Iterable[str] | None = None,
    hits: int = DEFAULT_HITS,
    model: Encoder | None = None,
    manifest: Path | str | None = None,
    device: str = "auto",
) -> list[Explanation]:
    """Explains documents' scores for a query, from the postings of its terms.

    Args:
        index: an impact index, or its folder.
        query: a topic or a text, encoded here; or an encoded query.
        doc_ids: the documents, in the order of the explanations; default the best.
        hits: how many of the best.
        model: encodes the topic; default the encoder in the index's manifest.
        manifest: of the shards, for an index that stock Pyserini built.
        device: of the default model.

    Raises:
        DataError: the index has no such document.
        UsageError: no impact index, or a topic that the encoder does not read.
        ArtefactError: the products do not sum to the engine's score; the index is damaged.
    """
    check_count("hits", hits)
    path, about = located(index, manifest)
    expect_lexical(path, about.kind, "only the score of an impact index is a sum over terms")
    given = Topic(TYPED, query) if isinstance(query, str) else query
    if isinstance(given, Topic):
        given = encoded(given, model or EncoderChanges(device=device).load(about), about)
    with verified(open_impact_index(path, about)) as engine:
        if doc_ids is None:
            doc_ids = [document.doc_id for document in next(engine.search([given], hits))]
        return explained(engine, given, list(doc_ids))


def encoded(topic: Topic, model: Encoder, manifest: Manifest) -> ImpactQuery:
    """One topic as an encoded query."""
    check_readable(topic, model)
    query = next(encode_queries(model, [topic], manifest))
    assert isinstance(query, ImpactQuery)
    return query


def explained(engine: ImpactEngine, query: ImpactQuery, doc_ids: Sequence[str]) -> list[Explanation]:
    """The explanations, with an open engine of an impact index.

    Raises:
        DataError, ArtefactError: as `explain`.
    """
    if not doc_ids:
        return []
    among = All((Impacts(query.vector), Ids(tuple(doc_ids))))
    scores = {hit.doc_id: hit.score for hit in engine.search_tree(query.query_id, among, len(doc_ids))}
    explanations = []
    for doc_id in doc_ids:
        impacts = engine.impacts(doc_id, query.vector)
        shared = [SharedTerm(t, w, impacts[t], w * impacts[t]) for t, w in query.vector.items() if t in impacts]
        shared.sort(key=lambda term: (-term.product, term.term))
        total = sum(term.product for term in shared)
        if total != scores.get(doc_id, 0):
            raise ArtefactError(
                f"document {doc_id!r}: its products sum to {total}, the index's score is {scores.get(doc_id, 0)}; "
                "index again"
            )
        explanations.append(Explanation(query.query_id, doc_id, total, tuple(shared), len(query.vector)))
    return explanations


def scores_in_run(path: Path, query_id: str, hits: int) -> dict[str, float]:
    """The first documents of a topic in a run, best first, and their scores there.

    Raises:
        DataError: the run has no such topic, or is malformed.
    """
    documents = in_rank_order(document for document in read_run(path) if document.query_id == query_id)
    if not documents:
        raise DataError(f"{path}: no line for topic {query_id!r}")
    return {document.doc_id: document.score for document in documents[:hits]}


def encoder_options(run: RunManifest | None) -> dict[str, Any]:
    """The encoder's own options that a run was made with."""
    return {name: value for name, value in _options(run).items() if name not in refinement_names()}


def with_cuts(query: ImpactQuery, run: RunManifest | None) -> ImpactQuery:
    """The query with the cuts that a run was made with; other refinements are ignored, and change the scores."""
    cuts = {name: value for name, value in _options(run).items() if name in ("query_terms", "threshold")}
    return query._replace(vector=Refinement(**cuts).cut(query.vector))


def _options(run: RunManifest | None) -> Mapping[str, Any]:
    return run.encoder.options if run else {}


def warn_of_other_scores(run_path: Path, scores: Mapping[str, float], explanations: Sequence[Explanation]) -> None:
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


def topic_of(source: TopicSource, query_id: str) -> Topic | ImpactQuery:
    """One of the topics, encoded or not.

    Raises:
        DataError: there is no topic of that id.
    """
    for topic in source.stream():
        if topic.query_id == query_id:
            assert isinstance(topic, Topic | ImpactQuery)
            return topic
    raise DataError(f"{source.label}: no topic {query_id!r}")
