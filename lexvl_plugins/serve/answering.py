"""From a question to its answer: the query is read, searched and explained; maps of terms, pictures and vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from lexvl_anserini import __version__
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import ImpactQuery, ScoredDoc, get_field, mark_field
from lexvl_anserini.queries.clauses import All, Text, TreeQuery, build_clause, list_scored_terms, walk
from lexvl_anserini.queries.query_source import TYPED
from lexvl_anserini.runs.order import RankedList, rank_hits
from lexvl_anserini.searching.search import compute_greatest_score, parse_cut
from lexvl_anserini.searching.shared_terms import explain_documents
from lexvl_plugins.photos.answers import find, has_known_word
from lexvl_plugins.serve import limits, messages, queries
from lexvl_plugins.serve.documents import EXAMPLES, READ, SIDES, UNKNOWN, EncodedPicture, Recent, SentPictures, scale
from lexvl_plugins.serve.indexes import LiveIndex, Shelf
from lexvl_plugins.serve.queries import ReadQuery

if TYPE_CHECKING:
    from lexvl_anserini.encoders.parts.images.vision import ImageTower

# Products and scores are whole numbers, unless a factor has a fraction.
ROUNDING = 1e-3

# The map of a picture in which no place is more than another.
EVEN = messages.HeatMap(grid=[[1.0]], region=[0.0, 0.0, 1.0, 1.0], boxes=[])


@dataclass(frozen=True)
class Service:
    """Answers questions about open indexes; safe for threads. Encoded queries, maps and scaled pictures are kept.

    The examples are those that the user of the command gave; none takes those of the corpora.
    """

    shelf: Shelf
    examples: Sequence[str] = ()
    sent: SentPictures = field(default_factory=SentPictures)
    queries: Recent = field(default_factory=lambda: Recent(limits.KEPT_QUERIES))
    maps: Recent = field(default_factory=lambda: Recent(limits.KEPT_MAPS))
    impacts: Recent = field(default_factory=lambda: Recent(limits.KEPT_DOCUMENTS))
    pictures: Recent = field(default_factory=lambda: Recent(limits.KEPT_BYTES, lambda picture: len(picture.content)))

    def describe(self) -> messages.PageDescription:
        """What the page has to know."""
        indexes, examples = [], list(self.examples)
        pictures: dict[str, list[str]] = {}
        for name in self.shelf.names:
            if self.shelf.is_closed(name):
                problem = messages.hide_places(self.shelf.explain_problem(name))
                indexes.append(messages.IndexDescription(name=name, problem=problem))
                pictures[name] = []
                continue
            with self.shelf.borrow(name, damaged=True) as index:
                indexes.append(describe_index(index, self.shelf.explain_problem(name)))
                pictures[name] = index.corpus.sample()
                examples = examples or list(index.examples)
        examples = examples[: max(EXAMPLES, len(self.examples))]
        return messages.PageDescription(indexes=indexes, pictures=pictures, examples=examples, version=__version__)

    def suggest(
        self, index: messages.IndexName, prefix: Annotated[str, Field(min_length=1, max_length=100)]
    ) -> list[str]:
        """Terms of the vocabulary that begin with the prefix."""
        with self.shelf.borrow(index) as live:
            return live.suggest(prefix)

    def answer(self, question: messages.Question) -> messages.ShownAnswer:
        """The best documents for a question."""
        with self.shelf.borrow(question.index) as index:
            times = [time.perf_counter()]
            read = self._read(index, question)
            times.append(time.perf_counter())
            hits, nearest, ignored = search(index, question, read)
            times.append(time.perf_counter())
            warn = read.read_as == "text" and not has_known_word(index.model, choose_words(index, question))
            shown = [show_hit(index, hit) for hit in hits]
            spans = (times[:2], times[1:], (times[0], time.perf_counter()))
            encode_ms, search_ms, all_ms = (round((end - begin) * 1000, 2) for begin, end in spans)
            return messages.ShownAnswer(
                index=question.index,
                read_as=read.read_as,  # type: ignore[arg-type]
                chips=queries.build_chips(read),
                hits=shown,
                greatest=bound_scores(index, read),
                nearest=nearest,
                documents=index.manifest.counts.documents,
                ignored=ignored,
                warning="no word of this query is a term of the model: expect little" if warn else "",
                timing=messages.Timing(encode_ms=encode_ms, search_ms=search_ms, all_ms=all_ms),
            )

    def _read(self, index: LiveIndex, question: messages.Question) -> ReadQuery:
        """The query of a question; encoded ones are kept."""
        lexical, text = index.manifest.kind == "impact", question.text.strip()
        encode: Callable[[], Any]
        if (picture := question.picture) is not None:
            read_as, key, encode = "picture", picture, lambda: queries.encode_picture(index, self.sent.get(picture))
        elif (like := question.like) is not None:
            read_as, key, encode = "document", like, lambda: queries.encode_document(index, like)
        elif not text:
            return ReadQuery(None, "none", {})
        elif question.read_as == "terms" or (question.read_as == "auto" and lexical and queries.is_expression(text)):
            return queries.read_expression(index, text, question.weights)
        else:
            words = choose_words(index, question)
            read_as, key, encode = "text", words, lambda: queries.encode_texts(index, [words])[0]
        query = self.queries.ensure((index.serial, read_as, key), encode)
        return queries.read_vector(index, query, read_as, question.weights)

    def explain(self, request: messages.ProductsQuestion) -> list[messages.DocumentProducts]:
        """The products of a question's terms for documents; they sum to their scores."""
        with self.shelf.borrow(request.question.index) as index:
            engine, query = index.impacts, self._read(index, request.question).query
            if query is None or not request.doc_ids:
                return []
            assert isinstance(query, ImpactQuery | TreeQuery), query
            has_text, rows = any(isinstance(node, Text) for node in walk(build_clause(query))), []
            find_impacts = partial(self._find_impacts, index)
            for hit in explain_documents(engine, query, request.doc_ids, find_impacts, index.manifest.fields):
                terms = [messages.Product(**term._asdict()) for term in hit.terms]
                rest = hit.score - sum(term.product for term in hit.terms)
                rest = rest if has_text or abs(rest) > ROUNDING else 0.0
                row = messages.DocumentProducts(doc_id=hit.doc_id, score=float(hit.score), products=terms, rest=rest)
                rows.append(row)
            return rows

    def _find_impacts(self, index: LiveIndex, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        """The impacts of a document; those that were looked up before are kept, so that dragging a weight is quick."""
        known: dict[str, int] = self.impacts.get((index.serial, doc_id)) or {}
        if new := [term for term in terms if term not in known]:
            known = {**known, **dict.fromkeys(new, 0), **index.impacts.impacts(doc_id, new)}
            self.impacts.put((index.serial, doc_id), known)
        return {term: known[term] for term in terms if known[term]}

    def show_picture(self, name: str, doc_id: str, side: str) -> EncodedPicture:
        """A scaled picture of the corpus of an index."""
        with self.shelf.borrow(name) as index:
            reference = index.corpus.find_picture(doc_id)
            key = (index.serial, doc_id, side)
            picture: EncodedPicture = self.pictures.ensure(key, lambda: scale(open_image(reference), SIDES[side]))
            return picture

    def map_terms(self, request: messages.MapQuestion) -> messages.HeatMap:
        """Where in a document's picture the terms are that it shares with a question; or one of them."""
        with self.shelf.borrow(request.question.index) as index:
            query = self._read(index, request.question).query
            if not index.has_maps or not index.manifest.fields and index.map_tower is None:
                raise UsageError(f"the encoder of index {index.served.name!r} has no grid over pictures")
            picture = index.corpus.find_picture(request.doc_id)
            weights = dict(list_scored_terms(build_clause(query))) if isinstance(query, ImpactQuery | TreeQuery) else {}
            impacts = self._find_impacts(index, request.doc_id, weights)
            weights = {t: w for t, w in weights.items() if t in impacts and request.term in (None, t)}
            key = (index.serial, request.doc_id, tuple(weights.items()))
            heat: messages.HeatMap = self.maps.ensure(key, lambda: draw_map(index, request.doc_id, picture, weights))
            return heat

    def embed(self, request: messages.EmbedQuestion) -> messages.Embeddings:
        """The vectors with which an index is searched, of texts and of pictures that were sent, in their order."""
        with self.shelf.borrow(request.index) as index:
            kind = index.manifest.kind
            if kind == "text":
                raise UsageError(f"index {index.served.name!r} is for BM25: its queries are words, without vectors")
            pictures = [self.sent.get(picture_id) for picture_id in request.pictures]
            texts = embed_pieces(partial(queries.encode_texts, index), request.texts)
            shown = embed_pieces(partial(queries.encode_pictures, index), pictures)
            return messages.Embeddings(index=request.index, kind=kind, texts=texts, pictures=shown)


def search(index: LiveIndex, question: messages.Question, read: ReadQuery) -> tuple[RankedList, bool, list[str]]:
    """The hits of a query, whether they are the nearest ones alone, and what of the question the index cannot do."""
    lexical, query, cut, ignored = index.manifest.kind == "impact", read.query, None, list[str]()
    where = queries.read_conditions(index, question)
    if not lexical:
        if where is not None:
            where = None
            ignored.append("filters")
        signs = read.read_as == "text" and question.read_as == "auto" and queries.is_expression(question.text)
        parts = {"weights of terms": question.weights, "signs and factors of the expression": signs}
        ignored += [name for name, given in parts.items() if given]
    if question.min_score.strip() and query is not None:
        cut = parse_cut(question.min_score)
        if cut.relative and not lexical:
            cut = None
            ignored.append("the least score, as a share")
    if query is None:
        if where is None:
            return rank_hits(TYPED, []), False, ignored
        query = TreeQuery(TYPED, All(()))  # every document that matches
    return *find(index.searcher, query, question.hits, where, cut), ignored


def embed_pieces(encode: Callable[[Sequence[Any]], list[Any]], items: Sequence[Any]) -> list[messages.Embedding]:
    """The vectors of texts or pictures, a piece after the other while somebody waits for them."""
    vectors: list[messages.Embedding] = []
    for start in range(0, len(items), limits.PIECE):
        limits.refuse_late()
        vectors += map(list_weights, encode(items[start : start + limits.PIECE]))
    return vectors


def list_weights(query: Any) -> messages.Embedding:
    """Term -> weight, the heaviest first, or the numbers of a dense vector."""
    if isinstance(query, ImpactQuery):
        return dict(sorted(query.vector.items(), key=lambda pair: (-pair[1], pair[0])))
    return list(query.vector.tolist())


def choose_words(index: LiveIndex, question: messages.Question) -> str:
    """The words of a question's text: an index without terms takes those of an expression."""
    text, plain = question.text.strip(), index.manifest.kind == "impact" or question.read_as == "text"
    return text if plain else queries.take_words(text)


def bound_scores(index: LiveIndex, read: ReadQuery) -> float | None:
    """The greatest score that a document could have; None where there is no such bound: dense queries and BM25."""
    if not isinstance(read.query, ImpactQuery | TreeQuery):
        return None
    clause = build_clause(read.query)
    has_text = any(isinstance(node, Text) for node in walk(clause))
    return None if has_text else compute_greatest_score(clause, index.impacts)


def describe_index(index: LiveIndex, problem: str) -> messages.IndexDescription:
    """What the page has to know about an index."""
    fields = [
        messages.MetadataField(name=field, type=kind, values=index.corpus.list_values(field.removeprefix("meta.")))
        for field, kind in index.fields.items()
    ]
    with_pictures = any(document.picture is not None for document in index.corpus.documents.values())
    return messages.IndexDescription(
        name=index.served.name,
        kind=index.manifest.kind,
        encoder=", ".join(f"{field.name} {field.encoder.name}" for field in index.manifest.encoder.fields)
        or index.model.name,
        corpus=messages.hide_places(index.manifest.corpus.name),
        documents=index.manifest.counts.documents,
        terms=index.manifest.kind == "impact",
        pictures=with_pictures,
        maps=with_pictures and index.has_maps,
        sends=index.picture_tower is not None,
        fields=fields,
        problem=messages.hide_places(problem),
    )


def show_hit(index: LiveIndex, hit: ScoredDoc) -> messages.ShownHit:
    """A hit with what is known of its document."""
    shown = index.corpus.documents.get(hit.doc_id, UNKNOWN)
    return messages.ShownHit(
        rank=hit.rank,
        doc_id=hit.doc_id,
        score=float(hit.score),
        title=shown.title,
        text=shown.text,
        picture=bool(shown.picture),
        metadata=dict(shown.metadata),
    )


def draw_map(index: LiveIndex, doc_id: str, picture: str, weights: Mapping[str, float]) -> messages.HeatMap:
    """Where weighted terms are in a document's picture: an encoder's grid, and boxes of the words read in it."""
    if not index.manifest.fields:
        assert index.map_tower is not None
        return draw_grid(index.map_tower, picture, weights)
    heat, boxes = EVEN, list[list[float]]()
    for entry in index.manifest.encoder.fields:
        mark = mark_field(entry.name, "")
        own = {t.removeprefix(mark): w for t, w in weights.items() if get_field(t, index.manifest.fields) == entry.name}
        if not own:
            continue
        if entry.kind == "text" and READ in index.corpus.documents[doc_id].metadata:
            from lexvl_plugins.pages.answers import find_words

            _, frames = find_words(picture, own, BM25Settings.of(entry.encoder.options))
            boxes += [list(frame) for frame in frames]
        elif entry == index.drawn_field and index.map_tower is not None:
            heat = draw_grid(index.map_tower, picture, own)
    return heat.model_copy(update={"boxes": boxes})


def draw_grid(tower: ImageTower, picture: str, weights: Mapping[str, float]) -> messages.HeatMap:
    """Where weighted terms are in a picture."""
    from lexvl_anserini.encoders.parts.images.grounding import compute_contributions

    image = open_image(picture)
    grid = compute_contributions(tower, image, weights) if weights else np.zeros((1, 1), np.float32)
    span = float(grid.max() - grid.min())
    shares = (grid - grid.min()) / span if span else np.zeros_like(grid)
    grid = np.round(shares.astype(float), 3).tolist()
    return messages.HeatMap(grid=grid, region=measure_region(tower, image), boxes=[])


def measure_region(tower: ImageTower, image: Any) -> list[float]:
    """Left, top, right and bottom of the part of a picture that a tower reads, as shares of width and height."""
    region, lengths = tower.pixels.region(image.size), image.size * 2
    return [round(side / length, 4) for side, length in zip(region, lengths, strict=True)]
