"""Regularisers, which keep vectors sparse, and how their weights grow. Each maps weights [N, V] >= 0 to a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize


def l1(weights: Tensor) -> Tensor:
    """Mean over the batch of the sum of a vector's weights."""
    return weights.abs().sum(dim=1).mean()


def flops(weights: Tensor, threshold: int = 0, normalised: bool = False) -> Tensor:
    """Sum over dimensions of the squared mean weight, a smooth stand-in for the cost of a query.

    Paria et al., ICLR 2020; SPLADE, STAIR and LexLIP (`normalised`: of vectors of unit length) use it. Vectors with at
    most `threshold` active terms count as empty in the mean, so that they stay as they are (FLOPS with L0 masking,
    arXiv 2504.14839).
    """
    if threshold:
        weights = weights * ((weights != 0).sum(dim=1, keepdim=True) > threshold)
    if normalised:
        weights = normalize(weights, dim=1)
    return (weights.abs().mean(dim=0) ** 2).sum()


def anti_zero(weights: Tensor) -> Tensor:
    """1 / (sum of all weights of a batch)^2: grows without bound where all vectors vanish (naver/splade, IRTrainer)."""
    return 1 / weights.sum() ** 2


def ramp(step: int, steps: int) -> float:
    """The share of a regulariser's weight at a step: quadratic up to `steps`, then 1 (SPLADE's schedule)."""
    return 1.0 if step >= steps else (step / steps) ** 2


# The share of a regulariser's weight by (steps done before, steps T until the whole weight), under the name of its
# offset: all are quadratic, and differ in the first optimisation step n = 1.
# n-1      D2S, Joint: 0 in the first step
# n        SPLADE, STAIR: 1 / T^2 in the first step
# n/(T+1)  SPLADE's IRTrainer, where T = 0 is constant
# callback  sentence-transformers, which sets the weight before each step from the steps done: as n-1, with a third of
#          all steps as T
RAMPS: Mapping[str, Callable[[int, int], float]] = {
    "n-1": ramp,
    "n": lambda done, steps: ramp(done + 1, steps),
    "n/(T+1)": lambda done, steps: ramp(done + 1, steps + 1),
    "callback": ramp,
}


def sum_penalties(terms: Iterable[Tensor], running: bool = False) -> Tensor:
    """The sum of the weighted regularisers of a step; `running` adds the sum so far after each (SPLADE's trainer)."""
    values = list(terms)
    if not values:
        return torch.zeros(())
    stacked = torch.stack(values)
    return stacked.cumsum(dim=0).sum() if running else stacked.sum()
