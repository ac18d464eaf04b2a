"""The joint sparse-dense objective: both scores learn from labels and from their weighted sum (arXiv 2508.16707).

Layout of a batch: row i of texts and row i of images are a pair. Scores are [images, texts].

    s_d = D / t, s_l = Z_i Z_t^T, s = w1 s_d + w2 s_l, P = softmax_rows(s)
    L   = (a NCE(s_d) + b NCE(s_l) + NCE(s)) / 2
    L'  = (a/2 [H(P, s_d) + H(P, s_d^T)] + b/2 [H(P, s_l) + H(P, s_l^T)]) / 2
    loss = (L + L') / 2, plus D2S' regulariser

This is the authors' code, not their paper: the third weight is 1, L' is weighted by a and b, and the whole is halved.
Their teacher of the transposed scores is P itself, although its rows are images and not texts; `transposed` uses P of
s^T instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from lexvl_anserini.training.objectives.contrastive import Encoded, Temperature
from lexvl_anserini.training.objectives.d2s_losses import dense_of, soft_cross_entropy

# Limits of the temperature in each forward pass.
LOWEST, HIGHEST = 0.001, 0.5
# Two heads train together: the dense and the lexical one.
HEADS = 2


class Mix(NamedTuple):
    """The weights of scores (w1 dense, w2 lexical) and of losses (lam1 dense, lam2 lexical)."""

    w1: float
    w2: float
    lam1: float
    lam2: float


# The published values, by backbone and dataset.
MIXES = {
    "albef-coco": Mix(0.2, 0.5, 0.9, 0.3),
    "albef-flickr": Mix(0.1, 0.2, 0.3, 0.3),
    "blip-coco": Mix(0.1, 0.1, 0.9, 0.3),
    "blip-flickr": Mix(0.1, 0.2, 0.7, 0.7),
}


class JointLoss(NamedTuple):
    """The two halves of the loss: from labels, and from the mixed scores."""

    labelled: Tensor
    distilled: Tensor

    @property
    def total(self) -> Tensor:
        """Their mean."""
        return (self.labelled + self.distilled) / 2


def nce(scores: Tensor) -> Tensor:
    """In-batch cross entropy with the diagonal as targets, the mean of both directions."""
    target = torch.arange(len(scores), device=scores.device)
    return (cross_entropy(scores, target) + cross_entropy(scores.T, target)) / 2


def distillation(scores: Tensor, teacher: Tensor, transposed: Tensor) -> Tensor:
    """The mean of both directions' cross entropy; `teacher` for the scores' rows, `transposed` for their columns."""
    return (soft_cross_entropy(scores, teacher) + soft_cross_entropy(scores.T, transposed)) / 2


def clamped(temperature: Temperature) -> Tensor:
    """The temperature within its limits; outside them it gets no gradient."""
    return torch.as_tensor(temperature).clamp(LOWEST, HIGHEST)


def mix_of(name: str | Sequence[float]) -> Mix:
    """The weights of a published configuration, or of four numbers: w1, w2, lam1, lam2.

    Raises:
        ValueError: another name, or not four numbers.
    """
    if isinstance(name, str) and name in MIXES:
        return MIXES[name]
    if isinstance(name, str) or len(name) != len(Mix._fields):
        raise ValueError(f"mix {name!r}, expected one of {', '.join(MIXES)}, or four numbers w1, w2, lam1, lam2")
    return Mix(*name)


def joint(
    encoded: Encoded,
    temperature: Temperature = 0.07,
    mix: str | Sequence[float] = "blip-coco",
    transposed: bool = False,
    stop_gradient: bool = False,
) -> Tensor:
    """The mean of both halves of the loss (see `halves`), with the temperature within its limits.

    Raises:
        ValueError: the batch has no dense vectors, or `mix` is none.
    """
    return halves(encoded, clamped(temperature), mix_of(mix), transposed, stop_gradient).total


def halves(
    encoded: Encoded, temperature: Temperature, mix: Mix, transposed: bool = False, stop_gradient: bool = False
) -> JointLoss:
    """Both halves of the loss.

    Args:
        encoded: texts as queries, images as documents [N, V], with their dense vectors of unit length.
        temperature: of the dense scores only.
        mix: weights of scores and losses.
        transposed: the teacher of the direction of the texts is softmax_rows(s^T); off as published.
        stop_gradient: the teacher gets no gradient; off as published.
    """
    vectors = dense_of(encoded)
    dense = vectors.document @ vectors.query.T / temperature  # [images, texts]
    lexical = encoded.document @ encoded.query.T
    mixed = mix.w1 * dense + mix.w2 * lexical
    taught = mixed.detach() if stop_gradient else mixed
    teacher = softmax(taught, dim=1)
    other = softmax(taught.T, dim=1) if transposed else teacher
    labelled = mix.lam1 * nce(dense) + mix.lam2 * nce(lexical) + nce(mixed)
    distilled = mix.lam1 * distillation(dense, teacher, other) + mix.lam2 * distillation(lexical, teacher, other)
    return JointLoss(labelled / HEADS, distilled / HEADS)
