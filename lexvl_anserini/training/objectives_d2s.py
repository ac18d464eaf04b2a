"""D2S' objective and its schedules: distil dense scores into lexical ones (Nguyen et al., ECIR 2024).

Layout of a batch: row i of texts and row i of images belong together.

    S = Z_i Z_t^T lexical, D = U_i U_t^T dense, both [images, texts]
    loss = 1/2 [CE(S, softmax_rows(D / t)) + CE(S^T, softmax_rows(D^T / t))]
    reg  = 1/2 [q_n L1(Z_t) + d_n L1(Z_i)],  q_n and d_n quadratic in the steps done before
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from lexvl_anserini.training.regularisers import l1, ramp

# The authors' temperature of the teacher; the students' scores are not divided.
TEMPERATURE = 0.001
# Share of all steps during which regularisers grow (and the learning rate does).
WARM_UP = 0.2
# Share of the epochs after which texts are always expanded.
EXPANDED_AFTER = 0.95


def soft_cross_entropy(scores: Tensor, teacher: Tensor) -> Tensor:
    """Mean over rows of the cross entropy between the teacher's distribution [N, M] and softmax_rows(scores)."""
    return cross_entropy(scores, teacher)


def d2s(
    sparse_texts: Tensor,
    sparse_images: Tensor,
    dense_texts: Tensor,
    dense_images: Tensor,
    temperature: float | Tensor = TEMPERATURE,
) -> Tensor:
    """Both directions of distillation, halved; the teacher gets no gradient.

    Args:
        sparse_texts: float32 [N, V], masked or expanded.
        sparse_images: float32 [N, V].
        dense_texts: float32 [N, D].
        dense_images: float32 [N, D].
        temperature: of the teacher.
    """
    scores = sparse_images @ sparse_texts.T  # [images, texts]
    with torch.no_grad():
        teacher = dense_images @ dense_texts.T / temperature
    there = soft_cross_entropy(scores, softmax(teacher, dim=1))
    return (there + soft_cross_entropy(scores.T, softmax(teacher.T, dim=1))) / 2


def d2s_regulariser(sparse_texts: Tensor, sparse_images: Tensor, text_weight: float, image_weight: float) -> Tensor:
    """The L1 norms of both sides with their weights of this step (see `regulariser_weight`), halved."""
    return (text_weight * l1(sparse_texts) + image_weight * l1(sparse_images)) / 2


def regulariser_weight(weight: float, done: int, warm_up: int) -> float:
    """A regulariser's weight after `done` steps: quadratic up to `warm_up`, 0 in the very first step."""
    return weight * ramp(done, warm_up)


def warm_up_steps(steps: int) -> int:
    """How many of all steps warm up; at least one."""
    return max(1, int(WARM_UP * steps))


def mask_probability(epoch: int, epochs: int) -> float:
    """Probabilistic expansion control: how often a batch's texts are masked in an epoch, counted from 1.

    Falls linearly from 1 in the first epoch to 0 at 95 percent of them.
    """
    return max(0.0, 1.0 - (epoch - 1) / (EXPANDED_AFTER * epochs))


def draw_masked(epoch: int, epochs: int, generator: torch.Generator | None = None) -> bool:
    """Whether one batch's texts are masked: one draw for all of them. Images never are."""
    return bool(torch.rand((), generator=generator) < mask_probability(epoch, epochs))
