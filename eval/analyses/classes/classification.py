"""Zero-shot classification: the rank of an image's class by the model's own similarity to prompts with class names.

Every prompt of a class is encoded, divided by its norm, averaged with the others, and divided by the norm of the mean
(CLIP, DeCLIP, FDT section 4.1, STAIR section 4.4). The score of a class is the inner product with the image. A class
that shares no term with a lexical image is no answer, as it would not be a hit of an inverted index. Of equal scores
the first class comes first.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from lexvl_anserini.encoders.encoder import Encoder, Tower, as_dense, as_lexical, encode_inputs
from lexvl_anserini.ground.errors import FAIL, DataError, OnError
from lexvl_anserini.ground.progress import Progress, silent

if TYPE_CHECKING:
    from scipy import sparse

    from .class_sets import LabelledImages

log = logging.getLogger(__name__)

# Rows of a lexical tower, or of a dense one.
Vectors: TypeAlias = "sparse.csr_matrix | np.ndarray"

# Classes whose prompts, and images whose scores, are in memory together.
CLASSES_AT_ONCE, IMAGES_AT_ONCE = 64, 1024

CUTS = (1, 5)

# The rank of what is no answer, which no cut reaches.
NO_ANSWER = np.iinfo(np.int64).max

# Images that cannot be read, and classes without words, in a line of the log.
NAMED, CLASSES_NAMED = 3, 5


class ClassAccuracy(NamedTuple):
    """Shares of images whose class is first, or among the first five; `mean_over` classes is that of their shares."""

    system: str
    dataset: str
    images: int
    classes: int
    mean_over: str
    top_1: float
    top_5: float


def encode_classes(
    tower: Tower, prompts: Sequence[Sequence[str]], batch_size: int = 32, progress: Progress = silent
) -> Vectors:
    """One unit vector per class, from its prompts: CSR [C, V] of a lexical tower, float32 [C, D] of a dense one."""
    from scipy import sparse
    from sklearn.preprocessing import normalize

    means = []
    for start in range(0, len(prompts), CLASSES_AT_ONCE):
        own = prompts[start : start + CLASSES_AT_ONCE]
        vectors = normalize(encode_inputs(tower, [text for texts in own for text in texts], batch_size, progress))
        of_class = np.repeat(np.arange(len(own)), [len(texts) for texts in own])
        member = sparse.csr_matrix((np.ones(len(of_class), np.float32), (of_class, np.arange(len(of_class)))))
        means.append(normalize(member @ vectors))
    return sparse.vstack(means, format="csr") if sparse.issparse(means[0]) else np.concatenate(means)


def rank_classes(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The rank, from 1, of each row's own column, int64 [n]; of equal scores the first column comes first."""
    own = scores[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(scores.shape[1]) < labels[:, None]
    ranks = 1 + ((scores > own) | ((scores == own) & earlier)).sum(axis=1)
    return np.where(np.isneginf(own[:, 0]), NO_ANSWER, ranks)


def compute_similarities(images: Vectors, classes: Vectors) -> np.ndarray:
    """Inner products, [n, C]; of lexical vectors minus infinity where they share no term."""
    products = images @ classes.T
    if isinstance(products, np.ndarray):
        return products
    dense = products.toarray()
    return np.where(dense > 0, dense, -np.inf)


def encode_pieces(
    model: Encoder, images: Sequence[Any], batch_size: int, progress: Progress = silent, on_error: OnError = FAIL
) -> Iterator[tuple[np.ndarray, Vectors]]:
    """Positions of images, int64 [n], with their vectors; skipped images are in no piece, and the log names some."""
    for start in range(0, len(images), IMAGES_AT_ONCE):
        piece = images[start : start + IMAGES_AT_ONCE]
        own = on_error.fresh()
        vectors = encode_inputs(model.document, piece, batch_size, progress, own)
        on_error.skipped.extend(skipped._replace(position=start + skipped.position) for skipped in own.skipped)
        readable = np.setdiff1d(np.arange(len(piece)), [skipped.position for skipped in own.skipped])
        yield start + readable, vectors[readable]
    if on_error.skipped:
        reasons = "; ".join(skipped.reason for skipped in on_error.skipped[:NAMED])
        log.warning("%d of %d images cannot be read and do not count: %s", len(on_error.skipped), len(images), reasons)


def rank_images(
    model: Encoder,
    labelled: LabelledImages,
    batch_size: int = 32,
    progress: Progress = silent,
    on_error: OnError = FAIL,
) -> np.ndarray:
    """The rank, from 1, of each image's class among all classes, int64 [n]; 0 for skipped images."""
    classes = encode_classes(model.query, labelled.classes.prompts(), batch_size, progress)
    ranks = np.zeros(len(labelled.images), dtype=np.int64)
    for positions, vectors in encode_pieces(model, labelled.images, batch_size, progress, on_error):
        ranks[positions] = rank_classes(compute_similarities(vectors, classes), labelled.labels[positions])
    return ranks


def measure_accuracies(system: str, labelled: LabelledImages, ranks: np.ndarray) -> list[ClassAccuracy]:
    """The shares over images and over classes, first the mean that papers print; skipped images (0) do not count."""
    counted = ranks > 0
    if not counted.any():
        raise DataError(f"{labelled.name}: none of its {len(ranks):,} images can be read")
    labels = labelled.labels[counted]
    hits = np.stack([ranks[counted] <= k for k in CUTS]).astype(float)  # [cuts, n]
    sizes = np.bincount(labels)
    of_classes = np.stack([np.bincount(labels, weights=row)[sizes > 0] / sizes[sizes > 0] for row in hits])
    rows = [
        ClassAccuracy(system, labelled.name, len(labels), len(labelled.classes), over, *map(float, shares.mean(axis=1)))
        for over, shares in (("images", hits), ("classes", of_classes))
    ]
    return rows[::-1] if labelled.per_class else rows


WORD_CUTS = (1, 10, 50, 100)

# Vocabulary of a dense encoder where none is named: BERT's, as in the paper.
VOCABULARY = "minilm"

# Images whose weights of all words are in memory together.
WEIGHTED_AT_ONCE = 256


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
    """A vocabulary over images: their weights [n, V] (minus infinity is no answer), and dimensions of texts' tokens."""

    weights: Callable[[Sequence[Any]], np.ndarray]
    words: Callable[[Sequence[str]], list[list[int]]]
    terms: Sequence[str] = ()


def rank_words(weights: np.ndarray, tokens: Sequence[Sequence[int]]) -> np.ndarray:
    """The rank, from 1, of each image's label among the whole vocabulary, int64 [n].

    A label of several tokens has the largest of their weights [n, V]; one without tokens, or of minus infinity, is no
    answer. Terms of equal weight do not come before it.
    """
    own = np.array([row[list(dims)].max(initial=-np.inf) for row, dims in zip(weights, tokens, strict=True)])
    return np.where(np.isneginf(own), NO_ANSWER, 1 + (weights > own[:, None]).sum(axis=1))


def build_lexical_space(model: Encoder, batch_size: int) -> WordSpace:
    """The terms of a lexical encoder."""
    from lexvl_anserini.encoders.parts.images.grounding import own_terms

    tower = as_lexical(model.document)

    def weights(images: Sequence[Any]) -> np.ndarray:
        values = tower.dense_weights(images, batch_size)
        return np.where(values > 0, values, -np.inf)

    return WordSpace(weights, partial(own_terms, model), tower.vocabulary.terms)


def build_dense_space(model: Encoder, vocabulary: str, batch_size: int, progress: Progress = silent) -> WordSpace:
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


def build_word_space(model: Encoder, vocabulary: str, batch_size: int, progress: Progress = silent) -> WordSpace:
    """The terms of a lexical encoder, or the words of a vocabulary by a dense one."""
    if model.kind == "impact":
        return build_lexical_space(model, batch_size)
    return build_dense_space(model, vocabulary, batch_size, progress)


def measure_class_words(
    name: str, space: WordSpace, labelled: LabelledImages, progress: Progress = silent
) -> list[ClassWordShares]:
    """The rows of a model and of its mean over all images."""
    tokens = [sorted({dim for own in space.words(names) for dim in own}) for names in labelled.classes.names]
    if without := [names[0] for names, own in zip(labelled.classes.names, tokens, strict=True) if not own]:
        log.warning("%d classes have no word in the vocabulary: %s", len(without), ", ".join(without[:CLASSES_NAMED]))
    own, ranks, total = [tokens[label] for label in labelled.labels], [], np.zeros(1)
    for start in range(0, len(labelled.images), WEIGHTED_AT_ONCE):
        weights = space.weights(labelled.images[start : start + WEIGHTED_AT_ONCE])
        ranks.append(rank_words(weights, own[start : start + WEIGHTED_AT_ONCE]))
        total = total + np.where(np.isneginf(weights), 0, weights).sum(axis=0, dtype=np.float64)
        progress(len(weights))
    of_classes = rank_words(np.tile(np.where(total == 0, -np.inf, total), (len(tokens), 1)), tokens)
    return [
        ClassWordShares(ranking, labelled.name, len(own), len(tokens), *(float((of <= k).mean()) for k in WORD_CUTS))
        for ranking, of in ((name, np.concatenate(ranks)), ("mean of the images", of_classes[labelled.labels]))
    ]


# The linear probe.
ITERATIONS = 1000

# Exponents of 10: the range of lambda, the first steps, and the finest.
LEAST, MOST, FIRST_STEP, LAST_STEP = -6.0, 6.0, 2.0, 0.125

# One of so many training images of a class is held out, the last of them.
HELD_OUT_EVERY = 5


class ProbeAccuracy(NamedTuple):
    """The accuracy of a classifier, how many images it was trained on, and with which strength of its penalty."""

    system: str
    dataset: str
    trained_on: int
    strength: float
    images: int
    classes: int
    mean_over: str
    top_1: float
    top_5: float


def find_exponent(score: Callable[[float], float]) -> float:
    """The exponent of 10 with the best score, searched by halved steps; of equal scores the largest exponent.

    Each exponent is scored once, at most 15 are.
    """
    scores = {float(exponent): score(exponent) for exponent in np.arange(LEAST, MOST + 1, FIRST_STEP)}
    step = FIRST_STEP
    while True:
        best = max(scores, key=lambda exponent: (scores[exponent], exponent))
        if step <= LAST_STEP:
            return best
        step /= 2
        for exponent in (best - step, best + step):
            if LEAST <= exponent <= MOST and exponent not in scores:
                scores[exponent] = score(exponent)


def choose_held_out(labels: np.ndarray) -> np.ndarray:
    """Which training images choose lambda, bool [n]: of each class every fifth, in their order."""
    classes = np.unique(labels)
    if len(classes) < 2:
        raise DataError(f"training images of {len(classes)} classes, expected at least 2")
    chosen = np.zeros(len(labels), dtype=bool)
    for number in classes:
        own = np.flatnonzero(labels == number)
        chosen[own[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]] = True
    if not chosen.any():
        raise DataError(f"no class has {HELD_OUT_EVERY} training images, of which one chooses the penalty")
    return chosen


def fit_classifier(vectors: Vectors, labels: np.ndarray, exponent: float) -> Any:
    """A classifier with the penalty 10^exponent."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the log says it of the classifier that is measured
        return LogisticRegression(C=10**-exponent, max_iter=ITERATIONS).fit(vectors, labels)


def score_classes(classifier: Any, vectors: Vectors, classes: int) -> np.ndarray:
    """Scores [n, classes]; minus infinity for a class that the classifier has not seen."""
    values = classifier.decision_function(vectors)
    scores = np.full((vectors.shape[0], classes), -np.inf)
    scores[:, classifier.classes_] = values if values.ndim == 2 else np.stack([-values, values], axis=1)
    return scores


def encode_images(
    model: Encoder, labelled: LabelledImages, batch_size: int, progress: Progress = silent, on_error: OnError = FAIL
) -> tuple[Vectors, LabelledImages]:
    """The vectors of images, and the images without those that were skipped."""
    from scipy import sparse

    pieces = list(encode_pieces(model, labelled.images, batch_size, progress, on_error))
    places = np.concatenate([positions for positions, _ in pieces])
    if not len(places):
        raise DataError(f"{labelled.name}: none of its {len(labelled.images):,} images can be read")
    rows = [vectors for _, vectors in pieces]
    stacked = sparse.vstack(rows, format="csr") if sparse.issparse(rows[0]) else np.concatenate(rows)
    return stacked, labelled._replace(images=[labelled.images[i] for i in places], labels=labelled.labels[places])


def run_linear_probe(
    model: Encoder,
    train: LabelledImages,
    test: LabelledImages,
    batch_size: int = 32,
    progress: Progress = silent,
    on_error: OnError = FAIL,
) -> list[ProbeAccuracy]:
    """The accuracies of a classifier over images and over classes, first the mean that papers print."""
    vectors, train = encode_images(model, train, batch_size, progress, on_error.fresh())
    choosing = choose_held_out(train.labels)
    # Before the search, so that an image that cannot be read ends the command early.
    test_vectors, test = encode_images(model, test, batch_size, progress, on_error.fresh())

    def score(exponent: float) -> float:
        classifier = fit_classifier(vectors[~choosing], train.labels[~choosing], exponent)
        share = float(classifier.score(vectors[choosing], train.labels[choosing]))
        log.debug("lambda 10^%g: %.4f of %d held-out images", exponent, share, choosing.sum())
        return share

    exponent = find_exponent(score)
    classifier = fit_classifier(vectors, train.labels, exponent)
    if classifier.n_iter_.max() >= ITERATIONS:
        log.warning("L-BFGS did not converge in %d iterations; CLIP's protocol stops there", ITERATIONS)
    ranks = rank_classes(score_classes(classifier, test_vectors, len(test.classes)), test.labels)
    trained_on, strength = len(train.labels), 10**exponent
    rows = measure_accuracies(model.name, test, ranks)
    return [ProbeAccuracy(row.system, row.dataset, trained_on, strength, *row[2:]) for row in rows]
