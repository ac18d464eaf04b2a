"""What a pair reads at one step and what its sides compute of it; and the stores of tokenised texts, for any pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.encoders.parts.tokens import TokenColumns

# Token ids and token types of a text.
Tokenised = tuple[list[int], list[int]]


def add_types(rows: Iterable[list[int]]) -> list[Tokenised]:
    """Token ids with the types of texts that have one part."""
    return [(ids, [0] * len(ids)) for ids in rows]


class ImageBatch(NamedTuple):
    """Images as a side reads them.

    Attributes:
        values: float32, pixels [B, 3, R, R]; or what a frozen network made of them, cells [B, 1 + grid^2, D].
    """

    values: Tensor

    @property
    def computed(self) -> bool:
        """Whether the values are cells."""
        return self.values.dim() == 3


class OwnImages(ImageBatch):
    """The rows of this process alone, of a batch that several processes share."""


class TextBatch(NamedTuple):
    """Texts as a side reads them.

    Attributes:
        ids, attention: int64 [B, L].
        bag: bool [B, V], the dimensions of the texts' own tokens.
        states: float32 [B, L, D], the states of a frozen network; None where they are not stored.
        types: int64 [B, L], 1 in the second part of a pair of texts; None where texts have one part.
    """

    ids: Tensor
    attention: Tensor
    bag: Tensor
    states: Tensor | None = None
    types: Tensor | None = None


class Details(NamedTuple):
    """What a side computes of its inputs.

    Attributes:
        vectors: [B, V] or [B, D], before the sparsifier.
        logits: [B, V], before the activation of lexical vectors; None where the side keeps none.
        dense: [B, D], the dense vectors that a side has beside lexical ones; None where it has none.
    """

    vectors: Tensor
    logits: Tensor | None = None
    dense: Tensor | None = None


@dataclass(frozen=True)
class TrainingBatch:
    """Items of the training split: images and, in each round, one caption per image; or queries with passages.

    `Encoded` says what `taught` (one for each round), `named`, `frequency` and `expanded` are.

    Attributes:
        items: int64 [B], positions of the images or queries in the training split.
        documents: the images, of a stream the own rows alone; or the passages, one positive per query, then the hard
            negatives of each query in turn.
        texts: int64 [rounds, B], positions of the captions among all captions, or of the queries.
        rounds: one for each caption that is drawn per image, or the queries; each [B, L], in the order of the items.
        passages: int64 [M], positions of the documents among all passages; None of images.
    """

    items: np.ndarray
    documents: ImageBatch | TextBatch
    texts: np.ndarray
    rounds: tuple[TextBatch, ...]
    passages: np.ndarray | None = None
    taught: tuple[Tensor, ...] | None = None
    named: Tensor | None = None
    frequency: Tensor | None = None
    expanded: bool = True


class AnyBatches(Protocol):
    """The batches of a stage, by step, counted from 0 over all stages: a function of seed and step alone.

    So a resumed run draws the same batches as an uninterrupted run.

    Attributes:
        per_epoch: batches that pass all items of the training split once.
    """

    per_epoch: int

    def __len__(self) -> int:
        """The number of items of the training split."""
        ...

    def __getitem__(self, step: int) -> TrainingBatch: ...


def split_positions(count: int, size: int) -> list[np.ndarray]:
    """The positions 0 to `count` - 1 in parts of at most `size`, int64."""
    return np.split(np.arange(count), range(size, count, size))


def pad_rows(values: np.ndarray, first: np.ndarray, rows: np.ndarray, fill: float = 0) -> np.ndarray:
    """Some rows [B, L, ...] of values that lie one row after the other, padded to the longest of them.

    Row i has the values first[i] to first[i + 1] - 1.
    """
    lengths = first[rows + 1] - first[rows]
    padded = np.full((len(rows), max(1, int(lengths.max())), *values.shape[1:]), fill, dtype=values.dtype)
    for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        padded[place, :length] = values[first[row] : first[row] + length]
    return padded


@dataclass(frozen=True)
class StateStore:
    """The states of a frozen network for all texts, float16 (or float32) [tokens of all texts, D], as `TextStore`'s."""

    states: np.ndarray
    first: np.ndarray
    device: torch.device

    def __getitem__(self, texts: np.ndarray) -> Tensor:
        """States [B, L, D] of some texts, padded with zeros to the longest of them."""
        return torch.from_numpy(pad_rows(self.states, self.first, texts)).to(self.device).float()


@dataclass(frozen=True)
class TextStore:
    """Tokenised texts, one after the other.

    Attributes:
        ids: int32 [tokens of all texts].
        first: int64 [n + 1]: text i has the ids first[i] to first[i + 1] - 1.
        types: int8 [tokens of all texts], 1 in the second part of a pair.
        states: of a frozen network; None where it computes them at each step.
    """

    ids: np.ndarray
    first: np.ndarray
    types: np.ndarray
    columns: TokenColumns
    pad_id: int
    device: torch.device
    states: StateStore | None = None

    @classmethod
    def make(
        cls, rows: Sequence[Tokenised], columns: TokenColumns, pad_id: int, device: torch.device | None = None
    ) -> TextStore:
        """A store of texts, on the CPU unless a device is named."""
        first = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in rows], dtype=np.int64)])
        ids = np.fromiter((token for ids, _ in rows for token in ids), dtype=np.int32, count=int(first[-1]))
        types = np.fromiter((kind for _, types in rows for kind in types), dtype=np.int8, count=int(first[-1]))
        return cls(ids, first, types, columns, pad_id, device or torch.device("cpu"))

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each text, int64 [n]."""
        return np.diff(self.first)

    def read_batch(self, texts: np.ndarray) -> TextBatch:
        """The texts at some positions [B] as one batch, padded to the longest of them."""
        ids = pad_rows(self.ids, self.first, texts, self.pad_id).astype(np.int64)
        types = pad_rows(self.types, self.first, texts).astype(np.int64)
        attention = np.arange(ids.shape[1]) < self.lengths[texts][:, None]
        bag = np.zeros((len(ids), len(self.columns.vocabulary) + 1), dtype=bool)
        # -1 is the last column, which the batch drops.
        np.put_along_axis(bag, np.where(attention, self.columns.of_token[ids], -1), True, axis=1)
        parts = (
            torch.from_numpy(part).to(self.device) for part in (ids, attention.astype(np.int64), bag[:, :-1], types)
        )
        token_ids, mask, own, kinds = parts
        return TextBatch(token_ids, mask, own, None if self.states is None else self.states[texts], kinds)
