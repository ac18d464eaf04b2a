"""Sparsifiers: which of the positive weights a vector keeps; as data, so that every runtime applies the same rule.

A rule maps weights [B, V] and the mask [B, V] of own tokens (None unless it needs one) to a bool mask [B, V]. Weights
that are not positive are always dropped. This module loads no model library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.ground.errors import FAIL, OnError, UsageError
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import CsrRows

if TYPE_CHECKING:
    from scipy import sparse
    from torch import Tensor


@dataclass(frozen=True)
class Sparsifier:
    """The rule: the `topk` largest weights, united with a text's own tokens."""

    topk: int | None  # None keeps every positive weight, 0 none but the own tokens
    own: bool = False  # the own tokens are kept too
    first: int | None = None  # `topk` applies to so many terms, and of the others own tokens are kept; None: to all

    @property
    def needs_own(self) -> bool:
        """True if it needs the mask of a text's own tokens."""
        return self.own or self.first is not None


def keep_positive() -> Sparsifier:
    """Every positive weight (SPLADE, STAIR)."""
    return Sparsifier(None)


def keep_top(k: int | None) -> Sparsifier:
    """Every positive weight, or the k largest of them."""
    if k is not None and k < 1:
        raise UsageError(f"topk {k}: expected at least 1")
    return Sparsifier(k)


def keep_own() -> Sparsifier:
    """The text's own tokens: no expansion (SPLADE-lexical, masked D2S, VDR with k = 0)."""
    return Sparsifier(0, own=True)


def mark_kept(weights: Tensor, own: Tensor | None, sparsifier: Sparsifier) -> Tensor:
    """Mask [B, V] of the weights that the sparsifier keeps and that are positive and finite."""
    return mark_by_rule(sparsifier, mark_top, (weights > 0) & weights.isfinite(), weights, own)


def mark_by_rule(sparsifier: Sparsifier, top: Any, mask: Any, weights: Any, own: Any) -> Any:
    """The mask of positive weights without those that the rule drops; `top` marks the k largest of each row."""
    assert own is not None or not sparsifier.needs_own, "the sparsifier declared needs_own"
    first = weights.shape[1] if sparsifier.first is None else sparsifier.first
    if sparsifier.topk is not None:
        allowed = top(weights[:, :first], sparsifier.topk)
        mask[:, :first] &= allowed | own[:, :first] if sparsifier.own else allowed
    if first < weights.shape[1]:
        mask[:, first:] &= own[:, first:]
    return mask


def mark_top(weights: Tensor, k: int) -> Tensor:
    """True at the k largest weights of each row; among equals at the boundary the lowest dimensions."""
    import torch

    k = min(k, weights.shape[1])
    if k <= 0:
        return torch.zeros_like(weights, dtype=torch.bool)
    boundary = weights.topk(k, dim=1, sorted=True).values[:, -1:]  # [B, 1]
    above, equal = weights > boundary, weights == boundary
    room = k - above.sum(dim=1, keepdim=True)  # [B, 1], >= 1
    if (equal.sum(dim=1, keepdim=True) > room).any():
        equal &= equal.cumsum(dim=1) <= room
    return above | equal


def join_rows(dims: Sequence[np.ndarray], values: Sequence[np.ndarray], width: int) -> CsrRows:
    """The dimensions (int32) and the values (float32) of each row as one matrix [n, width]."""
    indptr = np.cumsum([0, *map(len, dims)])
    data, indices = (np.concatenate([np.empty(0, t), *a]) for t, a in ((np.float32, values), (np.int32, dims)))
    return CsrRows(data, indices, indptr, (len(dims), width))


def as_csr(rows: CsrRows) -> sparse.csr_matrix:
    """As scipy's matrix."""
    from scipy import sparse

    return sparse.csr_matrix(rows[:3], shape=rows.shape)


class WeightsOfRows:
    """A side whose `csr_rows` need no scipy: what follows from them."""

    def csr_rows(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> CsrRows:
        """As `weights`, without scipy."""
        raise NotImplementedError

    def weights(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """CSR [n, V] float32, > 0, dimensions ascending."""
        return as_csr(self.csr_rows(inputs, batch_size, progress, on_error))

    def dense_weights(self, inputs: Sequence[Any], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V]; the same weights as `weights`, of a side that drops none."""
        return self.weights(inputs, batch_size).toarray()


def cut(vectors: np.ndarray, dimensions: int | None, normalise: bool) -> np.ndarray:
    """The first `dimensions` (None: all) of each vector, then of unit length if `normalise`; zeros stay zeros."""
    vectors = vectors[:, :dimensions].astype(np.float32, copy=False)
    if not normalise:
        return np.ascontiguousarray(vectors)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def check_dimensions(dimensions: int | None, width: int) -> int | None:
    """`dimensions`, after checking that the model's vectors have as many."""
    if dimensions is not None and not 1 <= dimensions <= width:
        raise UsageError(f"dimensions {dimensions}: expected 1 to {width}, the width of this model's vectors")
    return dimensions
