"""Memory of a training: freed memory stays with the process; an error of too little names keys that need less."""

from __future__ import annotations

import ctypes

import torch

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.training.recipe import Optimisation

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
