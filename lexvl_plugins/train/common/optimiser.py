"""What changes the weights: the optimiser with its groups of parameters, its learning rate, and their average."""

from __future__ import annotations

import math
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from lexvl_anserini.ground.errors import InstallationError, UsageError, reason_of
from lexvl_plugins.train.common.tower_pair import TowerPair
from lexvl_plugins.train.recipe import Optimisation


def make_average(pair: TowerPair, plan: Optimisation) -> AveragedModel | None:
    """A copy of a pair whose weights are an exponential average of the pair's; None if the plan has no average.

    The average forgets faster at first: its decay after n steps is at most (1 + n) / (10 + n).
    """

    @torch.no_grad()
    def update(averaged: Any, current: Any, steps: Tensor | int) -> None:
        number = int(steps)
        torch._foreach_lerp_(averaged, current, 1 - min(plan.average, (1 + number) / (10 + number)))

    return AveragedModel(pair, multi_avg_fn=update) if plan.average else None


def make_optimiser(pair: TowerPair, plan: Optimisation) -> tuple[torch.optim.Optimizer, Any]:
    """The optimiser of the parameters of a pair that change, and the scheduler of its learning rate."""
    optimiser = choose_optimiser(group_parameters(pair, plan), plan)
    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, make_learning_rate(plan))


def choose_optimiser(groups: list[dict[str, Any]], plan: Optimisation) -> torch.optim.Optimizer:
    """AdamW of PyTorch, or LAMB of timm; `plan.clip` clips the gradients, so that LAMB itself does not."""
    if plan.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=plan.betas, eps=1e-8)
    try:
        from timm.optim import Lamb
    except Exception as error:  # a torchvision of another torch raises what it likes
        raise InstallationError(
            f"optimiser lamb needs timm ({reason_of(error)}); pip install timm torchvision, in the versions that "
            "fit this torch"
        ) from error
    optimiser: torch.optim.Optimizer = Lamb(groups, lr=plan.learning_rate, betas=plan.betas, max_grad_norm=None)
    return optimiser


def group_parameters(pair: TowerPair, plan: Optimisation) -> list[dict[str, Any]]:
    """Groups of weights by learning rate and decay: matrices decay, or all weights (`plan.decayed`)."""
    trained = [(name, parameter) for name, parameter in pair.named_parameters() if parameter.requires_grad]
    for pattern in plan.learning_rates:
        if not any(fnmatch(name, pattern) for name, _ in trained):
            raise UsageError(f"learning_rates: no weight that changes is named {pattern!r}, as {trained[0][0]!r} is")
    # By learning rate, and whether they decay; the learning rate of the first group is logged.
    groups: dict[tuple[float, bool], list[Tensor]] = {(plan.learning_rate, True): [], (plan.learning_rate, False): []}
    for name, parameter in trained:
        peak = next((peak for pattern, peak in plan.learning_rates.items() if fnmatch(name, pattern)), None)
        decays = plan.decayed == "all" or parameter.dim() >= 2
        groups.setdefault((peak or plan.learning_rate, decays), []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "weight_decay": plan.weight_decay if decays else 0.0}
        for (rate, decays), parameters in groups.items()
    ]


def make_learning_rate(plan: Optimisation) -> Callable[[int], float]:
    """Factor of the peak at a step: linear warm-up, then the decay down to `last_learning_rate`."""

    def compute_factor(step: int) -> float:
        if step < plan.warmup_steps:
            return (step + (plan.warmup == "n")) / plan.warmup_steps
        progress = min(1.0, (step - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps))
        left = (1 + math.cos(math.pi * progress)) / 2 if plan.decay == "cosine" else 1 - progress
        return plan.last_learning_rate + (1 - plan.last_learning_rate) * left

    return compute_factor
