"""Measures parts of rows: the whole line for one system on one collection, or what needs no run.

    OUTPUT/impacts/<documents>, OUTPUT/indexes/<documents>   shared by rows that differ in their queries alone
    OUTPUT/runs/<run>.trec                                   and <run>.qrels where only some documents are encoded
    OUTPUT/results/                                          a file per run, as `score --results` writes them
    OUTPUT/topics/<run>.json                                 the values of each topic, by measure
    OUTPUT/parts/<run>.json                                  the values, and the request that made them

Every step leaves finished files as they are, and a finished result, found by what decides it, needs no step at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from lexvl_eval.analyses.classes.class_sets import load_labelled
from lexvl_eval.analyses.classes.classification import (
    VOCABULARY,
    build_word_space,
    measure_accuracies,
    measure_class_words,
    rank_images,
    run_linear_probe,
)
from lexvl_eval.analyses.sentence_pairs import compare_sentences, load_sentence_pairs
from lexvl_eval.analyses.terms import open_shards
from lexvl_eval.measures.flops import compute_flops, count_terms
from lexvl_eval.measures.inputs import JudgementSource, describe_run
from lexvl_eval.measures.measure_runs import measure_runs
from lexvl_eval.measures.metrics import means, parse_measure, select_topics

from lexvl_anserini.data.corpora.embeddings import find_image_reference
from lexvl_anserini.data.dataset import Dataset, load_reference
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.encoders.cards import make_direction_option
from lexvl_anserini.encoders.checkpoints.find import combine_digests, find_checkpoint, find_parts
from lexvl_anserini.encoders.describing import list_options
from lexvl_anserini.encoders.encoder import Encoder, as_lexical
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.claims import compare_requests
from lexvl_anserini.ground.errors import CheckpointError, DataError
from lexvl_anserini.ground.files import atomic_write, disk_errors, exclusive, make_folder, read_json, write_json
from lexvl_anserini.ground.manifest import RunManifest, read_manifest
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.query_source import TopicSource
from lexvl_anserini.queries.query_vectors import encode_queries
from lexvl_anserini.runs.trec import DEFAULT_HITS, ensure_run, read_lists, write_run
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.index_runs import plan_run, write_index_run
from lexvl_anserini.searching.rescoring import expect_run_manifest, load_reranking_encoder, plan_rerank, rerank_lists
from lexvl_anserini.searching.search import EncoderChanges, Search
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts

from .prepared import (
    STORED,
    Finding,
    Prepared,
    RowPart,
    Workplace,
    find_limit,
    find_pairs,
    find_picture,
    find_twin,
    prepare,
    select_document_options,
    write_remarks,
)

if TYPE_CHECKING:
    from lexvl_eval.analyses.classes.class_sets import LabelledImages

    from lexvl_anserini.searching.searcher import Index

# Documents of a shard: what a killed call encodes again.
SHARD_SIZE = 1024

# Hits per topic where images or captions are searched, of which papers measure the first ten.
CAPTION_HITS = 100

# How far a value from 0 to 1 may be from the published one: 0.3 points with vectors of 8 bits, else 0.1.
TOLERANCES = {True: 0.003, False: 0.001}

# (part, what runs for it, workplace) -> `values` by measure, whether the vectors are `quantised`, and other facts.
Make = Callable[[RowPart, Prepared, Workplace], dict[str, Any]]


# The same -> the records that a part reads, each with its image if it has one: a reference or, of some classes, pixels.
Read = Callable[[RowPart, Prepared, Workplace], Iterator[tuple[Any, Any]]]


def keep_values(read: Read) -> Callable[[Make], Callable[[RowPart, Workplace], Finding]]:
    """What measures a part by a function, or finds the result of an earlier call that `read` the same."""
    return partial(_keep_values, read)


def _keep_values(read: Read, make: Make) -> Callable[[RowPart, Workplace], Finding]:
    @wraps(make)
    def measure(part: RowPart, place: Workplace) -> Finding:
        work = prepare(part, place)
        if work is None:
            raise CheckpointError(f"{part.label}: no published weights")
        request = make_request(part, work, place, read)
        stored = place.output / "parts" / f"{work.names.run}.json"
        result = read_json(stored, "result") if stored.is_file() else {}
        complete = "quantised" in result and {*part.measures} <= {*result.get("values", ())}
        if not (complete and compare_requests(request, result.get("request") or {})):
            started = time.perf_counter()
            with disk_errors(place.output):
                make_folder(stored.parent)
            with exclusive(place.output):
                result = {"request": request, **make(part, work, place)}
            result["seconds"] = round(time.perf_counter() - started, 1)
            write_json(stored, result)
        remark, note = write_remarks(work.weights, place.as_published)
        remark = ", ".join(filter(None, (remark, f"--limit {place.limit}" if place.limit else "")))
        model = request["checkpoint_digest"] or ""
        return Finding(result["values"], TOLERANCES[result["quantised"]], remark, note, model)

    return measure


def read_collection(part: RowPart, work: Prepared, place: Workplace) -> Iterator[tuple[Any, Any]]:
    """The documents, topics and judgements of a part."""
    dataset = load_reference(work.corpus)
    for record in chain(dataset.documents(), dataset.topics(), dataset.qrels()):
        yield record, getattr(record, "image", None)


def digest_inputs(part: RowPart, work: Prepared, place: Workplace, read: Read) -> str:
    """SHA-256 (hex) of what a part reads besides checkpoints."""
    key = (part.task, part.data, work.corpus, work.system.item, work.system.text)
    if key not in place.digests:
        whole = sha256()
        with FileDigests() as files:
            for record, image in read(part, work, place):
                content = files.of(image) if isinstance(image, str) else image and image.tobytes()
                whole.update(repr((record, content)).encode())
        place.digests[key] = whole.hexdigest()
    return place.digests[key]


@keep_values(read_collection)
def measure_retrieval(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """Encodes, indexes, searches and measures; each step is skipped where it is finished."""
    dataset = limit_dataset(load_reference(work.corpus), find_limit(part, place))
    with disk_errors(place.output):
        make_folder(place.output / "runs")
    index = index_part(work, dataset, place)
    run = search_part(index, work, dataset, place)
    if work.system.rerank:
        run = rerank_part(run, work, dataset, place)
    judgements = JudgementSource()
    if place.limit:
        judgements = JudgementSource(run.with_suffix(".qrels"))
        lines = (f"{query_id} 0 {doc_id} {value}\n".encode() for query_id, doc_id, value in dataset.qrels())
        with atomic_write(run.with_suffix(".qrels")) as out:
            out.writelines(lines)
    measures, stored = map(measure_name, part.measures), place.output / "results"
    card = describe_run(run)
    # The authors of ViDoRe measure in trec_eval's order of equal scores; None is that of the run.
    order = "trec_eval" if part.data.startswith("vidore/") else None
    [rows] = measure_runs([card], judgements, measures, ties=order, results=stored)
    values, of_topics = means(rows), place.output / "topics"
    make_folder(of_topics)
    by_topic = {name: select_topics(rows, measure_name(name)) for name in part.measures}
    write_json(of_topics / f"{work.names.run}.json", by_topic)
    return {
        "values": {name: values[measure_name(name)] for name in part.measures},
        "quantised": index.manifest.kind == "impact",
        "documents": index.documents,
        "run": run.name,
        "sha256": card.sha256,
    }


def encode_documents(work: Prepared, dataset: Dataset, place: Workplace) -> Path:
    """The folder of the encoded documents."""
    name, options = work.system.encoder, select_document_options(work.system.encoder, work.weights.options)
    model = load_encoder(
        name, work.weights.reference, device=place.device, **make_direction_option(name, dataset.direction), **options
    )
    shards, layout = place.output / "impacts" / work.names.documents, Layout("parquet", SHARD_SIZE)
    with place.bars(f"encode {shards.name}", None, "documents") as progress:
        write_impacts(dataset, model, shards, None, layout, place.batch_size, place.overwrite, progress)
    return shards


def index_part(work: Prepared, dataset: Dataset, place: Workplace) -> Index:
    """The index of the encoded documents."""
    shards = encode_documents(work, dataset, place)
    folder, documents = place.output / "indexes" / shards.name, read_manifest(shards).counts.documents
    with place.bars(f"index {shards.name}", documents, "documents") as progress:
        return build_index(shards, folder, overwrite=place.overwrite, progress=progress)


def search_part(index: Index, work: Prepared, dataset: Dataset, place: Workplace) -> Path:
    """The run of all topics."""
    of_documents = select_document_options(work.system.encoder, work.weights.options)
    changes = {name: value for name, value in work.weights.options.items() if name not in of_documents}
    searcher = Searcher(index, encoder=EncoderChanges(options=changes, device=place.device))
    source = TopicSource.take_dataset(dataset)
    hits = DEFAULT_HITS if dataset.direction == "text-to-text" else CAPTION_HITS
    run = place.output / "runs" / f"{work.names.run}{'.found' if work.system.rerank else ''}.trec"
    request = plan_run(searcher, source, hits, source.remove_query)

    def write() -> RunManifest:
        with place.bars(f"search {run.name}", source.count(), "topics") as progress:
            return write_index_run(searcher, source, Search(batch_size=place.batch_size), request, run, progress)

    ensure_run(run, request, place.overwrite, write)
    return run


def rerank_part(first_run: Path, work: Prepared, dataset: Dataset, place: Workplace) -> Path:
    """The run with the first documents of each list scored again by the complete vectors."""
    manifest = expect_run_manifest(first_run)
    model = load_reranking_encoder(manifest, None, None, place.device, {})
    request = plan_rerank(first_run, TopicSource.take_dataset(dataset), model, work.system.rerank)
    run = place.output / "runs" / f"{work.names.run}.trec"

    def write() -> RunManifest:
        depth = work.system.rerank
        lists = rerank_lists(dataset.topics(), read_lists(first_run), model, dataset.documents, depth, place.batch_size)
        return write_run(run, lists, request, tag=f"{model.name}-reranked")

    ensure_run(run, request, place.overwrite, write)
    return run


def measure_name(name: str) -> str:
    """The measure of a published name: R@k of the caption papers is a hit rate."""
    return str(parse_measure(f"HitRate{name[1:]}" if name.startswith("R@") else name))


def limit_dataset(dataset: Dataset, number: int | None) -> Dataset:
    """A part of a dataset: that many documents, relevant ones first, and the topics that have one among them."""
    if not number:
        return dataset
    doc_ids = set(islice(dict.fromkeys(qrel.doc_id for qrel in dataset.qrels() if qrel.relevance > 0), number))
    for document in dataset.documents():
        if len(doc_ids) >= number:
            break
        doc_ids.add(document.doc_id)
    answered = {qrel.query_id for qrel in dataset.qrels() if qrel.doc_id in doc_ids and qrel.relevance > 0}

    return replace(
        dataset,
        documents=lambda: (document for document in dataset.documents() if document.doc_id in doc_ids),
        topics=lambda: (topic for topic in dataset.topics() if topic.query_id in answered),
        qrels=lambda: (q for q in dataset.qrels() if q.query_id in answered and q.doc_id in doc_ids),
    )


def make_request(part: RowPart, work: Prepared, place: Workplace, read: Read) -> dict[str, Any]:
    """What decides the values of a part, which reads the same as its dense twin."""
    reference, options = work.weights.reference, work.weights.options
    checkpoint = find_checkpoint(reference) if reference else None
    twin = find_twin(part)
    dense = prepare(twin, place) if twin else None
    of_twin = {"dense": make_request(twin, dense, place, read)} if twin and dense else {}
    return {
        "encoder": work.system.encoder,
        "checkpoint_digest": combine_digests(checkpoint, find_parts(options)),
        "options": options,
        "rerank": work.system.rerank,
        "inputs": digest_inputs(part, work, place, read),
        "corpus": work.corpus.name,
        "direction": part.task,
        "limit": find_limit(part, place),
        **of_twin,
    }


# What is measured without a run: sparsity, single weights, the completeness probe, classification of images.


@keep_values(read_collection)
def measure_sparsity(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """Mean terms of all topics and of the stored documents, FLOPS; evenness; terms of short topics and of long ones."""
    dataset = limit_dataset(load_reference(work.corpus), find_limit(part, place))
    stored = open_shards(encode_documents(work, dataset, place))
    model = load_part_encoder(work, place, direction=dataset.direction)
    encoded = encode_queries(model, dataset.topics(), stored.manifest)
    queries = {query.query_id: query.vector for query in encoded if isinstance(query, ImpactQuery)}
    sides = (
        count_terms(queries.values(), f"queries of {stored.folder}"),
        count_terms((document.vector for document in stored.documents()), str(stored.folder)),
    )
    names = ("query terms", "document terms")
    values = {name: side.frequency.total() / side.vectors for name, side in zip(names, sides, strict=True)}
    values |= {"FLOPS": compute_flops(*sides)}
    values |= {"evenness": compute_evenness(sides[1].frequency.values(), len(stored.vocabulary))}
    lengths = {topic.query_id: len((topic.text or "").split()) for topic in dataset.topics()}
    shortest, longest = average_quarters(
        [lengths[name] for name in queries], [len(vector) for vector in queries.values()]
    )
    values |= {"terms of the shortest quarter": shortest, "terms of the longest quarter": longest}
    measured = {name: values[name] for name in part.measures}
    return {"values": measured, "quantised": True, "documents": sides[1].vectors}


def compute_evenness(frequencies: Iterable[int], terms: int) -> float:
    """How evenly postings spread over a vocabulary: the entropy of the shares p_t = df_t / sum df, over ln |V|.

    1 where all terms are in as many documents (what a FLOPS penalty prefers: STAIR, appendix D), 0 for a single one.
    """
    counts = np.array([count for count in frequencies if count], dtype=np.float64)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum() / np.log(terms)) if terms > 1 else 0.0


def average_quarters(words: Sequence[int], terms: Sequence[int]) -> tuple[float, float]:
    """Mean terms of the shortest and of the longest quarter of texts, by their words; equally long texts stay together.

    The shortest quarter has all texts that are no longer than the last text of the first n // 4.
    """
    lengths, counts = np.array(words), np.array(terms)
    quarter, ordered = max(1, len(words) // 4), np.sort(lengths)
    chosen = (lengths <= ordered[quarter - 1], lengths >= ordered[-quarter])
    shortest, longest = (float(counts[own].mean()) for own in chosen)
    return shortest, longest


def read_item(part: RowPart, work: Prepared, place: Workplace) -> Iterator[tuple[Any, Any]]:
    """The text, or the image, of a part."""
    yield work.system.text, None if work.system.text else find_image(work)


@keep_values(read_item)
def measure_weights(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """The weights that the model gives to the terms of an item, before they are quantised; 0 for one that it lacks."""
    model = load_part_encoder(work, place)
    tower, item = (model.query, work.system.text) if work.system.text else (model.document, find_image(work))
    weights = dict(model.decode(as_lexical(tower).weights([item]))[0])
    return {"values": {term: weights.get(term, 0.0) for term in part.measures}, "quantised": False, "documents": 1}


class AboutImage(Protocol):
    """What is about an image."""

    @property
    def image(self) -> str:
        """The path of its file."""


T = TypeVar("T", bound=AboutImage)


def limit_images(items: Sequence[T], number: int | None) -> list[T]:
    """What is about so many images, the first ones; all of it without a number."""
    chosen = set(islice(dict.fromkeys(item.image for item in items), number))
    return [item for item in items if item.image in chosen]


def read_pairs(part: RowPart, work: Prepared, place: Workplace) -> Iterator[tuple[Any, Any]]:
    """The pairs of sentences of a part."""
    yield from ((pair, pair.image) for pair in load_sentence_pairs(find_pairs(part, place), place.data_dir))


@keep_values(read_pairs)
def measure_completeness(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """The pairs of sentences about an image's objects, and the share whose complete sentence is more similar to it."""
    pairs = limit_images(load_sentence_pairs(find_pairs(part, place), place.data_dir), place.limit)
    images = len({pair.image for pair in pairs})
    model = load_part_encoder(work, place, direction="text-to-image")
    with place.bars(f"completeness {part.data}", images + 2 * len(pairs), "images and sentences") as progress:
        row, _ = compare_sentences(model, part.data, pairs, place.batch_size, progress)
    values = {"sentence pairs": row.pairs, "complete sentence first": row.complete_first}
    return {"values": {name: values[name] for name in part.measures}, "quantised": False, "documents": row.images}


def find_image(work: Prepared) -> str:
    """What the document tower reads of an item: the reference of a stored vector, or the path of a picture."""
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


def read_classes(part: RowPart, work: Prepared, place: Workplace) -> Iterator[tuple[Any, Any]]:
    """The classes and the labelled images of a part; those of training too, where a probe learns from them."""
    for split in ("test", "train") if part.task == "linear-probe" else ("test",):
        images = load_labelled(work.corpus.name, None, place.data_dir, split)
        yield images.classes, None
        yield from zip(images.labels.tolist(), images.images, strict=True)


@keep_values(read_classes)
def measure_classification(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """Shares of images with the right class, averaged as papers do, or with a word of it among the first ones."""

    def load(split: str) -> LabelledImages:
        return choose_images(load_labelled(work.corpus.name, None, place.data_dir, split), place.limit)

    settings = {"direction": "text-to-image"}
    if "prompt" in {option.name for option in list_options(work.system.encoder)}:
        settings["prompt"] = ""  # that of a published row is for captions; a class has prompts of its own
    model, images, size = load_part_encoder(work, place, **settings), load("test"), place.batch_size
    rows: Sequence[Any]
    with place.bars(f"{part.task} {part.data}", None, "prompts and images") as progress:
        if part.task == "zero-shot":
            rows = measure_accuracies(model.name, images, rank_images(model, images, size, progress))
        elif part.task == "linear-probe":
            rows = run_linear_probe(model, load("train"), images, size, progress)
        else:
            space = build_word_space(model, VOCABULARY, size, progress)
            rows = measure_class_words(model.name, space, images, progress)
    values = {name: getattr(rows[0], name.replace("-", "_")) for name in part.measures}
    return {"values": values, "quantised": False, "documents": rows[0].images}


def choose_images(labelled: LabelledImages, number: int | None) -> LabelledImages:
    """At most that many images, evenly from all of them, so that they are of many classes."""
    if number is None or number >= len(labelled.images):
        return labelled
    chosen: list[int] = np.linspace(0, len(labelled.images) - 1, number, dtype=np.int64).tolist()
    return labelled._replace(images=[labelled.images[place] for place in chosen], labels=labelled.labels[chosen])
