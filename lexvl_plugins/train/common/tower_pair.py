"""A pair of towers in training: its two sides, its temperatures, and what a stage lets change.

The vocabulary projection with gradients, computed without a tensor [B, L, V].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.parts.pooling import Head
from lexvl_anserini.encoders.parts.sparsify import mark_top
from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.train.common.batches import Details, TrainingBatch
from lexvl_plugins.train.model_settings import ImagePairSettings
from lexvl_plugins.train.recipe import StageSettings


class Temperatures(NamedTuple):
    """What divides scores: those of vectors, and those of bags of words where a stage learns one of their own."""

    scores: Tensor
    bags: Tensor | None = None


class DetailedSide(nn.Module):
    """A side that computes more than vectors."""

    def compute(self, batch: Any) -> Details:
        """All that the side computes of a batch."""
        raise NotImplementedError

    def forward(self, batch: Any) -> Tensor:
        """Vectors before the sparsifier, [B, V]."""
        return self.compute(batch).vectors


class TrainingPart(nn.Module):
    """Computes more of a batch; a stage with its objective calls `start` first, and `settle` after each step."""

    def start(self, pair: Any, stage: StageSettings) -> None:
        """Prepares for a stage."""
        raise NotImplementedError

    def compute_fields(self, pair: Any, batch: TrainingBatch, documents: Details) -> Sequence[dict[str, Any]]:
        """By round of the batch, fields of `Encoded` that the objective reads."""
        raise NotImplementedError

    def settle(self, pair: Any) -> None:
        """Follows a step of the optimiser."""


class TowerPair(nn.Module):
    """`encoder_q` reads queries, `encoder_p` images or passages; temperatures are learned, as logarithms, or constant.

    Where one network reads both queries and passages, both are one module, `encoder_q`.

    Attributes:
        limits: of the temperature in this stage.
        parts: what only training computes, by the name of an objective (see `images.lexlip`).
        active: the parts of this stage.
    """

    encoder_p: nn.Module
    limits: tuple[float, float] | None = None
    active: Sequence[TrainingPart] = ()

    def __init__(self, query: nn.Module, document: nn.Module, temperature: float, bags: bool = False):
        super().__init__()
        self.encoder_q = query
        if document is not query:
            self.encoder_p = document
        self.log_temperature = nn.Parameter(torch.tensor(temperature).log())
        self.log_bag_temperature = nn.Parameter(torch.tensor(temperature).log()) if bags else None
        self.parts = nn.ModuleDict()

    def __getattr__(self, name: str) -> Any:
        # A module under two names would have its weights twice in every state.
        return super().__getattr__("encoder_q" if name == "encoder_p" and name not in self._modules else name)

    def start(self, stage: StageSettings) -> None:
        """Lets the weights change that a stage names, and no others."""
        names = [name for name, _ in self.named_parameters()]
        changed = {name for name in names if any(fnmatch(name, pattern) for pattern in stage.trained)}
        if stage.trained and not changed:
            raise UsageError(f"trained {', '.join(stage.trained)}: names no weight; weights are named as {names[0]} is")
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not stage.trained or name in changed)
        self.log_temperature.requires_grad_(stage.objective.learn_temperature)
        if self.log_bag_temperature is not None:
            self.log_bag_temperature.requires_grad_(stage.objective.learn_bag_temperature)
        self.limits = stage.objective.limits
        self.parts.requires_grad_(False)
        self.active = tuple(part for name, part in self.parts.items() if name in stage.names)  # type: ignore[misc]
        for part in self.active:
            part.start(self, stage)
        self.limit_temperature()

    @property
    def temperatures(self) -> Temperatures:
        """The temperatures at this step."""
        bags = self.log_bag_temperature
        return Temperatures(self.log_temperature.exp(), None if bags is None else bags.exp())

    @torch.no_grad()
    def limit_temperature(self) -> None:
        """Puts the temperature back into its limits."""
        if self.limits is not None:
            low, high = self.limits
            self.log_temperature.clamp_(math.log(low), math.log(high))

    @torch.no_grad()
    def settle(self) -> None:
        """Follows a step of the optimiser: limits the temperature, counts the step of a codebook, settles the parts."""
        self.limit_temperature()
        if (codebook := getattr(self.encoder_p, "codebook", None)) is not None:
            codebook.done += 1
        for part in self.active:
            part.settle(self)


def drop_registers(weights: Tensor, model: ImagePairSettings) -> Tensor:
    """Vectors [n, V] as the saved pair's encoder returns them before the sparsifier: [n, words], without registers."""
    return normalize(weights[:, model.registers :], dim=1) if model.family.unit else weights


def sparsify(weights: Tensor, topk: int | None) -> Tensor:
    """Weights [n, V] after the sparsifier: the `topk` largest of each row, or all positive ones."""
    return weights if topk is None else weights * mark_top(weights, topk)


# Floats of one slice of the logits [B, L, C]: 128 MiB.
SLICE_FLOATS = 32 << 20


class _ProjectMax(torch.autograd.Function):
    """Forward stores the position of each maximum, slice by slice; backward sends gradients to these positions alone.

    One position per text and dimension has a gradient, so the logits' gradient is a sparse matrix [B L, V].
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, matrix: Tensor, masked: Tensor | None) -> Tensor:
        batch, length, _ = features.shape
        values, winners = [], []
        for rows in matrix.split(max(1, SLICE_FLOATS // (batch * length))):
            logits = features @ rows.T  # [B, L, C]
            if masked is not None:
                logits = logits.masked_fill(masked[:, :, None], -torch.inf)
            top = logits.max(dim=1)
            values.append(top.values)
            winners.append(top.indices.to(torch.int32))
        ctx.save_for_backward(features, matrix, torch.cat(winners, dim=1))
        return torch.cat(values, dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        features, matrix, winners = ctx.saved_tensors
        batch, length, width = features.shape
        texts, dims = gradients[0].nonzero(as_tuple=True)
        positions = texts * length + winners[texts, dims]
        # Products of sparse matrices have at least 32 bits.
        kind, size = torch.promote_types(features.dtype, torch.float32), (batch * length, len(matrix))
        values = gradients[0][texts, dims].to(kind)
        spread = torch.sparse_coo_tensor(torch.stack([positions, dims]), values, size, check_invariants=False)
        to_features = to_matrix = None
        if ctx.needs_input_grad[0]:
            to_features = torch.sparse.mm(spread, matrix.to(kind)).view_as(features).to(features.dtype)
        if ctx.needs_input_grad[1]:
            to_matrix = torch.sparse.mm(spread.t(), features.reshape(-1, width).to(kind)).to(matrix.dtype)
        return to_features, to_matrix, None


def project_max(features: Tensor, matrix: Tensor, masked: Tensor | None = None) -> Tensor:
    """max_i <features_i, matrix_v>, [B, V], from features [B, L, D] and a matrix [V, D].

    `masked`, bool [B, L], is True at positions to ignore; each row needs at least one other position.
    """
    result: Tensor = _ProjectMax.apply(features, matrix, masked)
    return result


def compute_logits(head: Head, states: Tensor, left_out: Tensor | None = None) -> Tensor:
    """The logits of an encoder's head, [B, V], each at its best position: max_i <transform(h_i), E_v> + b_v."""
    logits = project_max(head.transform(states), head.matrix, left_out)
    return logits if head.bias is None else logits + head.bias
