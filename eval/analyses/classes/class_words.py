"""The rank of the word of an image's class among all words of a vocabulary (STAIR, section 5.1, tables 5 and 8).

A class of several WordPieces has the largest of their weights. Weights are those before the sparsifier; of a dense
encoder, the cosines of the image and of the words of a vocabulary, each encoded as a text. A class is no answer if its
words have weight 0, or are no terms at all. A second ranking, the same for every image, compares: the words by their
mean weight over all images, which knows the images but none by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexvl_anserini.encoders.encoder import Encoder, as_dense, as_lexical
from lexvl_anserini.ground.progress import Progress, silent

from .classification import NO_ANSWER

if TYPE_CHECKING:
    from .labelled import LabelledImages

log = logging.getLogger(__name__)

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
    terms    the V terms
    """

    weights: Callable[[Sequence[Any]], np.ndarray]
    words: Callable[[Sequence[str]], list[list[int]]]
    terms: Sequence[str] = ()


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

    return WordSpace(weights, partial(own_terms, model), tower.vocabulary.terms)


def dense_space(model: Encoder, vocabulary: str, batch_size: int, progress: Progress = silent) -> WordSpace:
    """The words of a tokenizer, encoded as texts by a dense encoder; a piece `##ing` is the text `ing`."""
    from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
    from lexvl_anserini.encoders.parts.tokens import encode_whole, find_first_word_id, load_tokenizer, make_columns_from

    tokenizer = load_tokenizer(find_checkpoint(vocabulary, weights=False).folder)
    columns = make_columns_from(tokenizer, find_first_word_id(tokenizer))
    texts = [term.removeprefix("##") for term in columns.vocabulary]
    vectors = as_dense(model.query).vectors(texts, batch_size, progress)

    def words(names: Sequence[str]) -> list[list[int]]:
        return [own.tolist() for own in columns.own([row.ids for row in encode_whole(tokenizer, names)])]

    def weights(images: Sequence[Any]) -> np.ndarray:
        return as_dense(model.document).vectors(images, batch_size) @ vectors.T

    return WordSpace(weights, words, tuple(columns.vocabulary))


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
