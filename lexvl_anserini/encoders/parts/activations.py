"""Activations: logit -> activation >= 0, all monotone, so a maximum may be taken before them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


def log1p_relu(logit: Tensor) -> Tensor:
    """log(1 + max(0, x)): SPLADE, STAIR, LexLIP, D2S."""
    return torch.log1p(torch.relu(logit))


def log1p_log1p_relu(logit: Tensor) -> Tensor:
    """log(1 + log(1 + max(0, x))): the `log1p_relu` pooling option of sentence-transformers, flatter than SPLADE's."""
    return torch.log1p(log1p_relu(logit))


def elu1p(logit: Tensor) -> Tensor:
    """X + 1 for x > 0, exp(x) otherwise (VDR, section 3).

    Positive nearly everywhere; the sparsifier makes vectors sparse. Computed as ELU(x) + 1, as in the
    reference, so that very negative logits give the same exact zeros.
    """
    return torch.nn.functional.elu(logit) + 1.0


def decayed(first: float, decay: float, periods: float, least: float) -> float:
    """The temperature of an activation (FDT) after a number of periods: max(first decay^periods, least)."""
    return float(max(first * decay**periods, least))
