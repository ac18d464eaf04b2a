"""The objective of D2S and its schedules: distil dense scores into lexical ones (Nguyen et al., ECIR 2024).

Layout of a batch: row i of texts and row i of images are a pair.

    S = Z_i Z_t^T lexical, D = U_i U_t^T dense, both [images, texts]
    loss = 1/2 [CE(S, softmax_rows(D / t)) + CE(S^T, softmax_rows(D^T / t))]
    reg  = 1/2 [q_n L1(Z_t) + d_n L1(Z_i)],  q_n and d_n quadratic in the number n of steps done before
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from lexvl_anserini.training.objectives.contrastive import Dense, Encoded, present
from lexvl_anserini.training.objectives.regularisers import l1, ramp

# The authors' temperature of the teacher; the scores of the student are not divided.
TEMPERATURE = 0.001
# Share of all steps during which the regularisers and the learning rate grow.
WARM_UP = 0.2
# Share of the epochs after which every text is expanded.
EXPANDED_AFTER = 0.95


def soft_cross_entropy(scores: Tensor, teacher: Tensor) -> Tensor:
    """Mean over rows of the cross entropy between the teacher's distribution [N, M] and softmax_rows(scores)."""
    return cross_entropy(scores, teacher)


def d2s(encoded: Encoded, teacher_temperature: float = TEMPERATURE, published: bool = False) -> Tensor:
    """The mean of both directions of distillation; the teacher gets no gradient.

    Args:
        encoded: texts as queries, images as documents [N, V], with their dense vectors; where `expanded` is False,
            texts keep only their own tokens.
        teacher_temperature: divides the dense scores; the lexical ones are not divided.
        published: repeat the error of the published code, whose expanded texts are the images of the batch.

    Raises:
        ValueError: the batch has no dense vectors, or no tokens of texts where it needs them.
    """
    dense = dense_of(encoded)
    scores = encoded.document @ texts_of(encoded, published).T  # [images, texts]
    with torch.no_grad():
        teacher = dense.document @ dense.query.T / teacher_temperature
    there = soft_cross_entropy(scores, softmax(teacher, dim=1))
    return (there + soft_cross_entropy(scores.T, softmax(teacher.T, dim=1))) / 2


def texts_of(encoded: Encoded, published: bool = False) -> Tensor:
    """The lexical vectors of a batch's texts [N, V], masked or expanded."""
    if not encoded.expanded:
        return encoded.query * present(encoded.query_bag)
    return encoded.document if published else encoded.query


def dense_of(encoded: Encoded) -> Dense:
    """The dense vectors of a batch.

    Raises:
        ValueError: it has none.
    """
    if encoded.dense is None:
        raise ValueError("this objective needs the dense vectors of both sides")
    return encoded.dense


def d2s_regulariser(sparse_texts: Tensor, sparse_images: Tensor, text_weight: float, image_weight: float) -> Tensor:
    """The L1 norms of both sides times their weights at this step (see `regulariser_weight`), halved."""
    return (text_weight * l1(sparse_texts) + image_weight * l1(sparse_images)) / 2


def regulariser_weight(weight: float, done: int, warm_up: int) -> float:
    """A regulariser's weight after `done` steps: quadratic up to `warm_up`, 0 in the very first step."""
    return weight * ramp(done, warm_up)


def warm_up_steps(steps: int) -> int:
    """The number of warm-up steps; at least one."""
    return max(1, int(WARM_UP * steps))


def mask_probability(epoch: int, epochs: int) -> float:
    """Probabilistic expansion control: the probability that the texts of a batch are masked, by epoch from 1.

    It falls linearly from 1 in the first epoch to 0 at 95 percent of the epochs.
    """
    return max(0.0, 1.0 - (epoch - 1) / (EXPANDED_AFTER * epochs))


def draw_masked(epoch: int, epochs: int, generator: torch.Generator | None = None) -> bool:
    """Whether the texts of one batch are masked: one draw for the whole batch. Images are never masked."""
    return bool(torch.rand((), generator=generator) < mask_probability(epoch, epochs))
