"""What changes the weights: the accelerator, the optimiser with its groups of parameters, and its learning rate.

Memory of a training: freed memory stays with the process; an error of too little names keys that need less.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from lexvl_anserini.ground.errors import InstallationError, UsageError, reason_of
from lexvl_anserini.training.common.tower_pair import TowerPair
from lexvl_anserini.training.recipe import Optimisation

# The share of the peak that is left at a share of the steps after the warm-up.
DECAYS: Mapping[str, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
}


def make_accelerator(device: torch.device, precision: str) -> Any:
    """An accelerator on this device.

    Raises:
        UsageError: the device does not compute in this precision, or the environment configures accelerate otherwise.
    """
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.state import AcceleratorState

    # This state keeps device and precision for the whole process; an earlier training may have used others.
    AcceleratorState._reset_state(reset_partial_state=True)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    try:
        # Batches are split over processes, so the learning rate has one step for all of them.
        batches = DataLoaderConfiguration(split_batches=True)
        accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=precision, dataloader_config=batches)
    except ValueError as error:
        raise UsageError(f"precision {precision} on {device}: {error}") from error
    if accelerator.device.type != device.type:
        raise UsageError(f"accelerate is configured for {accelerator.device}, not {device}; unset its ACCELERATE_...")
    if precision != "no" and not accelerator.native_amp:  # accelerate would silently compute in float32
        raise UsageError(f"precision {precision}: {device} does not compute in it; expected no or bf16")
    return accelerator


def make_average(pair: TowerPair, plan: Optimisation) -> AveragedModel | None:
    """A copy of a pair whose weights are an exponential average of the pair's; None if the plan has no average."""
    if not plan.average:
        return None
    return AveragedModel(pair, multi_avg_fn=warmed_average(plan.average))


def warmed_average(decay: float) -> Callable[[Any, Any, Tensor | int], None]:
    """An exponential average that forgets faster at first: its decay after n steps is at most (1 + n) / (10 + n)."""

    @torch.no_grad()
    def update(averaged: Any, current: Any, steps: Tensor | int) -> None:
        number = int(steps)
        torch._foreach_lerp_(averaged, current, 1 - min(decay, (1 + number) / (10 + number)))

    return update


def adamw(groups: list[dict[str, Any]], plan: Optimisation) -> torch.optim.Optimizer:
    """AdamW of PyTorch."""
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=plan.betas, eps=1e-8)


def lamb(groups: list[dict[str, Any]], plan: Optimisation) -> torch.optim.Optimizer:
    """LAMB of timm; `plan.clip` clips the gradients, as for AdamW.

    Raises:
        InstallationError: timm is not installed, or does not work beside this torch.
    """
    try:
        from timm.optim import Lamb
    except Exception as error:  # a torchvision of another torch raises what it likes
        raise InstallationError(
            f"optimiser lamb needs timm ({reason_of(error)}); pip install timm torchvision, in the versions that "
            "fit this torch"
        ) from error
    optimiser: torch.optim.Optimizer = Lamb(groups, lr=plan.learning_rate, betas=plan.betas, max_grad_norm=None)
    return optimiser


OPTIMISERS: Mapping[str, Callable[[list[dict[str, Any]], Optimisation], torch.optim.Optimizer]] = {
    "adamw": adamw,
    "lamb": lamb,
}


def make_optimiser(pair: TowerPair, plan: Optimisation) -> tuple[torch.optim.Optimizer, Any]:
    """The optimiser of the parameters of a pair that change, and the scheduler of its learning rate."""
    optimiser = OPTIMISERS[plan.optimiser](parameter_groups(pair, plan), plan)
    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, learning_rate_shape(plan))


def parameter_groups(pair: TowerPair, plan: Optimisation) -> list[dict[str, Any]]:
    """Matrices decay; biases, norms and the temperature do not. Weights of other learning rates have their own groups.

    Raises:
        UsageError: no weight that changes has a name that matches a pattern of `learning_rates`.
    """
    trained = [(name, parameter) for name, parameter in pair.named_parameters() if parameter.requires_grad]
    for pattern in plan.learning_rates:
        if not any(fnmatch(name, pattern) for name, _ in trained):
            raise UsageError(f"learning_rates: no weight that changes is named {pattern!r}, as {trained[0][0]!r} is")
    # By learning rate, and whether they decay; the learning rate of the first group is logged.
    groups: dict[tuple[float, bool], list[Tensor]] = {(plan.learning_rate, True): [], (plan.learning_rate, False): []}
    for name, parameter in trained:
        peak = next((peak for pattern, peak in plan.learning_rates.items() if fnmatch(name, pattern)), None)
        groups.setdefault((peak or plan.learning_rate, parameter.dim() >= 2), []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "weight_decay": plan.weight_decay if decays else 0.0}
        for (rate, decays), parameters in groups.items()
    ]


def learning_rate_shape(plan: Optimisation) -> Callable[[int], float]:
    """Factor of the peak at a step: linear warm-up, then the decay down to `last_learning_rate`."""

    def factor(step: int) -> float:
        if step < plan.warmup_steps:
            return (step + 1) / plan.warmup_steps
        progress = (step - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
        left = DECAYS[plan.decay](min(1.0, progress))
        return plan.last_learning_rate + (1 - plan.last_learning_rate) * left

    return factor


# Parameters of glibc's mallopt, and the largest value of an int.
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, MOST = -3, -1, 2**31 - 1
# The largest threshold that glibc accepted before 2.35.
MOST_OF_OLD = 32 << 20

# What torch says on a CPU, where it has no error of its own.
OF_CPU = ("can't allocate memory", "not enough memory")


def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory for the next step; returns whether the C library is one that can.

    By default, each large tensor is new memory from the system, which clears every page of it at each step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # macOS, musl
        return False
    raised = mallopt(M_MMAP_THRESHOLD, MOST) or mallopt(M_MMAP_THRESHOLD, MOST_OF_OLD)
    return bool(raised and mallopt(M_TRIM_THRESHOLD, MOST))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is missing."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OF_CPU)


def out_of_memory(step: int, plan: Optimisation, error: BaseException) -> UsageError:
    """The error of a step for which memory is missing: which keys of the recipe need less."""
    advice = [f"set optimisation.piece below {min(plan.piece or plan.batch_size, plan.batch_size)}"]
    if not plan.checkpointing:
        advice.append("set optimisation.checkpointing")
    advice += ["lower max_length of the model", f"lower optimisation.batch_size, {plan.batch_size}"]
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return UsageError(f"step {step}: out of memory ({said}); {', or '.join(advice)}")
