"""Vectors of batches that are larger than memory or shared by processes, with the gradients of the whole batch.

Gradient cache (Gao et al., arXiv 2101.06983): pieces pass a side without a graph, the loss reads the vectors of all,
and each piece passes again for the gradients of its vectors. A process encodes its own rows and gathers those of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from lexvl_plugins.train.common.batches import ImageBatch, OwnImages, TextBatch

AnyBatch = ImageBatch | TextBatch
# What a side computes: vectors, or a NamedTuple of vectors, some of which may be None; one row per row of the batch.
Computed = TypeVar("Computed")


class Passed(NamedTuple):
    """A pass of a batch through a side.

    Attributes:
        again: computes a piece once more.
        pieces: the own rows of this process, with the seed of each piece.
        graph: what the only piece computed, with its graph; empty where there are several.
        leaves: the vectors of all rows of all processes, which gather the gradients of the loss.
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
        """Gives the weights the mean of the gradients of all processes.

        All have the same loss, so that the weights that it reads itself (the temperature) have equal gradients.
        """
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
