"""The completeness probe: whether an image is more similar to a complete sentence than to a partial one (FDT, 4.4).

Vectors of texts have unit length here, so that a longer sentence does not win by its norm; equal similarities do not
count. A second row compares each pair with another image: it says how often the complete sentence wins by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lexvl_anserini.encoders.encoder import Encoder, encode_inputs
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.progress import Progress, silent

from .classification import Vectors
from .sentence_pairs import SentencePair

# Images whose vectors, and those of their sentences, are in memory together.
IMAGES_AT_ONCE = 256


class CompletenessShare(NamedTuple):
    """The share of pairs whose complete sentence is more similar to the image, by a model or by the control."""

    ranking: str
    dataset: str
    images: int
    pairs: int
    complete_first: float


def row_products(left: Vectors, right: Vectors) -> np.ndarray:
    """The inner products of the rows of two matrices, [n]."""
    if isinstance(left, np.ndarray):
        return np.einsum("nd,nd->n", left, right)
    return np.asarray(left.multiply(right).sum(axis=1)).ravel()


def completeness(
    model: Encoder, dataset: str, pairs: Sequence[SentencePair], batch_size: int = 32, progress: Progress = silent
) -> list[CompletenessShare]:
    """The rows of a model: each pair with its own image, and with the image before it.

    Args:
        model: its queries are texts, its documents images.
        dataset: the name of the pairs.
        pairs: of at least two images.
        batch_size: items per forward pass.
        progress: called with the number of sentences or images just encoded.

    Raises:
        DataError: fewer than two images, or an image that cannot be read.
    """
    from scipy import sparse
    from sklearn.preprocessing import normalize

    about: dict[str, list[SentencePair]] = defaultdict(list)
    for pair in pairs:
        about[pair.image].append(pair)
    images = list(about)
    if len(images) < 2:
        raise DataError(f"{dataset}: pairs of {len(images)} images, expected at least 2")
    own = other = 0
    before = encode_inputs(model.document, images[-1:], batch_size)  # the image before the first one is the last
    for start in range(0, len(images), IMAGES_AT_ONCE):
        shown = images[start : start + IMAGES_AT_ONCE]
        piece = [(place, pair) for place, image in enumerate(shown) for pair in about[image]]
        at = [place for place, _ in piece]
        texts = [pair.complete for _, pair in piece] + [pair.partial for _, pair in piece]
        sentences = normalize(encode_inputs(model.query, texts, batch_size, progress))
        gained = sentences[: len(piece)] - sentences[len(piece) :]
        vectors = encode_inputs(model.document, shown, batch_size, progress)
        rows = [before, vectors[:-1]]
        previous = sparse.vstack(rows, format="csr") if sparse.issparse(vectors) else np.concatenate(rows)
        own += int((row_products(gained, vectors[at]) > 0).sum())
        other += int((row_products(gained, previous[at]) > 0).sum())
        before = vectors[-1:]
    return [
        CompletenessShare(ranking, dataset, len(images), len(pairs), wins / len(pairs))
        for ranking, wins in ((model.name, own), ("another image", other))
    ]
