"""States whether the first terms of images are words that people use in their captions or the words of their classes.

python -m eval.analyses.interpretability --shards impacts/demo
python -m eval.analyses.interpretability --images imagenet:FOLDER --encoder stair --checkpoint FOLDER
python -m eval.analyses.interpretability --pairs flickr8k

A word is a run of letters in lower case ("man's" is man and s); function words are none. A term is named if it is, in
lower case, a word of one of the image's captions: plurals and synonyms are other words, and a word piece (`##ing`) is
none. The first terms are those with the largest impacts, of equal ones the first in alphabetical order; a function
word among them takes a place. Two other rankings are compared:

most frequent    the words that captions of the most images have, the same for every image; it knows these captions
another image    the model's own terms, each image's compared with the next one's captions: named by chance
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from lexvl_anserini.cli import DataDir, Verbose, expand_options, run
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import expect_lexical, read_manifest
from lexvl_anserini.ground.progress import progress_bar

from .. import options
from ..report.tables import (
    CLASSES,
    COUNT,
    DATASET,
    IMAGES,
    RANKING,
    TOP_1,
    TOP_5,
    TOP_10,
    TOP_50,
    TOP_100,
    TWO_DECIMALS,
    FieldColumn,
    format_percent,
    print_records,
)
from .classes.class_sets import load_labelled, read_classes
from .classes.classification import VOCABULARY, build_word_space, measure_class_words
from .sentence_pairs import collect_words, compare_sentences, load_sentence_pairs

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.ground.records import ImpactDocument

log = logging.getLogger(__name__)

# Terms that are read of each image.
FIRST = 10

Words = frozenset[str]

NAMED_WORDS = (RANKING, IMAGES, TOP_1, TOP_5, TOP_10, FieldColumn("of 10", "words_in_10", TWO_DECIMALS))
CLASS_WORDS = (RANKING, DATASET, IMAGES, CLASSES, TOP_1, TOP_10, TOP_50, TOP_100)
COMPLETENESS = (
    *(RANKING, DATASET, IMAGES),
    FieldColumn("pairs", "pairs", COUNT),
    FieldColumn("complete first %", "complete_first", format_percent),
)


class NamedWords(NamedTuple):
    """One ranking over images: the share with a named term among the first 1, 5 and 10, and the mean named of 10."""

    ranking: str
    images: int
    top_1: float
    top_5: float
    top_10: float
    words_in_10: float


def collect_caption_words(dataset: Dataset) -> dict[str, Words]:
    """Image id -> the words of its captions, which are the topics that it is relevant to."""
    if dataset.direction != "text-to-image":
        raise UsageError(f"{dataset.name} is {dataset.direction}; expected images that captions describe")
    of_topic = {topic.query_id: collect_words(topic.text or "") for topic in dataset.topics()}
    words_by_image: dict[str, set[str]] = defaultdict(set)
    for qrel in dataset.qrels():
        if qrel.relevance > 0:
            words_by_image[qrel.doc_id] |= of_topic.get(qrel.query_id, frozenset())
    return {doc_id: frozenset(words) for doc_id, words in words_by_image.items()}


def take_first_terms(vector: Mapping[str, int]) -> list[str]:
    """The first terms of a document in lower case, largest impact first."""
    return [term.lower() for term, _ in nsmallest(FIRST, vector.items(), key=lambda item: (-item[1], item[0]))]


def count_named_words(ranking: str, terms: Iterable[Sequence[str]], captions: Sequence[Words]) -> NamedWords:
    """How many terms are named, of one ranking; `terms` has each image's, in the order of the captions' words."""
    named = [[term in words for term in first] for first, words in zip(terms, captions, strict=True)]
    top_1, top_5, top_10 = (fmean(any(flags[:depth]) for flags in named) for depth in (1, 5, FIRST))
    return NamedWords(ranking, len(named), top_1, top_5, top_10, fmean(map(sum, named)))


def find_frequent_words(captions: Iterable[Words]) -> list[str]:
    """The words that captions of the most images have, of equal ones the first in alphabetical order."""
    counts = Counter(word for words in captions for word in words)
    return nsmallest(FIRST, counts, key=lambda word: (-counts[word], word))


def compare_rankings(name: str, documents: Iterable[ImpactDocument], captions: Mapping[str, Words]) -> list[NamedWords]:
    """The model's row, then those of the other rankings; images without captions are left out."""
    read = [(take_first_terms(document.vector), captions.get(document.doc_id)) for document in documents]
    terms = [first for first, own in read if own is not None]
    words = [own for _, own in read if own is not None]
    without = len(read) - len(words)
    if len(words) < 2:
        raise DataError(f"{len(words)} of {len(words) + without} images have captions; expected at least 2")
    if without:
        log.warning("%d images without captions are left out", without)
    return [
        count_named_words(name, terms, words),
        count_named_words("most frequent", [find_frequent_words(words)] * len(words), words),
        count_named_words("another image", [*terms[1:], terms[0]], words),
    ]


def measure_shards(shards: Path, data_dir: str | None = None) -> list[NamedWords]:
    """The rows of shards of impacts, whose manifest names the captions' dataset."""
    from lexvl_anserini.data.dataset import load_reference
    from lexvl_anserini.shards.reading import read_impacts, read_vocabulary

    manifest = read_manifest(shards)
    expect_lexical(shards, manifest.kind, "only the dimensions of impacts are words")
    captions = collect_caption_words(load_reference(manifest.corpus.ref.at(data_dir)))
    documents = read_impacts(shards, manifest, read_vocabulary(shards, manifest))
    return compare_rankings(manifest.encoder.name, documents, captions)


@expand_options
def command(
    encoder: options.ImageEncoderOptions,
    shards: Annotated[
        Path | None,
        typer.Option(help="Words of captions: a folder that encode wrote, of images of a captioned corpus."),
    ] = None,
    images: Annotated[str | None, options.CLASSIFIED_IMAGES] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            help="Complete and partial sentences: captioned images (flickr8k/val), a list (.tsv or .csv: image, "
            "complete, partial), or COCO's instances_train2017.json,IMAGES."
        ),
    ] = None,
    classes: options.ClassFile = None,
    vocabulary: options.Words = VOCABULARY,
    data_dir: DataDir = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State how often first terms of images are words of captions or classes, or images prefer complete sentences.

    Captions are those of stored impacts (--shards), classes those of images (--images), which are encoded. By --pairs,
    how often an image is more similar to a complete sentence than to one about a part of it.

    Example: python -m eval.analyses.interpretability --shards impacts/demo
    """
    if sum(map(bool, (shards, images, pairs))) != 1:
        raise UsageError("give --shards (words of captions), --images (words of classes) or --pairs (of sentences)")
    if shards:
        print_records(measure_shards(shards, data_dir), NAMED_WORDS, output_format)
    elif images:
        labelled = load_labelled(images, read_classes(classes) if classes else None, data_dir)
        model = encoder.load()
        with progress_bar("class words", None, "words and images") as advance:
            space = build_word_space(model, vocabulary, encoder.batch_size, advance)
            words = measure_class_words(model.name, space, labelled, advance)
        print_records(words, CLASS_WORDS, output_format)
    elif pairs:
        sentences, model = load_sentence_pairs(pairs, data_dir), encoder.load()
        count = len({pair.image for pair in sentences}) + 2 * len(sentences)
        with progress_bar("completeness", count, "images and sentences") as advance:
            shares = compare_sentences(model, pairs, sentences, encoder.batch_size, advance)
        print_records(shares, COMPLETENESS, output_format)


if __name__ == "__main__":
    run(command)
