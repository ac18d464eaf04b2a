"""What the two sides of a pair read at one step."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# The cut of a batch of pixels: nothing of the network is computed yet.
PIXELS = 0


class ImageBatch(NamedTuple):
    """Images as a side reads them.

    values  float32, pixels [B, 3, R, R] or what the first parts of a network made of them
    cut     how many parts of the network that is; a side goes on from there
    """

    values: Tensor
    cut: int = PIXELS


class TextBatch(NamedTuple):
    """Texts as a side reads them.

    ids, attention  int64 [B, L]
    bag             bool [B, V], the dimensions of the texts' own tokens
    states          float32 [B, L, D], the states of a frozen network; None where they are not stored
    """

    ids: Tensor
    attention: Tensor
    bag: Tensor
    states: Tensor | None = None
