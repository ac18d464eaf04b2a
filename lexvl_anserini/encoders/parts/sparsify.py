"""Sparsifiers: which of the positive weights a vector keeps.

A sparsifier maps weights [B, V] and the mask [B, V] of own tokens (None unless it needs one) to a bool mask [B, V].
Weights that are not positive are always dropped afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lexvl_anserini.errors import UsageError


@dataclass(frozen=True)
class Sparsifier:
    """A named rule; `needs_own` is True if it needs the mask of a text's own tokens."""

    name: str
    keep: Callable[[Tensor, Tensor | None], Tensor]
    needs_own: bool = False


def top_mask(weights: Tensor, k: int) -> Tensor:
    """True at the k largest weights of each row; among equals at the boundary the lowest dimensions.

    A k above V counts as V. torch.topk alone would choose arbitrarily among equals.
    """
    k = min(k, weights.shape[1])
    if k <= 0:
        return torch.zeros_like(weights, dtype=torch.bool)
    boundary = weights.topk(k, dim=1, sorted=True).values[:, -1:]  # [B, 1]
    above, equal = weights > boundary, weights == boundary
    room = k - above.sum(dim=1, keepdim=True)  # [B, 1], >= 1
    if (equal.sum(dim=1, keepdim=True) > room).any():
        equal &= equal.cumsum(dim=1) <= room
    return above | equal


def _own(own: Tensor | None) -> Tensor:
    assert own is not None, "the sparsifier declared needs_own"
    return own


def positive() -> Sparsifier:
    """Every positive weight (SPLADE, STAIR)."""
    return Sparsifier("positive", lambda weights, own: weights > 0)


def top_k(k: int) -> Sparsifier:
    """The k largest weights. VDR without lexical union (`encode_queries`, `encode_corpus`)."""
    return Sparsifier(f"top_k({k})", lambda weights, own: top_mask(weights, k))


def positive_or_top(k: int | None) -> Sparsifier:
    """Every positive weight, or the k largest of them.

    Raises:
        UsageError: k is below 1.
    """
    if k is None:
        return positive()
    if k < 1:
        raise UsageError(f"topk {k}: expected at least 1")
    return top_k(k)


def top_k_or_own(k: int) -> Sparsifier:
    """The k largest weights united with the text's own tokens (VDR's `embed`)."""
    return Sparsifier(f"top_k_or_own({k})", lambda weights, own: top_mask(weights, k) | _own(own), needs_own=True)


def own_tokens() -> Sparsifier:
    """The text's own tokens: no expansion (SPLADE-lexical, masked D2S, VDR with k = 0)."""
    return Sparsifier("own_tokens", lambda weights, own: _own(own).clone(), needs_own=True)


def among_first(sparsifier: Sparsifier, terms: int) -> Sparsifier:
    """The rule for the first terms; of the others, a text's own tokens."""

    def keep(weights: Tensor, own: Tensor | None) -> Tensor:
        own = _own(own)
        return torch.cat([sparsifier.keep(weights[:, :terms], own[:, :terms]), own[:, terms:]], dim=1)

    return Sparsifier(f"{sparsifier.name} among the first {terms}", keep, needs_own=True)


def kept(weights: Tensor, own: Tensor | None, sparsifier: Sparsifier) -> Tensor:
    """Mask [B, V] of the weights that the sparsifier keeps and that are positive and finite."""
    return sparsifier.keep(weights, own) & (weights > 0) & torch.isfinite(weights)
