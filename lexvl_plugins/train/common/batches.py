"""What a pair reads at one step and what its sides compute of it; and the store of tokenised texts, for any pair."""

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


def of_one_part(rows: Iterable[list[int]]) -> list[Tokenised]:
    """Token ids with the types of texts that have one part."""
    return [(ids, [0] * len(ids)) for ids in rows]


class ImageBatch(NamedTuple):
    """Images as a side reads them.

    values  float32, pixels [B, 3, R, R]; or what a frozen network made of them, cells [B, 1 + grid^2, D]
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
class TrainingBatch:
    """Items of the training split: images and, in each round, one caption per image; or queries with passages.

    items      int64 [B], positions of the images or queries in the training split
    documents  the images, of a stream the own rows alone; or the passages, one positive per query, then the hard
               negatives of each query in turn
    texts      int64 [rounds, B], positions of the captions among all captions, or of the queries
    rounds     one for each caption that is drawn per image, or the queries; each [B, L], in the order of the items
    passages   int64 [M], positions of the documents among all passages; None of images
    taught     by round, a teacher's scores of the documents for each text, float32 [B, M]; None without a teacher
    named      float32 [B, V], the share of each image's captions that contain a term; None without `naming`
    frequency  float32 [V], the mean of `named` over the training split; None without `naming`
    expanded   False: the texts of this batch keep only their own tokens (see `Expansion`)
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
    """The batches of a stage: a resumed run draws the same batches as an uninterrupted run.

    per_epoch  batches that pass all items of the training split once
    """

    per_epoch: int

    def __len__(self) -> int:
        """The number of items of the training split."""
        ...

    def __getitem__(self, step: int) -> TrainingBatch:
        """The batch of a step, counted from 0 over all stages; a function of seed and step alone."""
        ...


@dataclass(frozen=True)
class StateStore:
    """The states of a frozen network for all texts, one after the other.

    states  float16 (or float32) [tokens of all texts, D]
    first   int64 [texts + 1]: text i has the states first[i] to first[i + 1] - 1
    device  of the batches
    """

    states: np.ndarray
    first: np.ndarray
    device: torch.device

    def __getitem__(self, texts: np.ndarray) -> Tensor:
        """States [B, L, D] of some texts, padded with zeros to the longest of them."""
        lengths = self.first[texts + 1] - self.first[texts]
        padded = np.zeros((len(texts), int(lengths.max()), self.states.shape[1]), dtype=self.states.dtype)
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            padded[row, :length] = self.states[self.first[text] : self.first[text] + length]
        return torch.from_numpy(padded).to(self.device).float()


@dataclass(frozen=True)
class TextStore:
    """Tokenised texts, one after the other.

    ids      int32 [tokens of all texts]
    first    int64 [n + 1]: text i has the ids first[i] to first[i + 1] - 1
    types    int8 [tokens of all texts], 1 in the second part of a pair
    columns  the dimension of each token
    pad_id   of the tokenizer
    device   of the batches
    states   of a frozen network; None where it computes them at each step
    """

    ids: np.ndarray
    first: np.ndarray
    types: np.ndarray
    columns: TokenColumns
    pad_id: int
    device: torch.device
    states: StateStore | None = None

    @classmethod
    def of(
        cls,
        rows: Sequence[Tokenised],
        columns: TokenColumns,
        pad_id: int,
        device: torch.device = torch.device("cpu"),  # noqa: B008 (immutable)
    ) -> TextStore:
        """Texts as pairs of token ids and token types."""
        first = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in rows], dtype=np.int64)])
        ids = np.fromiter((token for ids, _ in rows for token in ids), dtype=np.int32, count=int(first[-1]))
        types = np.fromiter((kind for _, types in rows for kind in types), dtype=np.int8, count=int(first[-1]))
        return cls(ids, first, types, columns, pad_id, device)

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each text, int64 [n]."""
        return np.diff(self.first)

    def batch(self, texts: np.ndarray) -> TextBatch:
        """The texts at some positions [B] as one batch, padded to the longest of them."""
        lengths = self.first[texts + 1] - self.first[texts]
        ids = np.full((len(texts), max(1, int(lengths.max()))), self.pad_id, dtype=np.int64)
        types, dimensions = np.zeros_like(ids), np.full_like(ids, -1)
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            tokens = slice(self.first[text], self.first[text] + length)
            ids[row, :length], types[row, :length] = self.ids[tokens], self.types[tokens]
            dimensions[row, :length] = self.columns.of_token[self.ids[tokens]]
        attention = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        bag = np.zeros((len(ids), len(self.columns.vocabulary) + 1), dtype=bool)
        np.put_along_axis(bag, dimensions, True, axis=1)  # -1 is the last column, which the batch drops
        token_ids, mask, own, kinds = (
            torch.from_numpy(part).to(self.device) for part in (ids, attention, bag[:, :-1], types)
        )
        return TextBatch(token_ids, mask, own, None if self.states is None else self.states[texts], kinds)
