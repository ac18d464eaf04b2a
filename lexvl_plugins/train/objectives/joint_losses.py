"""The joint sparse-dense objective: both scores learn from labels and from their weighted sum (arXiv 2508.16707).

Layout of a batch: row i of texts and row i of images are a pair. Scores are [images, texts].

    s_d = D / t, s_l = Z_i Z_t^T, s = w1 s_d + w2 s_l, P = softmax_rows(s)
    L   = (a NCE(s_d) + b NCE(s_l) + c NCE(s)) / 2
    L'  = (a/2 [H(P, s_d) + H(P, s_d^T)] + b/2 [H(P, s_l) + H(P, s_l^T)]) / 2
    loss = (L + L') / 2, plus D2S' regulariser

This is the authors' code, whose hyper-parameters are published: c is 1, L' is weighted by a and b, and the whole is
halved. Their teacher of the transposed scores is P itself, although its rows are images and not texts; `transposed`
uses P of s^T instead. Of their paper only summaries are at hand; by these (`paper`) it is

    loss = a NCE(s_d) + b NCE(s_l) + c NCE(s) + (D(s_d) + D(s_l)) / 2,  D(x) = [H(P, x) + H(P', x^T)] / 2

with P' of s^T. The rows of the paper's ablation are options: `distillation` and `inter`.

The objective of D2S and its schedules: distil dense scores into lexical ones (Nguyen et al., ECIR 2024).

Layout of a batch: row i of texts and row i of images are a pair.

    S = Z_i Z_t^T lexical, D = U_i U_t^T dense, both [images, texts]
    loss = 1/2 [CE(S, softmax_rows(D / t)) + CE(S^T, softmax_rows(D^T / t))]
    reg  = 1/2 [q_n L1(Z_t) + d_n L1(Z_i)],  q_n and d_n quadratic in the number n of steps done before
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from lexvl_plugins.train.objectives.contrastive import Dense, Encoded, Temperature, present

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


# What a teacher teaches.
Distillation = Literal["both", "one-way", "none"]
# The published values, by backbone and dataset.
MixName = Literal["albef-coco", "albef-flickr", "blip-coco", "blip-flickr"]
MIXES: Mapping[str, Mix] = {
    "albef-coco": Mix(0.2, 0.5, 0.9, 0.3),
    "albef-flickr": Mix(0.1, 0.2, 0.3, 0.3),
    "blip-coco": Mix(0.1, 0.1, 0.9, 0.3),
    "blip-flickr": Mix(0.1, 0.2, 0.7, 0.7),
}


class JointLoss(NamedTuple):
    """The two halves of the loss: from labels, and from a teacher's scores."""

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


def soft_nce(scores: Tensor, teacher: Tensor, transposed: Tensor) -> Tensor:
    """The mean of both directions' cross entropy; `teacher` for the scores' rows, `transposed` for their columns."""
    return (cross_entropy(scores, teacher) + cross_entropy(scores.T, transposed)) / 2


def clamped(temperature: Temperature) -> Tensor:
    """The temperature within its limits; outside them it gets no gradient."""
    return torch.as_tensor(temperature).clamp(LOWEST, HIGHEST)


def mix_of(name: MixName | Sequence[float]) -> Mix:
    """The weights of a published configuration, or of four numbers: w1, w2, lam1, lam2."""
    if isinstance(name, str) and name in MIXES:
        return MIXES[name]
    if isinstance(name, str) or len(name) != len(Mix._fields):
        raise ValueError(f"mix {name!r}, expected one of {', '.join(MIXES)}, or four numbers w1, w2, lam1, lam2")
    return Mix(*name)


def joint(
    encoded: Encoded,
    temperature: Temperature = 0.07,
    mix: MixName | Sequence[float] = "blip-coco",
    transposed: bool = False,
    stop_gradient: bool = False,
    inter: float = 1.0,
    distillation: Distillation = "both",
    paper: bool = False,
) -> Tensor:
    """The mean of both halves of the loss (see `halves`), in the paper's form their sum; the temperature has limits."""
    loss = halves(encoded, clamped(temperature), mix_of(mix), transposed, stop_gradient, inter, distillation, paper)
    return loss.labelled + loss.distilled if paper else loss.total


def halves(
    encoded: Encoded,
    temperature: Temperature,
    mix: Mix,
    transposed: bool = False,
    stop_gradient: bool = False,
    inter: float = 1.0,
    distillation: Distillation = "both",
    paper: bool = False,
) -> JointLoss:
    """Both halves of the loss.

    Args:
        encoded: texts as queries, images as documents [N, V], with their dense vectors of unit length; where `expanded`
            is False, texts keep only their own tokens.
        temperature: of the dense scores only.
        mix: weights of scores and losses.
        transposed: the teacher of the direction of the texts is softmax_rows(s^T); off as published.
        stop_gradient: the teacher gets no gradient; off as published.
        inter: c, the weight of the labels' loss of the mixed scores; 0 omits it.
        distillation: both, the mixed scores teach dense and lexical ones; one-way, the dense scores teach the lexical
            ones and learn nothing from them; none, where `inter: 0` leaves the contrastive losses of both alone.
        paper: the paper's form (see above) instead of the code's.
    """
    if distillation == "none" and (transposed or stop_gradient):
        raise ValueError("distillation none has no teacher; leave transposed and stop_gradient out")
    vectors = dense_of(encoded)
    dense = vectors.document @ vectors.query.T / temperature  # [images, texts]
    lexical = encoded.document @ texts_of(encoded).T
    mixed = mix.w1 * dense + mix.w2 * lexical
    labelled = mix.lam1 * nce(dense) + mix.lam2 * nce(lexical) + inter * nce(mixed)
    one_way = distillation == "one-way"
    taught = dense if one_way else mixed
    taught = taught.detach() if stop_gradient or one_way else taught
    teacher = softmax(taught, dim=1)
    other = softmax(taught.T, dim=1) if transposed or paper else teacher
    distilled = torch.zeros_like(labelled)
    for student, weight in ((dense, mix.lam1), (lexical, mix.lam2)):
        if distillation == "both" or (one_way and student is lexical):
            distilled = distilled + (1 if paper else weight) * soft_nce(student, teacher, other)
    return JointLoss(labelled if paper else labelled / HEADS, distilled / HEADS)


# The authors' temperature of the teacher; the scores of the student are not divided.
TEMPERATURE = 0.001
# Share of the epochs after which every text is expanded.
EXPANDED_AFTER = 0.95


def d2s(encoded: Encoded, teacher_temperature: float = TEMPERATURE, published: bool = False) -> Tensor:
    """The mean of both directions of distillation; the teacher gets no gradient.

    Args:
        encoded: texts as queries, images as documents [N, V], with their dense vectors; where `expanded` is False,
            texts keep only their own tokens.
        teacher_temperature: divides the dense scores; the lexical ones are not divided.
        published: repeat the error of the published code, whose expanded texts are the images of the batch.
    """
    dense = dense_of(encoded)
    scores = encoded.document @ texts_of(encoded, published).T  # [images, texts]
    with torch.no_grad():
        teacher = dense.document @ dense.query.T / teacher_temperature
    there = cross_entropy(scores, softmax(teacher, dim=1))
    return (there + cross_entropy(scores.T, softmax(teacher.T, dim=1))) / 2


def texts_of(encoded: Encoded, published: bool = False) -> Tensor:
    """The lexical vectors of a batch's texts [N, V], masked or expanded."""
    if not encoded.expanded:
        return encoded.query * present(encoded.query_bag)
    return encoded.document if published else encoded.query


def dense_of(encoded: Encoded) -> Dense:
    """The dense vectors of a batch."""
    if encoded.dense is None:
        raise ValueError("this objective needs the dense vectors of both sides")
    return encoded.dense


def mask_probability(epoch: int, epochs: int) -> float:
    """Probabilistic expansion control: the probability that the texts of a batch are masked, by epoch from 1.

    It falls linearly from 1 in the first epoch to 0 at 95 percent of the epochs.
    """
    return max(0.0, 1.0 - (epoch - 1) / (EXPANDED_AFTER * epochs))
