"""From a question to its answer: the query is read, encoded, changed by the user's weights, and searched."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from lexvl_anserini import __version__
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.encoder import OtherModality
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import expect_lexical
from lexvl_anserini.ground.records import DenseQuery, ImpactQuery, ScoredDoc, Topic, heaviest
from lexvl_anserini.queries.clauses import (
    All,
    AnyOf,
    Clause,
    Equals,
    Impacts,
    Range,
    Term,
    Text,
    TreeQuery,
    Unscored,
    clause_of,
    scored_terms,
    terms_of,
    walk,
    with_leaves,
)
from lexvl_anserini.queries.parser import parse, tokens_of
from lexvl_anserini.queries.query_source import TYPED, check_known, check_readable
from lexvl_anserini.queries.query_vectors import encode_queries
from lexvl_anserini.runs.order import RankedList, ranked
from lexvl_anserini.searching.cuts import Cut
from lexvl_anserini.searching.refine import RefinedQuery, Refinement, SearchSettings, search_refined
from lexvl_anserini.searching.shared_terms import explained
from lexvl_plugins.serve import limits
from lexvl_plugins.serve.documents import (
    EXAMPLES,
    SIDES,
    UNKNOWN,
    EncodedPicture,
    Recent,
    SentPictures,
    scaled,
)
from lexvl_plugins.serve.embedding import picture_queries
from lexvl_plugins.serve.maps import heat_map_of
from lexvl_plugins.serve.messages import (
    Chip,
    DocumentProducts,
    HeatMap,
    IndexDescription,
    MapQuestion,
    MetadataField,
    MetadataFilter,
    PageDescription,
    Product,
    ProductsQuestion,
    Question,
    ShownAnswer,
    ShownHit,
    Timing,
)
from lexvl_plugins.serve.opened import LiveIndex, Shelf

# Pieces of an expression that a text in words does not have; it may have brackets.
OPERATORS = frozenset({"sign", "boost", "operator", "field"})

# Products and scores are whole numbers, unless a factor has a fraction.
ROUNDING = 1e-3


class ReadQuery(NamedTuple):
    """A query as its index takes it.

    query    None for an empty question
    read_as  as in `ShownAnswer`
    weights  term -> weight before the user's changes
    """

    query: ImpactQuery | TreeQuery | DenseQuery | Topic | None
    read_as: str
    weights: Mapping[str, float]


@dataclass(frozen=True)
class Service:
    """Answers questions about open indexes; safe for threads. Encoded queries, maps and scaled pictures are kept.

    examples  queries that the user of the command gave; none takes those of the corpora
    """

    shelf: Shelf
    examples: Sequence[str] = ()
    sent: SentPictures = field(default_factory=SentPictures)
    queries: Recent = field(default_factory=lambda: Recent(limits.KEPT_QUERIES))
    maps: Recent = field(default_factory=lambda: Recent(limits.KEPT_MAPS))
    impacts: Recent = field(default_factory=lambda: Recent(limits.KEPT_DOCUMENTS))
    scaled: Recent = field(default_factory=lambda: Recent(limits.KEPT_BYTES, lambda picture: len(picture.content)))

    def description(self) -> PageDescription:
        """What the page has to know."""
        indexes, pictures, examples = [], {}, list(self.examples)
        for name in self.shelf.names:
            with self.shelf.borrowed(name) as index:
                indexes.append(described(index, self.shelf.problem(name)))
                pictures[name] = index.corpus.sample()
                examples = examples or list(index.examples)
        shown = examples[: max(EXAMPLES, len(self.examples))]
        return PageDescription(indexes=indexes, pictures=pictures, examples=shown, version=__version__)

    def suggested(self, name: str, prefix: str) -> list[str]:
        """Terms of an index that begin with a prefix."""
        with self.shelf.borrowed(name) as index:
            return index.suggested(prefix)

    def answer(self, question: Question) -> ShownAnswer:
        """The best documents for a question."""
        with self.shelf.borrowed(question.index) as index:
            started = time.perf_counter()
            read = self.read(index, question)
            encoded = time.perf_counter()
            where, lexical = conditions(index, question), index.manifest.kind == "impact"
            ignored = []
            if where is not None and not lexical:
                where = None
                ignored.append("filters")
            if question.weights and not lexical:
                ignored.append("weights of terms")
            if read.read_as == "text" and not lexical and question.read_as == "auto" and is_expression(question.text):
                ignored.append("signs and factors of the expression")
            cut = Cut.of(question.min_score) if question.min_score.strip() and read.query is not None else None
            if cut is not None and cut.relative and not lexical:
                cut = None
                ignored.append("the least score, as a share")
            hits, nearest = find(index, question, read.query, where, cut)
            searched = time.perf_counter()
            timing = Timing(
                encode_ms=round((encoded - started) * 1000, 2),
                search_ms=round((searched - encoded) * 1000, 2),
                all_ms=round((time.perf_counter() - started) * 1000, 2),
            )
            return ShownAnswer(
                index=question.index,
                read_as=read.read_as,  # type: ignore[arg-type]
                chips=chips(read),
                hits=[hit_of(index, hit) for hit in hits],
                nearest=nearest,
                documents=index.manifest.counts.documents,
                ignored=ignored,
                warning=warning_of(index, question.text) if read.read_as == "text" else "",
                timing=timing,
            )

    def read(self, index: LiveIndex, question: Question) -> ReadQuery:
        """The query of a question."""
        lexical = index.manifest.kind == "impact"
        text = question.text.strip()
        if question.picture is None and question.like is None:
            if not text:
                return ReadQuery(None, "none", {})
            if question.read_as == "terms" or (question.read_as == "auto" and lexical and is_expression(text)):
                return read_expression(index, text, question.weights)
            text = text if lexical or question.read_as == "text" else words_of(text)
            topic, read_as, key = Topic(TYPED, text), "text", ("text", text)
        elif question.picture is not None:
            topic, read_as, key = Topic(TYPED, image=question.picture), "picture", ("picture", question.picture)
        else:
            topic, read_as, key = Topic(TYPED), "document", ("document", str(question.like))
        vector = self.queries.kept((index.serial, *key), lambda: self._encode(index, question, topic))
        if not lexical:
            return ReadQuery(vector, read_as, {})
        refuse_unknown(index, AnyOf(tuple(Term(term) for term in question.weights)))
        weights = {**dict.fromkeys(question.weights, 0), **vector.vector}
        return ReadQuery(ImpactQuery(TYPED, changed(vector.vector, question.weights)), read_as, weights)

    def _encode(self, index: LiveIndex, question: Question, topic: Topic) -> Any:
        """The encoded query of a text, a picture that was sent, or a document."""
        if question.picture is not None:
            [query] = picture_queries(index, [self.sent.picture(question.picture)])
            return _readable(query)
        if question.like is not None:
            return encode_document(index, question.like)
        check_readable(topic, index.model)
        return next(encode_queries(index.model, [topic], index.manifest))

    def products(self, request: ProductsQuestion) -> list[DocumentProducts]:
        """The products of a question's terms for documents; they sum to their scores."""
        with self.shelf.borrowed(request.question.index) as index:
            engine, query = index.impacts, self.read(index, request.question).query
            if query is None or not request.doc_ids:
                return []
            assert isinstance(query, ImpactQuery | TreeQuery), query
            clause, rows = clause_of(query), []
            impacts_of = partial(self.impacts_of, index)
            explanations = explained(engine, query, request.doc_ids, impacts_of, index.manifest.fields)
            for explanation in explanations:
                products = [Product(**term._asdict()) for term in explanation.terms]
                rest = explanation.score - sum(term.product for term in explanation.terms)
                rest = rest if has_text(clause) or abs(rest) > ROUNDING else 0.0
                score = float(explanation.score)
                rows.append(DocumentProducts(doc_id=explanation.doc_id, score=score, products=products, rest=rest))
            return rows

    def impacts_of(self, index: LiveIndex, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        """The impacts of a document; those that were looked up before are kept, so that dragging a weight is quick."""
        known: dict[str, int] = self.impacts.get((index.serial, doc_id)) or {}
        if new := [term for term in terms if term not in known]:
            known = {**known, **dict.fromkeys(new, 0), **index.impacts.impacts(doc_id, new)}
            self.impacts.put((index.serial, doc_id), known)
        return {term: known[term] for term in terms if known[term]}

    def picture(self, name: str, doc_id: str, side: str) -> EncodedPicture:
        """A scaled picture of the corpus of an index."""
        with self.shelf.borrowed(name) as index:
            reference = index.corpus.picture(doc_id)
            key = (index.serial, doc_id, side)
            picture: EncodedPicture = self.scaled.kept(key, lambda: scaled(open_image(reference), SIDES[side]))
            return picture

    def heat_map(self, request: MapQuestion) -> HeatMap:
        """Where in a document's picture the terms are that it shares with a question; or one of them."""
        with self.shelf.borrowed(request.question.index) as index:
            query = self.read(index, request.question).query
            if not index.has_maps or not index.manifest.fields and index.map_tower is None:
                raise UsageError(f"the encoder of index {index.served.name!r} has no grid over pictures")
            picture = index.corpus.picture(request.doc_id)
            weights = dict(scored_terms(clause_of(query))) if isinstance(query, ImpactQuery | TreeQuery) else {}
            impacts = self.impacts_of(index, request.doc_id, weights)
            weights = {t: w for t, w in weights.items() if t in impacts and request.term in (None, t)}
            key = (index.serial, request.doc_id, tuple(weights.items()))
            heat: HeatMap = self.maps.kept(key, lambda: heat_map_of(index, request.doc_id, picture, weights))
            return heat


def described(index: LiveIndex, problem: str) -> IndexDescription:
    """What the page has to know about an index."""
    fields = [
        MetadataField(name=field, type=kind, values=index.corpus.values(field.removeprefix("meta.")))
        for field, kind in index.fields.items()
    ]
    with_pictures = any(document.picture is not None for document in index.corpus.documents.values())
    return IndexDescription(
        name=index.served.name,
        kind=index.manifest.kind,
        encoder=", ".join(f"{field.name} {field.encoder.name}" for field in index.manifest.encoder.fields)
        or index.model.name,
        corpus=index.manifest.corpus.name,
        documents=index.manifest.counts.documents,
        terms=index.manifest.kind == "impact",
        pictures=with_pictures,
        maps=with_pictures and index.has_maps,
        sends=index.picture_tower is not None,
        fields=fields,
        problem=problem,
    )


def warning_of(index: LiveIndex, text: str) -> str:
    """Why to expect little of a text: the model finds its documents by associations alone, or by none."""
    knows = getattr(index.model.query, "knows", None)
    return "" if knows is None or knows(text) else "no word of this query is a term of the model: expect little"


def is_expression(text: str) -> bool:
    """Whether a text has an operator of expressions, as `+boat`, `-night`, `red^3` or `meta.year:2020`.

    A text that is no expression, for example with a quote that is not closed, is words.
    """
    try:
        return any(token.kind in OPERATORS for token in tokens_of(text))
    except UsageError:
        return False


def words_of(text: str) -> str:
    """For an index without terms: the terms of an expression that add to scores, as words; other texts as they are."""
    if not is_expression(text):
        return text
    return " ".join(dict.fromkeys(term for term, _ in scored_terms(parse(text)))) or text


def read_expression(index: LiveIndex, text: str, weights: Mapping[str, int]) -> ReadQuery:
    """An expression as a query tree, with the user's weights."""
    expect_lexical(f"index {index.served.name!r}", index.manifest.kind, "expressions are for impact indexes")
    clause = parse(text, index.manifest.fields)
    refuse_unknown(index, clause)
    before = weights_of(clause)
    changes = {term: weight for term, weight in weights.items() if term in before}
    return ReadQuery(TreeQuery(TYPED, reweighted(clause, changes)), "terms", before)


def weights_of(clause: Clause) -> dict[str, float]:
    """The weight of each term that scores, of all its places in the tree."""
    weights: dict[str, float] = {}
    for term, weight in scored_terms(clause):
        weights[term] = weights.get(term, 0) + weight
    return weights


def refuse_unknown(index: LiveIndex, clause: Clause) -> None:
    """Refuses terms that no document can have; nothing in an index without a vocabulary of its own."""
    if index.terms and any(term not in index.known for term in terms_of(clause)):
        check_known(clause, index.terms)


def encode_document(index: LiveIndex, doc_id: str) -> Any:
    """A document of the corpus as a query, by its picture or its text."""
    shown = index.corpus.documents.get(doc_id)
    if shown is None:
        raise DataError(f"no document {doc_id[:80]!r} in the corpus")
    if shown.picture is not None and index.picture_tower is not None:
        [query] = picture_queries(index, [open_image(index.corpus.picture(doc_id))])
        return _readable(query)
    topic = Topic(TYPED, " ".join(part for part in (shown.title, shown.text) if part))
    try:
        index.model.query.read_topic(topic)
    except OtherModality as error:
        raise UsageError(f"document {doc_id[:80]!r} is a text, and queries of this index are pictures") from error
    return _readable(next(encode_queries(index.model, [topic], index.manifest)))


def _readable(query: Any) -> Any:
    """A lexical query cut to the terms that the page shows; other queries as they are."""
    if isinstance(query, ImpactQuery):
        return query._replace(vector=heaviest(query.vector, limits.PICTURE_TERMS))
    return query


def conditions(index: LiveIndex, question: Question) -> Clause | None:
    """What documents must match besides the query; None if nothing."""
    clauses: list[Clause] = [_condition(metadata) for metadata in question.filters]
    if question.where.strip():
        clauses.append(parse(question.where, index.manifest.fields))
    if not clauses:
        return None
    clause = clauses[0] if len(clauses) == 1 else All(tuple(clauses))
    if index.manifest.kind == "impact":
        refuse_unknown(index, clause)
    return clause


def _condition(metadata: MetadataFilter) -> Clause:
    if metadata.value is not None:
        return Equals(metadata.field, metadata.value)
    if metadata.low is None and metadata.high is None:
        raise UsageError(f"filter of {metadata.field[:80]!r}: give a value, or a low or high end")
    return Range(metadata.field, metadata.low, metadata.high)


def search(index: LiveIndex, query: Any, where: Clause | None, hits: int) -> RankedList:
    """The ranked list of a query among the documents that match; of no query, those documents."""
    if query is None:
        if where is None:
            return ranked(TYPED, [])
        query = TreeQuery(TYPED, All(()))
    if not isinstance(query, ImpactQuery | TreeQuery):
        return next(index.engine.search([query], hits))
    settings = SearchSettings(refinement=Refinement(where=where))
    return next(search_refined(index.impacts, [RefinedQuery(query)], settings, hits))


def find(
    index: LiveIndex, question: Question, query: Any, where: Clause | None, cut: Cut | None
) -> tuple[RankedList, bool]:
    """The hits of a query that have the least score; if none has it, the nearest ones and True."""
    hits = search(index, query, where, question.hits)
    if cut is None:
        return hits, False
    fitting = hits.down_to(least_score(cut, index, query))
    return fitting or hits, bool(hits) and not fitting


def least_score(cut: Cut, index: LiveIndex, query: Any) -> float:
    """The least score of a query's hits; a share is of a query of an impact index."""
    return cut.least(clause_of(query), index.impacts) if cut.relative else cut.value


def has_text(clause: Clause) -> bool:
    """Whether BM25 is part of a tree."""
    return any(isinstance(node, Text) for node in walk(clause))


def chips(read: ReadQuery) -> list[Chip]:
    """The terms of a query with their weights, the heaviest first, as the encoder gave them."""
    if not isinstance(read.query, ImpactQuery | TreeQuery):
        return []
    now, before = weights_of(clause_of(read.query)), read.weights
    order = sorted(before, key=lambda term: (-before[term], term))
    return [Chip(term=term, weight=round(now.get(term, 0)), given=round(before[term])) for term in order]


def hit_of(index: LiveIndex, hit: ScoredDoc) -> ShownHit:
    """A hit with what is known of its document."""
    shown = index.corpus.documents.get(hit.doc_id, UNKNOWN)
    return ShownHit(
        rank=hit.rank,
        doc_id=hit.doc_id,
        score=float(hit.score),
        title=shown.title,
        text=shown.text,
        picture=bool(shown.picture),
        metadata=dict(shown.metadata),
    )


def reweighted(clause: Clause, weights: Mapping[str, int]) -> Clause:
    """The tree with other weights of terms; a term of weight 0 must still match where it had to, and adds nothing."""

    def leaf(clause: Clause) -> Clause:
        if isinstance(clause, Term) and clause.term in weights:
            weight = weights[clause.term]
            return replace(clause, weight=weight) if weight else Unscored(Term(clause.term))
        return Impacts(changed(clause.vector, weights)) if isinstance(clause, Impacts) else clause

    return with_leaves(clause, leaf)


def changed(vector: Mapping[str, int], weights: Mapping[str, int]) -> dict[str, int]:
    """The vector with other weights, new terms at the end; a weight of 0 leaves a term out."""
    if any(weight < 0 for weight in weights.values()):
        raise UsageError("a weight below 0; expected 0, which leaves the term out, or more")
    return {term: weight for term, weight in {**vector, **weights}.items() if weight}
