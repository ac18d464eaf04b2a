"""Rows that are measured without a run: sparsity, single weights, the completeness probe, classification of images."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from lexvl_anserini.encoders.describing import list_options
from lexvl_anserini.encoders.encoder import Encoder, as_lexical
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.query_vectors import encode_queries

from ..analyses.classes.class_sets import load_labelled
from ..analyses.classes.classification import (
    VOCABULARY,
    build_word_space,
    measure_accuracies,
    measure_class_words,
    rank_images,
    run_linear_probe,
)
from ..analyses.sentence_pairs import compare_sentences, load_sentence_pairs
from ..measures.flops import count_sparsity
from .prepared import STORED, Prepared, find_objects, find_picture
from .retrieval import dataset_for, encode_documents, keep_values
from .rows import RowPart, Workplace

if TYPE_CHECKING:
    from ..analyses.classes.labelled import LabelledImages


@keep_values
def measure_sparsity(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """Mean terms of queries and of documents, and FLOPS, of the stored impacts and of all topics."""
    dataset = dataset_for(part, work, place)
    shards = encode_documents(work, dataset, place)
    model = load_part_encoder(work, place, direction=dataset.direction)
    queries = encode_queries(model, dataset.topics(), read_manifest(shards))
    row = count_sparsity(shards, (query.vector for query in queries if isinstance(query, ImpactQuery)))
    values = {"query terms": row.terms_per_query, "document terms": row.terms_per_document, "FLOPS": row.flops}
    return {"values": {name: values[name] for name in part.measures}, "quantised": True, "documents": row.documents}


@keep_values
def measure_weights(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """The weights that the model gives to the terms of an item, before they are quantised; 0 for one that it lacks."""
    model = load_part_encoder(work, place)
    tower, item = (model.query, work.system.text) if work.system.text else (model.document, find_image(work))
    [terms] = model.decode(as_lexical(tower).weights([item]))
    weights = dict(terms)
    return {"values": {term: weights.get(term, 0.0) for term in part.measures}, "quantised": False, "documents": 1}


@keep_values
def measure_completeness(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """The pairs of sentences about an image's objects, and the share whose complete sentence is more similar to it."""
    pairs = load_sentence_pairs(place.corpora.get(part.data) or find_objects(place), place.data_dir)
    shown = dict.fromkeys(pair.image for pair in pairs)
    chosen = set(islice(shown, place.limit))
    pairs = [pair for pair in pairs if pair.image in chosen]
    model = load_part_encoder(work, place, direction="text-to-image")
    with place.bars(f"completeness {part.data}", len(chosen) + 2 * len(pairs), "images and sentences") as progress:
        row, _ = compare_sentences(model, part.data, pairs, place.batch_size, progress)
    values = {"sentence pairs": row.pairs, "complete sentence first": row.complete_first}
    return {"values": {name: values[name] for name in part.measures}, "quantised": False, "documents": row.images}


def find_image(work: Prepared) -> str:
    """What the document tower reads of an item: the reference of a stored vector, or the path of a picture."""
    from lexvl_anserini.data.corpora.embeddings import find_image_reference

    if work.corpus.name.startswith(STORED):
        return find_image_reference(work.corpus, work.system.item)
    path = find_picture(work.system, work.corpus.name)
    if path is None:
        raise DataError(f"{work.corpus.name}: no picture of the name {work.system.item}")
    return str(path)


def load_part_encoder(work: Prepared, place: Workplace, **settings: Any) -> Encoder:
    """The encoder of a part."""
    options = {**work.weights.options, **settings}
    return load_encoder(work.system.encoder, work.weights.reference, device=place.device, **options)


@keep_values
def measure_classification(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """Shares of images with the right class, averaged as papers do, or with a word of it among the first ones."""

    def load(split: str) -> LabelledImages:
        return choose_images(load_labelled(work.corpus.name, None, place.data_dir, split), place.limit)

    settings = {"direction": "text-to-image"}
    if "prompt" in {option.name for option in list_options(work.system.encoder)}:
        settings["prompt"] = ""  # that of a published row is for captions; a class has prompts of its own
    model, images, size = load_part_encoder(work, place, **settings), load("test"), place.batch_size
    row: Any
    with place.bars(f"{part.task} {part.data}", None, "prompts and images") as progress:
        if part.task == "zero-shot":
            row = measure_accuracies(model.name, images, rank_images(model, images, size, progress))[0]
        elif part.task == "linear-probe":
            row = run_linear_probe(model, load("train"), images, size, progress)[0]
        else:
            row = measure_class_words(
                model.name, build_word_space(model, VOCABULARY, size, progress), images, progress
            )[0]
    values = {name: getattr(row, name.replace("-", "_")) for name in part.measures}
    return {"values": values, "quantised": False, "documents": row.images}


def choose_images(found: LabelledImages, number: int | None) -> LabelledImages:
    """At most that many images, evenly from all of them, so that they are of many classes."""
    import numpy as np

    if number is None or number >= len(found.images):
        return found
    chosen: list[int] = np.linspace(0, len(found.images) - 1, number, dtype=np.int64).tolist()
    return found._replace(images=[found.images[place] for place in chosen], labels=found.labels[chosen])
