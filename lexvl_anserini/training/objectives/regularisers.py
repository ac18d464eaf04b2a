"""Regularisers: they keep vectors sparse during training. Each maps weights [N, V] >= 0 to a number."""

from __future__ import annotations

from torch import Tensor


def l1(weights: Tensor) -> Tensor:
    """Mean over the batch of the sum of a vector's weights."""
    return weights.abs().sum(dim=1).mean()


def flops(weights: Tensor) -> Tensor:
    """Sum over dimensions of the squared mean weight, a smooth stand-in for the cost of a query.

    Paria et al., ICLR 2020; SPLADE, STAIR and D2S use it.
    """
    return (weights.abs().mean(dim=0) ** 2).sum()


def ramp(step: int, steps: int) -> float:
    """The share of a regulariser's weight at a step: quadratic up to `steps`, then 1 (SPLADE's schedule)."""
    return 1.0 if step >= steps else (step / steps) ** 2
