"""BEiT: a vision transformer whose positions are a learned bias per pair of patches (Bao et al., ICLR 2022).

As LexLIP uses it: class token, no absolute positions, no LayerNorm after the last layer.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, scaled_dot_product_attention

from lexvl_anserini.ground.errors import CheckpointError, UsageError

EPS = 1e-12

# Class token to patches, patches to class token, class token to itself: the entries after those of pairs of patches.
CLASS_ENTRIES = 3


def pair_index(grid: int, first_class_entry: int) -> Tensor:
    """The entry of the bias table for each pair of positions, int64 [1 + grid^2, 1 + grid^2]; position 0 is the class.

    Patches at distance (dy, dx) share the entry (dy + grid - 1) * (2 grid - 1) + (dx + grid - 1).
    """
    row, column = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    place = torch.stack([row.flatten(), column.flatten()], dim=1)  # [P, 2]
    distance = place[:, None] - place[None, :] + grid - 1  # [P, P, 2], >= 0
    index = torch.empty(1 + grid * grid, 1 + grid * grid, dtype=torch.long)
    index[1:, 1:] = distance[..., 0] * (2 * grid - 1) + distance[..., 1]
    index[0, 1:] = first_class_entry
    index[1:, 0] = first_class_entry + 1
    index[0, 0] = first_class_entry + 2
    return index


def window_of(table: Tensor, where: str) -> int:
    """The grid of a bias table [(2 grid - 1)^2 + 3, heads]; `where` names the table in errors."""
    side = isqrt(max(0, len(table) - CLASS_ENTRIES))
    if side * side + CLASS_ENTRIES != len(table) or side % 2 == 0:
        raise CheckpointError(f"{where}: a table of {len(table)} entries is not a position bias of a square grid")
    return (side + 1) // 2


def stretched(table: Tensor, grid: int) -> Tensor:
    """The table of a larger grid, [(2 grid - 1)^2 + 3, heads].

    Interpolated as in the reference: linearly, over all entries of a head as one signal (rows, columns and class
    entries alike), with a tenth of an entry added to the length (2,212.1 / 732 from 14 x 14 to 24 x 24).
    """
    size = (2 * grid - 1) ** 2 + CLASS_ENTRIES
    return interpolate(table.T[None], scale_factor=(size + 0.1) / len(table), mode="linear")[0, :, :size].T


def position_bias(table: Tensor, index: Tensor) -> Tensor:
    """Bias of every pair of positions, [heads, N, N], from a table [entries, heads] and an index [N, N]."""
    return table[index].permute(2, 0, 1)


class PositionBias(nn.Module):
    """The learned table of one layer, applied to any grid.

    On a smaller grid than the table's, it uses the top-left block of the table's own bias (as the reference does for
    images of half the resolution). On a larger one it uses the stretched table, in which the class token keeps the
    places of its entries before stretching.
    """

    def __init__(self, window: int, heads: int):
        super().__init__()
        self.window = window
        entries = (2 * window - 1) ** 2 + CLASS_ENTRIES
        self.relative_position_bias_table = nn.Parameter(torch.zeros(entries, heads))

    def forward(self, index: Tensor, grid: int) -> Tensor:
        """[heads, N, N] with N = 1 + grid^2; `index` is of the table's own grid or of the larger one."""
        table = self.relative_position_bias_table
        if grid > self.window:
            return position_bias(stretched(table, grid), index)
        size = 1 + grid * grid
        return position_bias(table, index[:size, :size])


class BeitLayer(nn.Module):
    """Pre-LayerNorm attention and MLP, each scaled per channel; its parts have the names in checkpoints."""

    def __init__(self, width: int, heads: int, inner: int, window: int):
        super().__init__()
        self.heads = heads
        self.lambda_1, self.lambda_2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.layernorm_before = nn.LayerNorm(width, eps=EPS)
        attention = nn.ModuleDict(
            {
                "query": nn.Linear(width, width),
                "key": nn.Linear(width, width, bias=False),
                "value": nn.Linear(width, width),
                "relative_position_bias": PositionBias(window, heads),
            }
        )
        self.attention: Any = nn.ModuleDict(
            {"attention": attention, "output": nn.ModuleDict({"dense": nn.Linear(width, width)})}
        )
        self.layernorm_after = nn.LayerNorm(width, eps=EPS)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = nn.ModuleDict({"dense": nn.Linear(inner, width)})

    def attend(self, x: Tensor, index: Tensor, grid: int) -> Tensor:  # [B, N, D]
        """Multi-head attention with the position bias added to its logits."""
        part = self.attention["attention"]
        query, key, value = (
            part[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for name in ("query", "key", "value")
        )  # [B, heads, N, D / heads]
        bias = part["relative_position_bias"](index, grid)[None].to(query.dtype)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=bias)
        attended: Tensor = self.attention["output"]["dense"](mixed.transpose(1, 2).flatten(2))
        return attended

    def forward(self, x: Tensor, index: Tensor, grid: int) -> Tensor:  # [B, N, D]
        """States of the next layer [B, N, D]."""
        x = x + self.lambda_1 * self.attend(self.layernorm_before(x), index, grid)
        inner = gelu(self.intermediate["dense"](self.layernorm_after(x)))
        return x + self.lambda_2 * self.output["dense"](inner)


class Beit(nn.Module):
    """Images to the states of the class token and of all patches."""

    def __init__(self, width: int, layers: int, heads: int, inner: int, patch_size: int, window: int, resolution: int):
        super().__init__()
        if resolution % patch_size or resolution <= 0:
            raise UsageError(f"resolution {resolution}: expected a multiple of the patches' {patch_size} pixels")
        self.resolution, self.heads, self.grid = resolution, heads, resolution // patch_size
        self.embeddings: Any = nn.Module()
        self.embeddings.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.embeddings.patch_embeddings = nn.ModuleDict(
            {"projection": nn.Conv2d(3, width, patch_size, stride=patch_size)}
        )
        self.encoder: Any = nn.ModuleDict(
            {"layer": nn.ModuleList(BeitLayer(width, heads, inner, window) for _ in range(layers))}
        )
        # As in the reference, the class entries keep their places in a stretched table.
        first_class_entry = (2 * window - 1) ** 2
        self.register_buffer("index", pair_index(max(self.grid, window), first_class_entry), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:  # [B, 3, R, R]
        """States [B, 1 + P, D], the class token first."""
        patches = self.embeddings.patch_embeddings["projection"](pixels).flatten(2).transpose(1, 2)
        first = self.embeddings.cls_token.expand(len(patches), -1, -1)
        x = torch.cat([first, patches], dim=1)
        for layer in self.encoder["layer"]:
            x = layer(x, self.index, self.grid)
        return x
