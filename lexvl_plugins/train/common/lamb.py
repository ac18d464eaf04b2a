"""LAMB (You et al., ICLR 2020, arXiv 1904.00962): Adam whose step of a matrix is as long as its weights say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of the paper with phi(z) = z, as NVIDIA's FusedLAMB and timm have it; it clips no gradient.

    At step n, with the gradient g of the weights x of one parameter:

        m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
        r = m / (1 - b1^n) / (sqrt(v / (1 - b2^n)) + eps) + decay x
        x = x - lr ratio r,  ratio = |x| / |r|

    The ratio is 1 where |x| or |r| is 0, and for parameters that do not decay. A state has timm's names.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Changes the weights by their gradients."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            group["step"] = int(group.get("step", 0)) + 1
            for weights in group["params"]:
                if weights.grad is not None:
                    weights.add_(self.compute_move(weights, group), alpha=-group["lr"])
        return loss

    def compute_move(self, weights: Tensor, group: dict[str, Any]) -> Tensor:
        """What a parameter loses per unit of the learning rate; both moving averages learn its gradient."""
        state, decay, (first, second) = self.state[weights], group["weight_decay"], group["betas"]
        for name in ("exp_avg", "exp_avg_sq"):
            if name not in state:
                state[name] = torch.zeros_like(weights)
        mean = state["exp_avg"].lerp_(weights.grad, 1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(weights.grad, weights.grad, value=1 - second)
        root = square.sqrt() / math.sqrt(1 - second ** group["step"])
        move = mean / (1 - first ** group["step"]) / (root + group["eps"])
        if not decay:
            return move
        move = move.add(weights, alpha=decay)
        size, length = weights.norm(), move.norm()
        return move * torch.where((size > 0) & (length > 0), size / length, 1.0)
