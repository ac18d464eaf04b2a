"""Heads and pooling: hidden states -> logits of all positions -> one activation per vocabulary dimension.

A pooling sees one slice of C vocabulary dimensions at a time, so that [B, L, V] never exists at once.

Activations: logit -> activation >= 0, all monotone, so a maximum may be taken before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

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
    """X + 1 for x > 0, exp(x) otherwise (VDR, section 3), as ELU(x) + 1: very negative logits give exact zeros."""
    return torch.nn.functional.elu(logit) + 1.0


def compute_decay(first: float, decay: float, periods: float, least: float) -> float:
    """The temperature of an activation (FDT) after a number of periods: max(first decay^periods, least)."""
    return float(max(first * decay**periods, least))


# (logits [B, L, C], which it may overwrite; flat indices of masked positions [P]; activation) -> [B, C]
Pooling = Callable[[Tensor, Tensor, Activation], Tensor]

# Maps token ids and attention mask, both [B, L], or pixels [B, 3, R, R] to hidden states [B, L, D].
Backbone = Callable[..., Tensor]


@dataclass(frozen=True)
class Head:
    """hidden [B, L, D] -> logit [B, L, V]: a transform to [B, L, D'], then `matrix` [V, D'] and `bias` [V]."""

    transform: Callable[[Tensor], Tensor]
    matrix: Tensor
    bias: Tensor | None = None


# Floats of the buffer for a slice of the logits: 32 MiB, about the size of a processor's cache.
BUFFER_FLOATS = 8 << 20


def pool_max(logits: Tensor, masked: Tensor, activation: Activation) -> Tensor:
    """max_i activation(logit_i) over unmasked positions; a monotone activation is applied once, after the maximum."""
    logits.view(-1, logits.shape[-1]).index_fill_(0, masked, -torch.inf)
    return activation(logits.amax(dim=1))


def pool_sum(logits: Tensor, masked: Tensor, activation: Activation) -> Tensor:
    """sum_i activation(logit_i) over unmasked positions (SPLADE v1)."""
    activations = activation(logits)
    activations.view(-1, logits.shape[-1]).index_fill_(0, masked, 0.0)
    return activations.sum(dim=1)


def pool_top_mean(logits: Tensor, masked: Tensor, activation: Activation, n: int) -> Tensor:
    """Mean of the n largest activations over unmasked positions, of all if they are fewer (VDR's `pooling: mean`)."""
    logits.view(-1, logits.shape[-1]).index_fill_(0, masked, -torch.inf)
    top = logits.topk(min(n, logits.shape[1]), dim=1).values  # [B, n, C]
    present = torch.isfinite(top)
    return (activation(top) * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)


def pool_last(logits: Tensor, masked: Tensor, activation: Activation) -> Tensor:
    """activation(logit) at the last unmasked position, which a causal model lets see the whole text (UEmbed's form)."""
    batch, length, _ = logits.shape
    seen = torch.ones(batch * length, device=logits.device).index_fill_(0, masked, 0.0).view(batch, length)
    last = logits[torch.arange(batch, device=logits.device), (seen * seen.cumsum(dim=1)).argmax(dim=1)]  # [B, C]
    return activation(last.masked_fill(seen.amax(dim=1, keepdim=True) == 0, -torch.inf))


POOLINGS: Mapping[str, Pooling] = {"max": pool_max, "sum": pool_sum, "last": pool_last}


def make_top_mean(n: int) -> Pooling:
    """The pooling `pool_top_mean` for one n."""
    return partial(pool_top_mean, n=n)


class Projector:
    """Projects hidden states on the vocabulary and pools, slice by slice through a reused buffer.

    A new [L, V] per text would fragment the heap and keep memory at its peak; a kept buffer does not. A call takes a
    buffer that no other call has, so there are as many as threads that have ever been here at once.
    """

    def __init__(self) -> None:
        self.idle: list[Tensor] = []  # its `append` and `pop` are atomic

    def __call__(
        self,
        features: Tensor,  # [B, L, D]
        masked: Tensor | None,  # bool [B, L], True at positions that are left out
        matrix: Tensor,  # [V, D]
        bias: Tensor | None,  # [V]
        pooling: Pooling,
        activation: Activation,
    ) -> Tensor:  # [B, V]
        """activation(pooling over positions of <features, matrix_v> + bias_v)."""
        batch, length, width = features.shape
        # Under autocast the features may have another type than the matrix; the type of the matrix is used.
        rows = features.reshape(batch * length, width).to(matrix.dtype)
        nowhere = torch.empty(0, dtype=torch.long, device=rows.device)
        masked_rows = nowhere if masked is None else masked.reshape(-1).nonzero().squeeze(1)  # [P]
        size = matrix.shape[0]
        columns = max(1, min(size, BUFFER_FLOATS // (batch * length)))
        buffer = self._take(rows.shape[0] * columns, rows)
        pooled = torch.empty(batch, size, dtype=torch.float32, device=rows.device)  # [B, V]
        for start in range(0, size, columns):
            stop = min(start + columns, size)
            logits = buffer[: rows.shape[0] * (stop - start)].view(rows.shape[0], stop - start)  # [B*L, C]
            torch.mm(rows, matrix[start:stop].T, out=logits)
            if bias is not None:
                logits += bias[start:stop]
            pooled[:, start:stop] = pooling(logits.view(batch, length, stop - start), masked_rows, activation)
        self.idle.append(buffer)
        return pooled

    def _take(self, floats: int, like: Tensor) -> Tensor:
        """An idle buffer if it fits, else a new one in its place."""
        try:
            buffer = self.idle.pop()
        except IndexError:
            buffer = torch.empty(0)
        if buffer.numel() < floats or buffer.device != like.device or buffer.dtype != like.dtype:
            buffer = torch.empty(max(BUFFER_FLOATS, floats), dtype=like.dtype, device=like.device)
        return buffer
