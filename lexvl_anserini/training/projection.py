"""The vocabulary projection with gradients, computed without a tensor [B, L, V]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Floats of one slice of the logits [B, L, C]: 128 MiB.
SLICE_FLOATS = 32 << 20


class _ProjectMax(torch.autograd.Function):
    """Forward stores the position of each maximum; backward sends gradients to these positions; both slice by slice."""

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
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        features, matrix, winners = ctx.saved_tensors
        batch, length, width = features.shape
        size = max(1, SLICE_FLOATS // (batch * length))
        to_features, to_matrix = torch.zeros_like(features), []
        for rows, gradient, winner in zip(
            matrix.split(size), gradients[0].split(size, dim=1), winners.split(size, dim=1), strict=True
        ):
            spread = features.new_zeros(batch, length, len(rows))  # [B, L, C]
            spread.scatter_(1, winner.long()[:, None, :], gradient.to(spread.dtype)[:, None, :])
            to_features += spread @ rows
            to_matrix.append(spread.reshape(-1, len(rows)).T @ features.reshape(-1, width))
        return to_features, torch.cat(to_matrix), None


def project_max(features: Tensor, matrix: Tensor, masked: Tensor | None = None) -> Tensor:
    """max_i <features_i, matrix_v>, [B, V], from features [B, L, D] and a matrix [V, D].

    Args:
        features: states of all positions.
        matrix: one row per dimension of the vocabulary.
        masked: bool [B, L], True at positions to ignore; each row needs at least one other position.
    """
    result: Tensor = _ProjectMax.apply(features, matrix, masked)
    return result
