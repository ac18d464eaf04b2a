"""The vocabulary projection with gradients, computed without a tensor [B, L, V]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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

    Args:
        features: states of all positions.
        matrix: one row per dimension of the vocabulary.
        masked: bool [B, L], True at positions to ignore; each row needs at least one other position.
    """
    result: Tensor = _ProjectMax.apply(features, matrix, masked)
    return result
