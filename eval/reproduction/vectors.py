"""Rows that are measured on vectors, without a run: how sparse, how fast, single weights, the completeness probe."""

from __future__ import annotations

from itertools import islice
from typing import Any

from lexvl_anserini.encoders.encoder import Encoder, as_lexical
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.query_vectors import encode_queries

from ..analyses.sentence_pairs import completeness, sentence_pairs
from ..measures.flops import sparsity_of
from .prepared import STORED, Prepared, objects_of, picture_of
from .retrieval import dataset_for, encoded, found_or_made
from .rows import Finding, RowPart, Workplace


def measure_sparsity(part: RowPart, place: Workplace) -> Finding:
    """Counts the terms of both sides of a lexical model, or finds the result."""
    return found_or_made(part, place, sparsity)


def sparsity(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """Mean terms of queries and of documents, and FLOPS, of the stored impacts and of all topics."""
    dataset = dataset_for(part, work, place)
    shards = encoded(work, dataset, place)
    model = loaded(work, place, direction=dataset.direction)
    queries = encode_queries(model, dataset.topics(), read_manifest(shards))
    row = sparsity_of(shards, (query.vector for query in queries if isinstance(query, ImpactQuery)))
    values = {"query terms": row.terms_per_query, "document terms": row.terms_per_document, "FLOPS": row.flops}
    return {"values": {name: values[name] for name in part.measures}, "quantised": True, "documents": row.documents}


def measure_weights(part: RowPart, place: Workplace) -> Finding:
    """The weights of the terms of one image or text, or finds the result."""
    return found_or_made(part, place, term_weights)


def term_weights(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """The weights that the model gives to the terms of an item, before they are quantised; 0 for one that it lacks."""
    model = loaded(work, place)
    tower, item = (model.query, work.system.text) if work.system.text else (model.document, image_of(work))
    [terms] = model.decode(as_lexical(tower).weights([item]))
    weights = dict(terms)
    return {"values": {term: weights.get(term, 0.0) for term in part.measures}, "quantised": False, "documents": 1}


def measure_completeness(part: RowPart, place: Workplace) -> Finding:
    """How often a complete sentence comes before a partial one, or finds the result."""
    return found_or_made(part, place, complete_first)


def complete_first(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """The pairs of sentences about an image's objects, and the share whose complete sentence is more similar to it."""
    pairs = sentence_pairs(place.corpora.get(part.data) or objects_of(place), place.data_dir)
    shown = dict.fromkeys(pair.image for pair in pairs)
    chosen = set(islice(shown, place.limit))
    pairs = [pair for pair in pairs if pair.image in chosen]
    model = loaded(work, place, direction="text-to-image")
    with place.bars(f"completeness {part.data}", len(chosen) + 2 * len(pairs), "images and sentences") as progress:
        row, _ = completeness(model, part.data, pairs, place.batch_size, progress)
    values = {"sentence pairs": row.pairs, "complete sentence first": row.complete_first}
    return {"values": {name: values[name] for name in part.measures}, "quantised": False, "documents": row.images}


def image_of(work: Prepared) -> str:
    """What the document tower reads of an item: the reference of a stored vector, or the path of a picture."""
    from lexvl_anserini.data.corpora.embeddings import find_image_reference

    if work.corpus.name.startswith(STORED):
        return find_image_reference(work.corpus, work.system.item)
    path = picture_of(work.system, work.corpus.name)
    if path is None:
        raise DataError(f"{work.corpus.name}: no picture of the name {work.system.item}")
    return str(path)


def loaded(work: Prepared, place: Workplace, **settings: Any) -> Encoder:
    """The encoder of a part."""
    options = {**work.weights.options, **settings}
    return load_encoder(work.system.encoder, work.weights.reference, device=place.device, **options)
