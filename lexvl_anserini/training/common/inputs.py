"""What the two sides of a pair read at one step, and what they compute of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor


class ImageBatch(NamedTuple):
    """Images as a side reads them.

    values  float32, pixels [B, 3, R, R]; or what a frozen network made of them, cells [B, 1 + grid^2, D]
    """

    values: Tensor

    @property
    def computed(self) -> bool:
        """Whether the values are cells."""
        return self.values.dim() == 3


class TextBatch(NamedTuple):
    """Texts as a side reads them.

    ids, attention  int64 [B, L]
    bag             bool [B, V], the dimensions of the texts' own tokens
    states          float32 [B, L, D], the states of a frozen network; None where they are not stored
    types           int64 [B, L], 1 in the second part of a pair of texts; None where texts have one part
    """

    ids: Tensor
    attention: Tensor
    bag: Tensor
    states: Tensor | None = None
    types: Tensor | None = None


class Details(NamedTuple):
    """What a side computes of its inputs.

    vectors  [B, V] or [B, D], before the sparsifier
    logits   [B, V], before the activation of lexical vectors; None where the side keeps none
    dense    [B, D], the dense vectors that a side has beside lexical ones; None where it has none
    """

    vectors: Tensor
    logits: Tensor | None = None
    dense: Tensor | None = None


@dataclass(frozen=True)
class Tokens:
    """Token ids of captions, padded to the longest caption.

    ids       int64 [n captions, L]
    lengths   int64 [n captions], special tokens included
    first     int64 [n images + 1]: image i has the captions first[i] to first[i + 1] - 1
    """

    ids: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
