"""Zero-shot classification: the rank of an image's class by the model's own similarity to prompts with class names.

Every prompt of a class is encoded, divided by its norm, averaged with the others, and divided by the norm of the mean
(CLIP, DeCLIP, FDT section 4.1, STAIR section 4.4). The score of a class is the inner product with the image. A class
that shares no term with a lexical image is no answer, as it would not be a hit of an inverted index. Of equal scores
the first class comes first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.encoder import Encoder, Tower, encode_inputs
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.progress import Progress, silent

if TYPE_CHECKING:
    from scipy import sparse

    from .labelled import LabelledImages

log = logging.getLogger(__name__)

# Rows of a lexical tower, or of a dense one.
Vectors: TypeAlias = "sparse.csr_matrix | np.ndarray"

# Classes whose prompts, and images whose scores, are in memory together.
CLASSES_AT_ONCE, IMAGES_AT_ONCE = 64, 1024

CUTS = (1, 5)

# The rank of what is no answer, which no cut reaches.
NO_ANSWER = np.iinfo(np.int64).max

# Images that cannot be read, in a line of the log.
NAMED = 3


class ClassAccuracy(NamedTuple):
    """Shares of images whose class is first, or among the first five.

    mean_over  images, or classes: the mean of the classes' own shares
    """

    system: str
    dataset: str
    images: int
    classes: int
    mean_over: str
    top_1: float
    top_5: float


def class_vectors(
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


def ranks_of(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The rank, from 1, of each row's own column, int64 [n]; of equal scores the first column comes first.

    Args:
        scores: [n, C]; minus infinity is no answer.
        labels: int64 [n].
    """
    own = scores[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(scores.shape[1]) < labels[:, None]
    ranks = 1 + ((scores > own) | ((scores == own) & earlier)).sum(axis=1)
    return np.where(np.isneginf(own[:, 0]), NO_ANSWER, ranks)


def similarities(images: Vectors, classes: Vectors) -> np.ndarray:
    """Inner products, [n, C]; of lexical vectors minus infinity where they share no term."""
    products = images @ classes.T
    if isinstance(products, np.ndarray):
        return products
    dense = products.toarray()
    return np.where(dense > 0, dense, -np.inf)


def in_pieces(
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


def class_ranks(
    model: Encoder,
    labelled: LabelledImages,
    batch_size: int = 32,
    progress: Progress = silent,
    on_error: OnError = FAIL,
) -> np.ndarray:
    """The rank, from 1, of each image's class among all classes, int64 [n]; 0 for skipped images."""
    classes = class_vectors(model.query, labelled.classes.prompts(), batch_size, progress)
    ranks = np.zeros(len(labelled.images), dtype=np.int64)
    for positions, vectors in in_pieces(model, labelled.images, batch_size, progress, on_error):
        ranks[positions] = ranks_of(similarities(vectors, classes), labelled.labels[positions])
    return ranks


def accuracies(system: str, labelled: LabelledImages, ranks: np.ndarray) -> list[ClassAccuracy]:
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
