"""Processes, device and memory of a run; vectors of batches that are larger than memory or shared by processes.

Torchrun or `accelerate launch` start several processes: all compute, the first one writes. A process encodes its own
rows and gathers those of all. Gradient cache (Gao et al., arXiv 2101.06983): pieces pass a side without a graph, the
loss reads the vectors of all, and each piece passes again for the gradients of its vectors.
"""

from __future__ import annotations

import ctypes
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import exclusive
from lexvl_plugins.train.common.tower_pair import ImageBatch, OwnImages, TextBatch
from lexvl_plugins.train.recipe import Optimisation, Recipe

# Parameters of glibc's mallopt, the largest value of an int, and the largest threshold that glibc took before 2.35.
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, MOST, MOST_BEFORE = -3, -1, 2**31 - 1, 32 << 20
# What torch says on a CPU, where it has no error of its own.
NO_MEMORY = ("can't allocate memory", "not enough memory")


@dataclass(frozen=True)
class Processes:
    """The processes that the environment names, or one; `cpu` where they compute on a CPU."""

    cpu: bool

    @classmethod
    def start(cls, device: torch.device) -> Processes:
        """The processes on this kind of device; all but the first one report errors only."""
        from accelerate.state import AcceleratorState

        # This state keeps the device for the whole process; an earlier training may have used another.
        AcceleratorState._reset_state(reset_partial_state=True)
        processes = cls(device.type == "cpu")
        if not processes.first:
            logging.getLogger("lexvl_anserini").setLevel(logging.ERROR)
        return processes

    @property
    def state(self) -> Any:
        """What accelerate knows of the processes."""
        from accelerate import PartialState

        return PartialState(cpu=self.cpu)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return bool(self.state.is_main_process)

    def agree(self, value: bool) -> bool:
        """The value that the first process has."""
        from accelerate.utils import broadcast_object_list

        values = [value]
        if self.state.num_processes > 1:
            broadcast_object_list(values)
        return values[0]

    @contextmanager
    def open_folder(self, output: Path) -> Iterator[Path]:
        """Where this process writes: the first one into the folder of the run, locked; others into their own."""
        if self.first:
            with exclusive(output):
                yield output
        else:
            with TemporaryDirectory() as own:
                yield Path(own)

    def check(self, recipe: Recipe) -> None:
        """Checks that all processes can have as many rows of each batch, and that all objectives can be shared out."""
        count = self.state.num_processes
        for stage in recipe.stages:
            if count > 1 and (alone := stage.whole_batch_losses):
                raise UsageError(f"recipe {recipe.name}: {', '.join(alone)}: trains in one process, found {count}")
            if (size := stage.optimisation.batch_size) % count:
                raise UsageError(f"recipe {recipe.name}: batch_size {size} is no multiple of the {count} processes")


def find_own_rows(rows: int) -> slice:
    """The rows of a batch that this process computes, as `Pieces.split_own` divides it."""
    from accelerate import PartialState

    state = PartialState()
    share = rows // state.num_processes
    return slice(state.process_index * share, (state.process_index + 1) * share)


def gather_texts(texts: list[str]) -> list[str]:
    """The texts of all processes, those of the first one first."""
    from accelerate import PartialState
    from accelerate.utils import gather_object

    gathered: list[str] = gather_object(texts) if PartialState().num_processes > 1 else texts
    return gathered


def make_accelerator(device: torch.device, precision: str) -> Any:
    """An accelerator on this device."""
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


@contextmanager
def keep_random_numbers(device: torch.device) -> Iterator[None]:
    """Seeds in this block, and states that accelerate reads, leave the random numbers of the caller as they were."""
    drawn = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])


def keep_freed_memory() -> bool:
    """Lets glibc keep freed memory, which a step would get anew and cleared; returns whether the C library can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # macOS, musl
        return False
    raised = mallopt(M_MMAP_THRESHOLD, MOST) or mallopt(M_MMAP_THRESHOLD, MOST_BEFORE)
    return bool(raised and mallopt(M_TRIM_THRESHOLD, MOST))


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory is missing."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)


def explain_memory(step: int, plan: Optimisation, error: BaseException) -> UsageError:
    """The error of a step for which memory is missing: which keys of the recipe need less."""
    advice = [f"set optimisation.piece below {min(plan.piece or plan.batch_size, plan.batch_size)}"]
    if not plan.checkpointing:
        advice.append("set optimisation.checkpointing")
    advice += ["lower max_length of the model", f"lower optimisation.batch_size, {plan.batch_size}"]
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return UsageError(f"step {step}: out of memory ({said}); {', or '.join(advice)}")


AnyBatch = ImageBatch | TextBatch
# What a side computes: vectors, or a NamedTuple of vectors, some of which may be None; one row per row of the batch.
Computed = TypeVar("Computed")


class Passed(NamedTuple):
    """A pass of a batch through a side: the own pieces with their seeds, and what computes one of them `again`.

    The graph is that of the only piece; leaves are the vectors of all processes with the gradients of the loss.
    """

    again: Callable[[AnyBatch], list[Tensor]]
    pieces: Sequence[tuple[AnyBatch, int]]
    graph: list[Tensor]
    leaves: list[Tensor]


class Pieces:
    """Encodes the batches of one step; at most `size` rows pass a side together with a graph, 0 for all."""

    def __init__(self, accelerator: Any, size: int, seed: int):
        self.accelerator, self.size = accelerator, size
        self.whole = not size and accelerator.num_processes == 1
        self.seed, self.draws = seed, torch.Generator().manual_seed(seed)
        self.passed: list[Passed] = []

    def __call__(self, compute: Callable[[Any, Any], Computed], side: nn.Module, batch: AnyBatch) -> Computed:
        """`compute(side, batch)` for the rows of all processes."""

        def run_piece(piece: AnyBatch) -> Computed:
            # A context of its own: one that began without a graph would keep casts of weights without one.
            with self.accelerator.autocast():
                return compute(side, piece)

        if self.whole:
            return run_piece(batch)
        (first, seed), *others = pieces = self.split_own(batch)
        torch.manual_seed(seed)
        computed = run_piece(first)
        graph, rows = list_tensors(computed), [[tensor.detach()] for tensor in list_tensors(computed)]
        trained = any(tensor.requires_grad for tensor in graph)
        if others:
            graph = []  # frees that of the first piece, which only says whether the side has gradients
            computed = replace_tensors(computed, [tensor for (tensor,) in rows])
        with torch.no_grad():
            for piece, seed in others:
                torch.manual_seed(seed)
                for parts, tensor in zip(rows, list_tensors(run_piece(piece)), strict=True):
                    parts.append(tensor)
        leaves = [self.accelerator.gather(torch.cat(parts)).requires_grad_(trained) for parts in rows]
        if trained:
            self.passed.append(Passed(lambda piece: list_tensors(run_piece(piece)), pieces, graph, leaves))
        whole: Computed = replace_tensors(computed, leaves)
        return whole

    @contextmanager
    def run_whole(self) -> Iterator[None]:
        """A block that computes whole batches, with the same draws in all processes, as does the loss after it."""
        if not self.whole:
            torch.manual_seed(self.seed)
        with self.accelerator.autocast():
            yield

    def split_own(self, batch: AnyBatch) -> list[tuple[AnyBatch, int]]:
        """The pieces of this process: its share of the rows, in order, with a seed for each piece."""
        rows, processes, index = len(batch[0]), self.accelerator.num_processes, self.accelerator.process_index
        own = isinstance(batch, OwnImages)
        share, first = (rows, 0) if own else (rows // processes, index * (rows // processes))
        size = self.size or share
        starts = range(0, share, size)
        # The seeds of all processes, so that each has its own dropout.
        seeds = torch.randint(1 << 62, (processes, len(starts)), generator=self.draws)
        kind: Any = type(batch)
        pieces = []
        for start, seed in zip(starts, seeds[index].tolist(), strict=True):
            some = slice(first + start, first + min(start + size, share))
            pieces.append((kind(*(None if part is None else part[some] for part in batch)), seed))
        return pieces

    def backward(self) -> None:
        """Gives the weights the gradients of the loss, whose own gradients reached the vectors."""
        for passed in self.passed:
            gradients = [self.get_own_gradient(leaf) for leaf in passed.leaves]
            if passed.graph:
                propagate(passed.graph, gradients)
                continue
            start = 0
            for piece, seed in passed.pieces:
                torch.manual_seed(seed)
                end = start + len(piece[0])
                propagate(passed.again(piece), [None if g is None else g[start:end] for g in gradients])
                start = end
        self.passed.clear()

    def get_own_gradient(self, leaf: Tensor) -> Tensor | None:
        """The gradient of the own rows, times the processes, by which `average_gradients` divides all weights'."""
        if leaf.grad is None:
            return None
        processes, share = self.accelerator.num_processes, len(leaf) // self.accelerator.num_processes
        return leaf.grad[self.accelerator.process_index * share :][:share] * processes

    def average_gradients(self, weights: Iterable[Tensor]) -> None:
        """Gives the weights the mean of the gradients of all processes, whose loss is the same."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if self.accelerator.num_processes == 1 or not gradients:
            return
        flat = self.accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "mean")
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def propagate(vectors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Backward from vectors with their gradients; those without one, or without a graph, are left out."""
    pairs = [(v, g) for v, g in zip(vectors, gradients, strict=True) if g is not None and v.requires_grad]
    if pairs:
        torch.autograd.backward([vector for vector, _ in pairs], [gradient for _, gradient in pairs])


def list_tensors(computed: Any) -> list[Tensor]:
    """The tensors of what a side computed."""
    return [computed] if isinstance(computed, Tensor) else [part for part in computed if part is not None]


def replace_tensors(computed: Any, tensors: Sequence[Tensor]) -> Any:
    """What a side computed, with other tensors in the same order."""
    if isinstance(computed, Tensor):
        return tensors[0]
    left = iter(tensors)
    return type(computed)(*(None if part is None else next(left) for part in computed))
