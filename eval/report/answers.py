"""Reads what a contact sheet shows from a run or an index; `strips` draws it.

Maps show on each image which regions have the terms of its score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import Manifest, read_run_manifest
from lexvl_anserini.ground.records import CorpusRef, Document, ScoredDoc, Topic
from lexvl_anserini.queries.query_source import build_typed_topic
from lexvl_anserini.runs.order import RankedList
from lexvl_anserini.runs.trec import read_run, sort_by_rank
from lexvl_anserini.searching.searcher import Index, Searcher
from lexvl_anserini.searching.shared_terms import Explanation, cut_like_run, encode_topic, warn_about_scores

from ..measures.inputs import complete_reference, describe_run
from .strips import IMAGE, Cell, Item, Strip

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.encoders.parts.images.vision import ImageTower

OWN_TERMS = 6


def resolve_corpus(run_path: Path, about: Manifest, data_dir: str | None) -> CorpusRef:
    """The dataset that a run answers: by the run's manifest, completed by the index's."""
    known, indexed = describe_run(run_path).corpus, about.corpus.ref
    for field in ("direction", "name", "split"):
        of_run, of_index = getattr(known, field), getattr(indexed, field)
        if known.name and of_run and of_index and of_run != of_index:
            raise UsageError(f"{run_path}: a run over {of_run}, but the index is of {of_index}; name its own index")
    return complete_reference(known.at(data_dir), indexed)


def sample_queries(run_path: Path, count: int) -> list[str]:
    """`count` topics of a run, evenly spaced in their order, so that no choice by hand is involved."""
    answered = list(dict.fromkeys(document.query_id for document in read_run(run_path)))
    if not answered:
        raise DataError(f"{run_path}: no line; nothing to show")
    count = min(count, len(answered))
    return [answered[(2 * number + 1) * len(answered) // (2 * count)] for number in range(count)]


def read_hits(run_path: Path, query_ids: Sequence[str]) -> dict[str, RankedList]:
    """The documents of some topics in a run, best first; an empty list for a topic without hits."""
    hits: dict[str, list[ScoredDoc]] = {query_id: [] for query_id in query_ids}
    for document in read_run(run_path):
        if document.query_id in hits:
            hits[document.query_id].append(document)
    return {query_id: sort_by_rank(documents) for query_id, documents in hits.items()}


def make_item(record: Document | Topic) -> Item:
    """A document or topic as it is shown: images under the names of their files."""
    from lexvl_anserini.data.pictures.images import open_image

    text = record.contents if isinstance(record, Document) else record.text or ""
    name = record.doc_id if isinstance(record, Document) else record.query_id
    if record.image is None:
        return Item(name, None, text)
    return Item(Path(record.image.rpartition("::")[2]).name, open_image(record.image), text)


def own_terms(model: Encoder, documents: Sequence[Document]) -> dict[str, list[str]]:
    """Document id -> its heaviest terms."""
    terms = model.decode(model.encode_document(documents), OWN_TERMS)
    return {d.doc_id: [term for term, _ in own] for d, own in zip(documents, terms, strict=True)}


def find_documents(dataset: Dataset, doc_ids: Collection[str]) -> dict[str, Document]:
    """Those of the documents that the dataset contains, by id."""
    return {document.doc_id: document for document in dataset.documents() if document.doc_id in doc_ids}


class TypedAnswer(NamedTuple):
    """A typed query, its first hits, and a note beside it."""

    text: str
    hits: Sequence[Explanation]
    note: str = ""


def make_query_strips(dataset: Dataset, index: Index, model: Encoder, texts: Sequence[str], hits: int) -> list[Strip]:
    """Typed queries with their first hits, none of which is known to be relevant."""
    with Searcher(index, model) as searcher:
        answers = [TypedAnswer(text, searcher.explain(build_typed_topic(text, None), hits=hits)) for text in texts]
    return make_answer_strips(dataset, index, model, answers)


def make_answer_strips(dataset: Dataset, index: Index, model: Encoder, answers: Sequence[TypedAnswer]) -> list[Strip]:
    """Typed queries with hits that the caller already has."""
    doc_ids = {why.doc_id for answer in answers for why in answer.hits}
    documents = find_documents(dataset, doc_ids)
    if missing := sorted(doc_ids - documents.keys()):
        raise DataError(f"{index.path}: {missing[0]!r} is no longer in {dataset.name}; encode and index it again")
    own = own_terms(model, list(documents.values()))
    return [
        Strip(
            Item(note, None, text),
            tuple(Cell(make_item(documents[w.doc_id]), w.score, False, w.terms, own[w.doc_id]) for w in listed),
        )
        for text, listed, note in answers
    ]


def make_run_strips(
    dataset: Dataset, index: Index, model: Encoder, run_path: Path, query_ids: Sequence[str], hits: int
) -> list[Strip]:
    """Topics of a run with their first hits there, and the terms of their scores."""
    lists = read_hits(run_path, query_ids)
    topics = {topic.query_id: topic for topic in dataset.topics() if topic.query_id in lists}
    doc_ids = {scored.doc_id for listed in lists.values() for scored in listed[:hits]}
    documents = find_documents(dataset, doc_ids)
    if missing := sorted((lists.keys() - topics.keys()) | (doc_ids - documents.keys())):
        raise DataError(f"{run_path}: {missing[0]!r} is not in {dataset.name}/{dataset.split}; another dataset's run?")
    relevant: dict[str, set[str]] = defaultdict(set)
    for qrel in dataset.qrels():
        if qrel.relevance > 0 and qrel.query_id in lists:
            relevant[qrel.query_id].add(qrel.doc_id)
    own = own_terms(model, list(documents.values()))
    of_run = read_run_manifest(run_path)
    strips = []
    with Searcher(index, model) as searcher:
        for query_id, every in lists.items():
            listed = every[:hits]
            query = cut_like_run(encode_topic(topics[query_id], model, index.manifest), of_run)
            explanations = searcher.explain(query, [scored.doc_id for scored in listed])
            warn_about_scores(run_path, {scored.doc_id: scored.score for scored in listed}, explanations)
            cells = (
                Cell(make_item(documents[doc_id]), score, doc_id in relevant[query_id], why.terms, own[doc_id])
                for (_, doc_id, _, score), why in zip(listed, explanations, strict=True)
            )
            ranks = (rank for rank, scored in enumerate(every, start=1) if scored.doc_id in relevant[query_id])
            first = next((f"relevant at rank {rank}" for rank in ranks), f"not among {len(every)} hits")
            strips.append(Strip(make_item(topics[query_id]), tuple(cells), first))
    return strips


# A map is drawn on an image of at most this side in pixels: more than a sheet shows.
SIDE = 2 * IMAGE


def with_maps(strips: Sequence[Strip], model: Encoder) -> list[Strip]:
    """Strips whose hits are in colour where the terms that they share with the query are, and pale elsewhere."""
    from lexvl_anserini.encoders.parts.images.grounding import image_side

    tower = image_side(model)
    if tower is not model.document:
        raise UsageError("the documents of this index are texts; maps are drawn over images")
    return [strip._replace(cells=tuple(with_map(cell, tower) for cell in strip.cells)) for strip in strips]


def with_map(cell: Cell, tower: ImageTower) -> Cell:
    """A hit with the map of its shared terms; a hit that shares none is pale."""
    from lexvl_anserini.encoders.parts.images.grounding import compute_contributions, overlay

    if cell.item.image is None:
        return cell
    weights = {term.term: term.weight for term in cell.terms}
    grid = compute_contributions(tower, cell.item.image, weights) if weights else np.zeros((1, 1))
    small = cell.item.image.copy()
    small.thumbnail((SIDE, SIDE))
    return cell._replace(item=cell.item._replace(image=overlay(small, tower.pixels.region(small.size), grid)))
