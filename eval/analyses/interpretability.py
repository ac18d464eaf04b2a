"""States whether images' terms are words of their captions, and where the words of their classes are.

python -m eval.analyses.interpretability --shards impacts/demo
python -m eval.analyses.interpretability --images imagenet:FOLDER --encoder stair --checkpoint FOLDER

Words of classes (STAIR, section 5.1, tables 5 and 8): the rank of the word of an image's class among all words of a
vocabulary. A class of several WordPieces has the largest of their weights. Weights are those before the sparsifier; of
a dense encoder, the cosines of the image and of the words of a vocabulary, each encoded as a text. A class is no answer
if its words have weight 0, or are no terms at all. A second ranking, the same for every image, compares: the words by
their mean weight over all images, which knows the images but none by itself.

Words of captions: a word is a run of letters in lower case ("man's" is man and s); function words are none. A term is
named if it is, in lower case, a word of one of the image's captions: plurals and synonyms are other words, and a word
piece (`##ing`) is none. The first terms are those with the largest impacts, of equal ones the first in alphabetical
order; a function word among them takes a place. Two other rankings are compared:

most frequent    the words that captions of the most images have, the same for every image; it knows these captions
another image    the model's own terms, each image's compared with the next one's captions: named by chance
"""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from lexvl_anserini.cli import DataDir, Verbose, expanded, progress_bar, run
from lexvl_anserini.encoders.encoder import Encoder, as_dense, as_lexical
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.manifest import expect_lexical, read_manifest
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.training.words import function_words

from .. import options
from ..report.render import Table, check_format, render
from ..report.tables import CLASS_WORDS, NAMED_WORDS
from .classes.class_sets import load_labelled
from .classes.labelled import read_classes
from .zeroshot import NO_ANSWER

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.ground.manifest import Manifest
    from lexvl_anserini.ground.records import ImpactDocument

    from .classes.labelled import LabelledImages


# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_eval.analyses.interpretability")

CUTS = (1, 10, 50, 100)

# Vocabulary of a dense encoder where none is named: BERT's, as in the paper.
VOCABULARY = "minilm"

# Images whose weights of all words are in memory together.
IMAGES_AT_ONCE = 256

# Classes without words, in a line of the log.
NAMED = 5


class ClassWordShares(NamedTuple):
    """One ranking of words: shares of images with a word of their class among the first ones."""

    ranking: str
    dataset: str
    images: int
    classes: int
    top_1: float
    top_10: float
    top_50: float
    top_100: float


class WordSpace(NamedTuple):
    """A vocabulary over images.

    weights  images -> float32 [n, V]; minus infinity is no answer
    words    texts -> the dimensions of each text's own tokens
    """

    weights: Callable[[Sequence[Any]], np.ndarray]
    words: Callable[[Sequence[str]], list[list[int]]]


def label_ranks(weights: np.ndarray, tokens: Sequence[Sequence[int]]) -> np.ndarray:
    """The rank, from 1, of each image's label among the whole vocabulary, int64 [n].

    A label of several tokens has the largest of their weights. Terms of equal weight do not come before it.

    Args:
        weights: [n, V]; minus infinity is no answer.
        tokens: per row, the dimensions of its label's tokens; a label without tokens is no answer.
    """
    own = np.array([row[list(dims)].max(initial=-np.inf) for row, dims in zip(weights, tokens, strict=True)])
    return np.where(np.isneginf(own), NO_ANSWER, 1 + (weights > own[:, None]).sum(axis=1))


def lexical_space(model: Encoder, batch_size: int) -> WordSpace:
    """The terms of a lexical encoder."""
    from lexvl_anserini.encoders.parts.images.grounding import own_terms

    tower = as_lexical(model.document)

    def weights(images: Sequence[Any]) -> np.ndarray:
        values = tower.dense_weights(images, batch_size)
        return np.where(values > 0, values, -np.inf)

    return WordSpace(weights, partial(own_terms, model))


def dense_space(model: Encoder, vocabulary: str, batch_size: int, progress: Progress = silent) -> WordSpace:
    """The words of a tokenizer, encoded as texts by a dense encoder; a piece `##ing` is the text `ing`."""
    from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
    from lexvl_anserini.encoders.parts.tokens import columns_from, first_word_id, load_tokenizer, whole_encodings

    tokenizer = load_tokenizer(find_checkpoint(vocabulary, weights=False).folder)
    columns = columns_from(tokenizer, first_word_id(tokenizer))
    texts = [term.removeprefix("##") for term in columns.vocabulary]
    vectors = as_dense(model.query).vectors(texts, batch_size, progress)

    def words(names: Sequence[str]) -> list[list[int]]:
        return [own.tolist() for own in columns.own([row.ids for row in whole_encodings(tokenizer, names)])]

    return WordSpace(lambda images: as_dense(model.document).vectors(images, batch_size) @ vectors.T, words)


def class_word_shares(
    name: str, space: WordSpace, labelled: LabelledImages, progress: Progress = silent
) -> list[ClassWordShares]:
    """The rows of a model and of its mean over all images."""
    tokens = [sorted({dim for own in space.words(names) for dim in own}) for names in labelled.classes.names]
    if without := [names[0] for names, own in zip(labelled.classes.names, tokens, strict=True) if not own]:
        log.warning("%d classes have no word in the vocabulary: %s", len(without), ", ".join(without[:NAMED]))
    own, ranks, total = [tokens[label] for label in labelled.labels], [], np.zeros(1)
    for start in range(0, len(labelled.images), IMAGES_AT_ONCE):
        weights = space.weights(labelled.images[start : start + IMAGES_AT_ONCE])
        ranks.append(label_ranks(weights, own[start : start + IMAGES_AT_ONCE]))
        total = total + np.where(np.isneginf(weights), 0, weights).sum(axis=0, dtype=np.float64)
        progress(len(weights))
    of_classes = label_ranks(np.tile(np.where(total == 0, -np.inf, total), (len(tokens), 1)), tokens)
    return [
        ClassWordShares(ranking, labelled.name, len(own), len(tokens), *(float((of <= k).mean()) for k in CUTS))
        for ranking, of in ((name, np.concatenate(ranks)), ("mean of the images", of_classes[labelled.labels]))
    ]


def class_words(
    images: str, encoder: options.ImageEncoderOptions, classes: Path | None, vocabulary: str, data_dir: str | None
) -> list[ClassWordShares]:
    """The rows of images with classes, as the options of the command name them."""
    labelled = load_labelled(images, read_classes(classes) if classes else None, data_dir)
    model = encoder.load()
    with progress_bar("class words", None, "words and images") as advance:
        lexical = model.kind == "impact"
        space = (
            lexical_space(model, encoder.batch_size)
            if lexical
            else dense_space(model, vocabulary, encoder.batch_size, advance)
        )
        return class_word_shares(model.name, space, labelled, advance)


@expanded
def command(
    encoder: options.ImageEncoderOptions,
    shards: Annotated[
        Path | None,
        typer.Option(help="Words of captions: a folder that encode wrote, of images of a captioned corpus."),
    ] = None,
    images: Annotated[str | None, options.CLASSIFIED_IMAGES] = None,
    classes: options.ClassFile = None,
    vocabulary: Annotated[
        str, typer.Option(help="Of a dense encoder: folder or hub id of a tokenizer, or a packaged name.")
    ] = VOCABULARY,
    data_dir: DataDir = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State how often images' first terms are words of their captions, or the words of their classes.

    Captions are those of stored impacts (--shards), classes those of images (--images), which are encoded.

    Example: python -m eval.analyses.interpretability --shards impacts/demo
    """
    check_format(output_format)
    if shards and not images:
        named = named_in(shards, data_dir)
        sys.stdout.write(render(Table.of_fields(named, NAMED_WORDS), named, output_format))
    elif images and not shards:
        rows = class_words(images, encoder, classes, vocabulary, data_dir)
        sys.stdout.write(render(Table.of_fields(rows, CLASS_WORDS), rows, output_format))
    else:
        raise UsageError("give --shards (words of captions) or --images (words of classes)")


# Terms that are read of each image.
FIRST = 10

_LETTERS = re.compile(r"[^\W\d_]+")

Words = frozenset[str]


class NamedWords(NamedTuple):
    """One ranking over images: the share with a named term among the first 1, 5 and 10, and how many of 10 are named.

    words_in_10  the mean over images
    """

    ranking: str
    images: int
    top_1: float
    top_5: float
    top_10: float
    words_in_10: float


def words_of(text: str) -> Words:
    """The words of a caption without function words."""
    return frozenset(_LETTERS.findall(text.lower())) - function_words()


def caption_words(dataset: Dataset) -> dict[str, Words]:
    """Image id -> the words of its captions, which are the topics that it is relevant to."""
    if dataset.direction != "text-to-image":
        raise UsageError(f"{dataset.name} is {dataset.direction}; expected images that captions describe")
    of_topic = {topic.query_id: words_of(topic.text or "") for topic in dataset.topics()}
    words_by_image: dict[str, set[str]] = defaultdict(set)
    for qrel in dataset.qrels():
        if qrel.relevance > 0:
            words_by_image[qrel.doc_id] |= of_topic.get(qrel.query_id, frozenset())
    return {doc_id: frozenset(words) for doc_id, words in words_by_image.items()}


def first_terms(vector: Mapping[str, int]) -> list[str]:
    """The first terms of a document in lower case, largest impact first."""
    return [term.lower() for term, _ in nsmallest(FIRST, vector.items(), key=lambda item: (-item[1], item[0]))]


def named_words(ranking: str, terms: Iterable[Sequence[str]], captions: Sequence[Words]) -> NamedWords:
    """How many terms are named, of one ranking; `terms` has each image's, in the order of the captions' words."""
    named = [[term in words for term in first] for first, words in zip(terms, captions, strict=True)]
    top_1, top_5, top_10 = (fmean(any(flags[:depth]) for flags in named) for depth in (1, 5, FIRST))
    return NamedWords(ranking, len(named), top_1, top_5, top_10, fmean(map(sum, named)))


def frequent_words(captions: Iterable[Words]) -> list[str]:
    """The words that captions of the most images have, of equal ones the first in alphabetical order."""
    counts = Counter(word for words in captions for word in words)
    return nsmallest(FIRST, counts, key=lambda word: (-counts[word], word))


def compared(name: str, documents: Iterable[ImpactDocument], captions: Mapping[str, Words]) -> list[NamedWords]:
    """The model's row, then those of the other rankings; images without captions are left out."""
    terms, words, without = [], [], 0
    for document in documents:
        if document.doc_id in captions:
            terms.append(first_terms(document.vector))
            words.append(captions[document.doc_id])
        else:
            without += 1
    if len(words) < 2:
        raise DataError(f"{len(words)} of {len(words) + without} images have captions; expected at least 2")
    if without:
        log.warning("%d images without captions are left out", without)
    return [
        named_words(name, terms, words),
        named_words("most frequent", [frequent_words(words)] * len(words), words),
        named_words("another image", [*terms[1:], terms[0]], words),
    ]


def named_in(shards: Path, data_dir: str | None = None) -> list[NamedWords]:
    """The rows of shards of impacts, whose manifest names the captions' dataset."""
    from lexvl_anserini.data.dataset import dataset_of
    from lexvl_anserini.shards.reading import read_impacts, read_vocabulary

    manifest: Manifest = read_manifest(shards)
    expect_lexical(shards, manifest.kind, "only the dimensions of impacts are words")
    captions = caption_words(dataset_of(manifest.corpus.ref.at(data_dir)))
    return compared(manifest.encoder.name, read_impacts(shards, manifest, read_vocabulary(shards, manifest)), captions)


if __name__ == "__main__":
    run(command)
