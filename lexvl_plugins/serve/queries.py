"""Reads what a user asks of an index: texts, expressions, pictures and documents as queries, weights, conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.encoder import OtherModality
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import expect_lexical
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery, Topic, heaviest
from lexvl_anserini.queries import clauses
from lexvl_anserini.queries.parser import parse, read_tokens
from lexvl_anserini.queries.query_source import TYPED, check_known, check_readable
from lexvl_anserini.queries.query_vectors import encode_queries, make_queries
from lexvl_plugins.serve import limits
from lexvl_plugins.serve.indexes import LiveIndex
from lexvl_plugins.serve.messages import Chip, MetadataFilter, Question

# Kinds of tokens that only expressions have; plain words may stand in brackets too.
OPERATORS = frozenset({"sign", "boost", "operator", "field"})


class ReadQuery(NamedTuple):
    """A query as its index takes it, None for an empty question; weights of terms are those before changes."""

    query: ImpactQuery | clauses.TreeQuery | DenseQuery | Topic | None
    read_as: str
    weights: Mapping[str, float]


def is_expression(text: str) -> bool:
    """Whether a text has an operator of expressions; one with a quote that is not closed, for example, is words."""
    try:
        return any(token.kind in OPERATORS for token in read_tokens(text))
    except UsageError:
        return False


def take_words(text: str) -> str:
    """The scoring terms of an expression as words, for an index without terms; any other text unchanged."""
    if not is_expression(text):
        return text
    return " ".join(dict.fromkeys(term for term, _ in clauses.list_scored_terms(parse(text)))) or text


def read_expression(index: LiveIndex, text: str, weights: Mapping[str, int]) -> ReadQuery:
    """An expression as a query tree, with the user's weights."""
    expect_lexical(f"index {index.served.name!r}", index.manifest.kind, "expressions are for impact indexes")
    clause = parse(text, index.manifest.fields)
    refuse_unknown(index, clause)
    before = sum_weights(clause)
    changes = {term: weight for term, weight in weights.items() if term in before}
    return ReadQuery(clauses.TreeQuery(TYPED, reweigh(clause, changes)), "terms", before)


def read_vector(index: LiveIndex, query: Any, read_as: str, weights: Mapping[str, int]) -> ReadQuery:
    """An encoded query, with the user's weights where it has terms."""
    if index.manifest.kind != "impact":
        return ReadQuery(query, read_as, {})
    refuse_unknown(index, clauses.AnyOf(tuple(clauses.Term(term) for term in weights)))
    before = {**dict.fromkeys(weights, 0), **query.vector}
    return ReadQuery(ImpactQuery(TYPED, change_weights(query.vector, weights)), read_as, before)


def sum_weights(clause: clauses.Clause) -> dict[str, float]:
    """The weight of each term that scores, of all its places in the tree."""
    weights: dict[str, float] = {}
    for term, weight in clauses.list_scored_terms(clause):
        weights[term] = weights.get(term, 0) + weight
    return weights


def reweigh(clause: clauses.Clause, weights: Mapping[str, int]) -> clauses.Clause:
    """The tree with some weights replaced; a term of weight 0 adds nothing, but must still match where it had to."""

    def replace_leaf(clause: clauses.Clause) -> clauses.Clause:
        if isinstance(clause, clauses.Term) and clause.term in weights:
            weight = weights[clause.term]
            return replace(clause, weight=weight) if weight else clauses.Unscored(clauses.Term(clause.term))
        if isinstance(clause, clauses.Impacts):
            return clauses.Impacts(change_weights(clause.vector, weights))
        return clause

    return clauses.fold(
        clause,
        replace_leaf,
        all_of=lambda required, optional: clauses.All(tuple(required), tuple(optional)),
        any_of=lambda below: clauses.AnyOf(tuple(below)),
        negated=lambda _, below: clauses.Not(below),
        scaled=lambda above, below: replace(above, clause=below),
    )


def change_weights(vector: Mapping[str, int], weights: Mapping[str, int]) -> dict[str, int]:
    """The vector with some weights replaced and new terms at the end; a weight of 0 drops the term."""
    if any(weight < 0 for weight in weights.values()):
        raise UsageError("a weight is below 0; expected 0, which drops the term, or more")
    return {term: weight for term, weight in {**vector, **weights}.items() if weight}


def build_chips(read: ReadQuery) -> list[Chip]:
    """The terms of a query with their weights, the heaviest first, as the encoder gave them."""
    if not isinstance(read.query, ImpactQuery | clauses.TreeQuery):
        return []
    now, before = sum_weights(clauses.build_clause(read.query)), read.weights
    order = sorted(before, key=lambda term: (-before[term], term))
    return [Chip(term=term, weight=round(now.get(term, 0)), given=round(before[term])) for term in order]


def refuse_unknown(index: LiveIndex, clause: clauses.Clause) -> None:
    """Refuses terms that no document can have; an index without its own vocabulary accepts any."""
    if index.terms and any(term not in index.known for term in clauses.list_terms(clause)):
        check_known(clause, index.terms)


def read_conditions(index: LiveIndex, question: Question) -> clauses.Clause | None:
    """What documents must match besides the query; None if nothing."""
    conditions = [_read_filter(metadata) for metadata in question.filters]
    if question.where.strip():
        conditions.append(parse(question.where, index.manifest.fields))
    if not conditions:
        return None
    clause = conditions[0] if len(conditions) == 1 else clauses.All(tuple(conditions))
    if index.manifest.kind == "impact":
        refuse_unknown(index, clause)
    return clause


def _read_filter(metadata: MetadataFilter) -> clauses.Clause:
    if metadata.value is not None:
        return clauses.Equals(metadata.field, metadata.value)
    if metadata.low is None and metadata.high is None:
        raise UsageError(f"filter on {metadata.field[:80]!r}: give a value, or a lower or upper bound")
    return clauses.Range(metadata.field, metadata.low, metadata.high)


def encode_texts(index: LiveIndex, texts: Sequence[str]) -> list[Any]:
    """Texts as queries of an index."""
    topics = [Topic(TYPED, text) for text in texts]
    for topic in topics:
        check_readable(topic, index.model)
    return list(encode_queries(index.model, topics, index.manifest))


def encode_pictures(index: LiveIndex, pictures: Sequence[Any]) -> list[ImpactQuery | DenseQuery]:
    """Pictures as queries: encoded as queries are, or as documents are where queries are texts."""
    from lexvl_anserini.ground.quantise import Quantiser

    if not pictures:
        return []
    if index.picture_tower is None:
        raise UsageError(f"the encoder of index {index.served.name!r} reads no pictures")
    quantiser = Quantiser.from_json(index.manifest.quantiser) if index.manifest.quantiser else Quantiser()
    ids = [TYPED] * len(pictures)
    return list(make_queries(index.picture_tower, ids, pictures, quantiser, index.manifest.counts.max_impact))


def encode_picture(index: LiveIndex, picture: Any) -> Any:
    """A picture as a query, cut to the terms that the page shows."""
    return _cut(encode_pictures(index, [picture])[0])


def encode_document(index: LiveIndex, doc_id: str) -> Any:
    """A document of the corpus as a query, by its picture or its text."""
    shown = index.corpus.documents.get(doc_id)
    if shown is None:
        raise DataError(f"no document {doc_id[:80]!r} in the corpus")
    if shown.picture is not None and index.picture_tower is not None:
        return encode_picture(index, open_image(index.corpus.find_picture(doc_id)))
    topic = Topic(TYPED, " ".join(part for part in (shown.title, shown.text) if part))
    try:
        index.model.query.read_topic(topic)
    except OtherModality as error:
        raise UsageError(f"document {doc_id[:80]!r} is a text, and queries of this index are pictures") from error
    return _cut(next(encode_queries(index.model, [topic], index.manifest)))


def _cut(query: Any) -> Any:
    if not isinstance(query, ImpactQuery):
        return query
    return query._replace(vector=heaviest(query.vector, limits.PICTURE_TERMS))
