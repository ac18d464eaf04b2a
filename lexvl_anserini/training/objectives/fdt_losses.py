"""The objective of FDT and its schedules (Chen et al., CVPR 2023; code yuxiaochen1103/FDT, commit ccf6983).

Vectors are weights over the rows of a codebook C [16384, 512], which both modalities share and training changes; its
rows begin as N(0, 1). The objective sees features only: no term of it makes weights sparse, sparsemax does.

    f = w C of unit length, S = F_text F_image^T, loss = 1/2 [CE(scale S) + CE(scale S^T)], scale = min(e^s, 100)
"""

from __future__ import annotations

import torch
from torch import Tensor

from lexvl_anserini.encoders.parts.pooling import decayed
from lexvl_anserini.training.objectives.contrastive import Encoded, Temperature, contrastive

TERMS, WIDTH = 16_384, 512
# Added to the norms of features.
EPS = 1e-10
# The least temperature of a forward pass, a scale of 100. Beyond it, the temperature gets no gradient.
LEAST = 0.01
# The logarithm of the scale is put back into these limits before and after each step.
LOG_SCALE = (3.0, 6.0)


def fdt(encoded: Encoded, temperature: Temperature = 0.07) -> Tensor:
    """Symmetric InfoNCE of the cosines of features, the mean of the two directions.

    Args:
        encoded: weights [N, K] of both sides, with the codebook.
        temperature: 1 / scale.

    Raises:
        ValueError: the batch has no codebook.
    """
    if encoded.codebook is None:
        raise ValueError("fdt needs the codebook of its weights")
    query, document = (features(weights, encoded.codebook) for weights in (encoded.query, encoded.document))
    return contrastive(query, document, torch.as_tensor(temperature).clamp(min=LEAST)) / 2


def features(weights: Tensor, codebook: Tensor) -> Tensor:
    """The rows of the codebook [K, D], averaged by weights [N, K], of unit length: [N, D]."""
    sums = weights @ codebook
    return sums / (sums.norm(dim=1, keepdim=True) + EPS)


def new_codebook(generator: torch.Generator | None = None, terms: int = TERMS, width: int = WIDTH) -> Tensor:
    """A codebook float32 [terms, width], drawn from N(0, 1)."""
    return torch.randn(terms, width, generator=generator)


def limited(log_temperature: Tensor) -> Tensor:
    """The logarithm of the temperature within the limits of the scale, e^3 to e^6; a step of training ends with it."""
    low, high = LOG_SCALE
    return log_temperature.detach().clamp(-high, -low)


def relevance_temperature(
    done: float, first: float = 1000.0, decay: float = 1.0, every: int = 2700, least: float = 0.01, whole: bool = True
) -> float:
    """T, by which relevances are divided before sparsemax or softmax: max(first decay^(done / every), least).

    A high T spreads the weights over many terms. The published run on CC3M has decay 1; the default of the code is 0.3.

    Args:
        done: steps done.
        first: T of the first steps.
        decay: factor per `every` steps.
        every: steps of a period.
        least: lower limit.
        whole: T falls only at the end of a period, as in training; the reference's evaluation takes fractions.
    """
    periods = done // every if whole else done / every
    return decayed(first, decay, periods, least)
