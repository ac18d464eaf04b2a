"""A pair of towers in training: what it reads at a step, its two sides, its temperatures, what a stage lets change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.parts.sparsify import mark_top
from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.encoders.parts.towers import Head
from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.train.model_settings import ImagePairSettings
from lexvl_plugins.train.recipe import StageSettings


class Temperatures(NamedTuple):
    """What divides scores: those of vectors, and those of bags of words where a stage learns one of their own."""

    scores: Tensor
    bags: Tensor | None = None


class DetailedSide(nn.Module):
    """A side that computes more than vectors."""

    def compute(self, batch: Any) -> Details:
        """All that the side computes of a batch."""
        raise NotImplementedError

    def forward(self, batch: Any) -> Tensor:
        """Vectors before the sparsifier, [B, V]."""
        return self.compute(batch).vectors


class TrainingPart(nn.Module):
    """Computes more of a batch; a stage with its objective calls `start` first, and `settle` after each step."""

    def start(self, pair: Any, stage: StageSettings) -> None:
        """Prepares for a stage."""
        raise NotImplementedError

    def compute_fields(self, pair: Any, batch: TrainingBatch, documents: Details) -> Sequence[dict[str, Any]]:
        """By round of the batch, fields of `Encoded` that the objective reads."""
        raise NotImplementedError

    def settle(self, pair: Any) -> None:
        """Follows a step of the optimiser."""


class TowerPair(nn.Module):
    """`encoder_q` reads queries, `encoder_p` images or passages; temperatures are learned, as logarithms, or constant.

    Where one network reads both queries and passages, both are one module, `encoder_q`. The parts are what only
    training computes, by the name of an objective; those of the stage are active. The limits are of its temperature.
    """

    encoder_p: nn.Module
    limits: tuple[float, float] | None = None
    active: Sequence[TrainingPart] = ()

    def __init__(self, query: nn.Module, document: nn.Module, temperature: float, bags: bool = False):
        super().__init__()
        self.encoder_q = query
        if document is not query:
            self.encoder_p = document
        self.log_temperature = nn.Parameter(torch.tensor(temperature).log())
        self.log_bag_temperature = nn.Parameter(torch.tensor(temperature).log()) if bags else None
        self.parts = nn.ModuleDict()

    def __getattr__(self, name: str) -> Any:
        # A module under two names would have its weights twice in every state.
        return super().__getattr__("encoder_q" if name == "encoder_p" and name not in self._modules else name)

    def start(self, stage: StageSettings) -> None:
        """Lets the weights change that a stage names, and no others."""
        names = [name for name, _ in self.named_parameters()]
        changed = {name for name in names if any(fnmatch(name, pattern) for pattern in stage.trained)}
        if stage.trained and not changed:
            raise UsageError(f"trained {', '.join(stage.trained)}: names no weight; weights are named as {names[0]} is")
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not stage.trained or name in changed)
        self.log_temperature.requires_grad_(stage.objective.learn_temperature)
        if self.log_bag_temperature is not None:
            self.log_bag_temperature.requires_grad_(stage.objective.learn_bag_temperature)
        self.limits = stage.objective.limits
        self.parts.requires_grad_(False)
        self.active = tuple(part for name, part in self.parts.items() if name in stage.names)  # type: ignore[misc]
        for part in self.active:
            part.start(self, stage)
        self.limit_temperature()

    @property
    def temperatures(self) -> Temperatures:
        """The temperatures at this step."""
        bags = self.log_bag_temperature
        return Temperatures(self.log_temperature.exp(), None if bags is None else bags.exp())

    @torch.no_grad()
    def limit_temperature(self) -> None:
        """Puts the temperature back into its limits."""
        if self.limits is not None:
            low, high = self.limits
            self.log_temperature.clamp_(math.log(low), math.log(high))

    @torch.no_grad()
    def settle(self) -> None:
        """Follows a step of the optimiser: limits the temperature, counts the step of a codebook, settles the parts."""
        self.limit_temperature()
        if (codebook := getattr(self.encoder_p, "codebook", None)) is not None:
            codebook.done += 1
        for part in self.active:
            part.settle(self)


def drop_registers(weights: Tensor, model: ImagePairSettings) -> Tensor:
    """Vectors [n, V] as the saved pair's encoder returns them before the sparsifier: [n, words], without registers."""
    return normalize(weights[:, model.registers :], dim=1) if model.family.unit else weights


def sparsify(weights: Tensor, topk: int | None) -> Tensor:
    """Weights [n, V] after the sparsifier: the `topk` largest of each row, or all positive ones."""
    return weights if topk is None else weights * mark_top(weights, topk)


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
    """max_i <features_i, matrix_v>, [B, V], of [B, L, D] and [V, D], without `masked` positions, bool [B, L]."""
    result: Tensor = _ProjectMax.apply(features, matrix, masked)
    return result


def compute_logits(head: Head, states: Tensor, left_out: Tensor | None = None) -> Tensor:
    """The logits of an encoder's head, [B, V], each at its best position: max_i <transform(h_i), E_v> + b_v."""
    logits = project_max(head.transform(states), head.matrix, left_out)
    return logits if head.bias is None else logits + head.bias


# Token ids and token types of a text.
Tokenised = tuple[list[int], list[int]]


def add_types(rows: Iterable[list[int]]) -> list[Tokenised]:
    """Token ids with the types of texts that have one part."""
    return [(ids, [0] * len(ids)) for ids in rows]


class ImageBatch(NamedTuple):
    """Images as a side reads them: pixels [B, 3, R, R], or cells [B, 1 + grid^2, D] of a frozen network, float32."""

    values: Tensor


class OwnImages(ImageBatch):
    """The rows of this process alone, of a batch that several processes share."""


class TextBatch(NamedTuple):
    """Texts as a side reads them: token ids, attention and types, int64 [B, L]; types are 1 in the second of two texts.

    The bag, bool [B, V], has the dimensions of the texts' own tokens; states, float32 [B, L, D], are those of a frozen
    network, where they are stored.
    """

    ids: Tensor
    attention: Tensor
    bag: Tensor
    states: Tensor | None = None
    types: Tensor | None = None


class Details(NamedTuple):
    """What a side computes: vectors before the sparsifier, lexical logits before the activation, and dense vectors.

    Vectors are [B, V] or [B, D], logits [B, V], dense ones [B, D]; None where a side has none.
    """

    vectors: Tensor
    logits: Tensor | None = None
    dense: Tensor | None = None


@dataclass(frozen=True)
class TrainingBatch:
    """Items of the training split: images and, in each round, one caption per image; or queries with passages.

    Documents are the images, of a stream the own rows alone; or the passages, one positive per query, then the hard
    negatives of each query in turn. `items` [B], `texts` [rounds, B] and `passages` [M] are positions in the training
    split, int64. `Encoded` says what `taught` (one for each round), `named`, `frequency` and `expanded` are.
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
    """The batches of a stage by step over all stages, a function of seed and step alone; an epoch has all items."""

    per_epoch: int

    def __len__(self) -> int:
        """The number of items of the training split."""
        ...

    def __getitem__(self, step: int) -> TrainingBatch: ...


def split_positions(count: int, size: int) -> list[np.ndarray]:
    """The positions 0 to `count` - 1 in parts of at most `size`, int64."""
    return np.split(np.arange(count), range(size, count, size))


def pad_rows(values: np.ndarray, first: np.ndarray, rows: np.ndarray, fill: float = 0) -> np.ndarray:
    """Rows [B, L, ...], padded to the longest of them; row i has the values first[i] to first[i + 1] - 1."""
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
    """Tokenised texts, one after the other: text i has the int32 ids and int8 types first[i] to first[i + 1] - 1.

    States are those of a frozen network; None where it computes them at each step.
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
        arrays = (ids, attention.astype(np.int64), bag[:, :-1], types)
        token_ids, mask, own, kinds = (torch.from_numpy(array).to(self.device) for array in arrays)
        return TextBatch(token_ids, mask, own, None if self.states is None else self.states[texts], kinds)
