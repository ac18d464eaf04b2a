"""Towers: one side of an encoder, from items to vectors: over the vocabulary (lexical), or one per item (dense).

A lexical tower is a composition of parts: hidden states -> logits of all positions -> one activation per dimension of
the vocabulary. Activations are monotone and >= 0, so a maximum may be taken before them. A pooling sees one slice of C
dimensions at a time, so that [B, L, V] never exists at once.

A dense tower is composed of its items, which read documents and topics and build forward passes, and of a function that
embeds one forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from lexvl_anserini.encoders.encoder import InputReader, Kind, ReadsTexts, Tower
from lexvl_anserini.encoders.parts.batches import collate_texts
from lexvl_anserini.encoders.parts.sparsify import Sparsifier, as_csr, check_dimensions, cut, join_rows, mark_kept
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns
from lexvl_anserini.ground.errors import FAIL, CheckpointError, LexvlError, OnError
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import Document, Topic, Vocabulary

Activation = Callable[[Tensor], Tensor]


def log1p_relu(logit: Tensor) -> Tensor:
    """log(1 + max(0, x)): SPLADE, STAIR, LexLIP, D2S."""
    return torch.log1p(torch.relu(logit))


def log1p_log1p_relu(logit: Tensor) -> Tensor:
    """log(1 + log(1 + max(0, x))): the `log1p_relu` pooling option of sentence-transformers, flatter than SPLADE's."""
    return torch.log1p(log1p_relu(logit))


def elu1p(logit: Tensor) -> Tensor:
    """X + 1 for x > 0, exp(x) otherwise (VDR, section 3), as ELU(x) + 1: very negative logits give exact zeros."""
    return torch.nn.functional.elu(logit) + 1.0


def compute_decay(first: float, decay: float, periods: float, least: float) -> float:
    """The temperature of an activation (FDT) after a number of periods: max(first decay^periods, least)."""
    return float(max(first * decay**periods, least))


# (logits [B, L, C], which it may overwrite; flat indices of masked positions [P]; activation) -> [B, C]
Pooling = Callable[[Tensor, Tensor, Activation], Tensor]

# Maps token ids and attention mask, both [B, L], or pixels [B, 3, R, R] to hidden states [B, L, D].
Backbone = Callable[..., Tensor]


@dataclass(frozen=True)
class Head:
    """hidden [B, L, D] -> logit [B, L, V]: a transform to [B, L, D'], then `matrix` [V, D'] and `bias` [V]."""

    transform: Callable[[Tensor], Tensor]
    matrix: Tensor
    bias: Tensor | None = None


# Floats of the buffer for a slice of the logits: 32 MiB, about the size of a processor's cache.
BUFFER_FLOATS = 8 << 20


def pool_max(logits: Tensor, masked: Tensor, activation: Activation) -> Tensor:
    """max_i activation(logit_i) over unmasked positions; a monotone activation is applied once, after the maximum."""
    logits.view(-1, logits.shape[-1]).index_fill_(0, masked, -torch.inf)
    return activation(logits.amax(dim=1))


def pool_sum(logits: Tensor, masked: Tensor, activation: Activation) -> Tensor:
    """sum_i activation(logit_i) over unmasked positions (SPLADE v1)."""
    activations = activation(logits)
    activations.view(-1, logits.shape[-1]).index_fill_(0, masked, 0.0)
    return activations.sum(dim=1)


def pool_top_mean(logits: Tensor, masked: Tensor, activation: Activation, n: int) -> Tensor:
    """Mean of the n largest activations over unmasked positions, of all if they are fewer (VDR's `pooling: mean`)."""
    logits.view(-1, logits.shape[-1]).index_fill_(0, masked, -torch.inf)
    top = logits.topk(min(n, logits.shape[1]), dim=1).values  # [B, n, C]
    present = torch.isfinite(top)
    return (activation(top) * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)


def pool_last(logits: Tensor, masked: Tensor, activation: Activation) -> Tensor:
    """activation(logit) at the last unmasked position, which a causal model lets see the whole text (UEmbed's form)."""
    batch, length, _ = logits.shape
    seen = torch.ones(batch * length, device=logits.device).index_fill_(0, masked, 0.0).view(batch, length)
    last = logits[torch.arange(batch, device=logits.device), (seen * seen.cumsum(dim=1)).argmax(dim=1)]  # [B, C]
    return activation(last.masked_fill(seen.amax(dim=1, keepdim=True) == 0, -torch.inf))


POOLINGS: Mapping[str, Pooling] = {"max": pool_max, "sum": pool_sum, "last": pool_last}


class Projector:
    """Projects hidden states on the vocabulary and pools, slice by slice through a reused buffer.

    A new [L, V] per text would fragment the heap and keep memory at its peak; a kept buffer does not. A call takes a
    buffer that no other call has, so there are as many as threads that have ever been here at once.
    """

    def __init__(self) -> None:
        self.idle: list[Tensor] = []  # its `append` and `pop` are atomic

    def __call__(
        self,
        features: Tensor,  # [B, L, D]
        masked: Tensor | None,  # bool [B, L], True at positions that are left out
        matrix: Tensor,  # [V, D]
        bias: Tensor | None,  # [V]
        pooling: Pooling,
        activation: Activation,
    ) -> Tensor:  # [B, V]
        """activation(pooling over positions of <features, matrix_v> + bias_v)."""
        batch, length, width = features.shape
        # Under autocast the features may have another type than the matrix; the type of the matrix is used.
        rows = features.reshape(batch * length, width).to(matrix.dtype)
        nowhere = torch.empty(0, dtype=torch.long, device=rows.device)
        masked_rows = nowhere if masked is None else masked.reshape(-1).nonzero().squeeze(1)  # [P]
        size = matrix.shape[0]
        columns = max(1, min(size, BUFFER_FLOATS // (batch * length)))
        buffer = self._take(rows.shape[0] * columns, rows)
        pooled = torch.empty(batch, size, dtype=torch.float32, device=rows.device)  # [B, V]
        for start in range(0, size, columns):
            stop = min(start + columns, size)
            logits = buffer[: rows.shape[0] * (stop - start)].view(rows.shape[0], stop - start)  # [B*L, C]
            torch.mm(rows, matrix[start:stop].T, out=logits)
            if bias is not None:
                logits += bias[start:stop]
            pooled[:, start:stop] = pooling(logits.view(batch, length, stop - start), masked_rows, activation)
        self.idle.append(buffer)
        return pooled

    def _take(self, floats: int, like: Tensor) -> Tensor:
        """An idle buffer if it fits, else a new one in its place."""
        try:
            buffer = self.idle.pop()
        except IndexError:
            buffer = torch.empty(0)
        if buffer.numel() < floats or buffer.device != like.device or buffer.dtype != like.dtype:
            buffer = torch.empty(max(BUFFER_FLOATS, floats), dtype=like.dtype, device=like.device)
        return buffer


@dataclass(frozen=True)
class Composition:
    """backbone x head x activation x pooling x sparsifier: the equation of a lexical tower, as data.

    Attributes:
        normalise: divide by the L2 norm before the sparsifier (a masked vector then has not unit length).
        unit_terms: the number of terms, from the first, that the norm is taken of; None takes all.
    """

    backbone: Backbone
    head: Head
    activation: Activation
    pooling: Pooling
    sparsifier: Sparsifier
    normalise: bool = False
    unit_terms: int | None = None


class Batch(NamedTuple):
    """One forward pass."""

    positions: np.ndarray  # of its items among the inputs of the tower, int64 [B]
    inputs: tuple[Tensor, ...]
    masked: Tensor | None = None  # bool [B, L], True at positions that pooling ignores
    own: list[np.ndarray] | None = None  # of each item its own dimensions, ascending, where the sparsifier needs them


class Items(InputReader, Protocol):
    """Reads the documents and topics of one side, and builds forward passes from its inputs."""

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """The forward passes of `inputs`, each item in exactly one; a skipped image is in none."""
        ...


class LexicalTower(Items):
    """Inputs to lexical vectors through a composition; subclasses define `read`, `read_topic` and `batches`."""

    kind: ClassVar[Kind] = "impact"
    binary: ClassVar[bool] = False

    def __init__(
        self,
        composition: Composition | Callable[[], Composition],
        columns: TokenColumns,
        device: torch.device | str = "cpu",
    ):
        """A composition, or a function that loads it when the tower is first used."""
        self.columns, self.device = columns, torch.device(device)
        self.project = Projector()
        if isinstance(composition, Composition):
            self.composition = self._fitting(composition)
        else:
            self._load = composition

    @cached_property
    def composition(self) -> Composition:
        """The equation."""
        return self._fitting(self._load())

    def _fitting(self, composition: Composition) -> Composition:
        """The composition, after checking that it has the dimensions of the vocabulary."""
        rows, terms = composition.head.matrix.shape[0], len(self.columns.vocabulary)
        if rows != terms:
            raise CheckpointError(f"the head has {rows} dimensions, the vocabulary {terms} terms")
        return composition

    @property
    def vocabulary(self) -> Vocabulary:
        """Maps a column of `weights` to its term."""
        return self.columns.vocabulary

    def pool_batch(self, inputs: tuple[Tensor, ...], masked: Tensor | None) -> Tensor:
        """Weights before the sparsifier, float32 [B, V], from the backbone's inputs and the pooling mask [B, L]."""
        composition = self.composition
        hidden = composition.backbone(*inputs)  # [B, L, D]
        features = composition.head.transform(hidden)  # [B, L, D']
        head, pooling, activation = composition.head, composition.pooling, composition.activation
        weights = self.project(features, masked, head.matrix, head.bias, pooling, activation)  # [B, V]
        if not composition.normalise:
            return weights
        # As in the reference, the norm is clamped at 1e-12.
        return weights / weights[:, : composition.unit_terms].norm(dim=1, keepdim=True).clamp(min=1e-12)

    @torch.inference_mode()
    def weights(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """CSR [n, V] float32 after the sparsifier: weights > 0, dimensions ascending."""
        dims: list[np.ndarray] = [np.empty(0, np.int32)] * len(inputs)
        values: list[np.ndarray] = [np.empty(0, np.float32)] * len(inputs)
        for batch in self.batches(inputs, batch_size, on_error):
            positions = batch.positions
            weights = self.pool_batch(batch.inputs, batch.masked)
            if not torch.isfinite(weights).all():
                first = str(inputs[positions[0]])[:60]
                raise LexvlError(f"the model gave a weight that is not finite for input {first!r} or its batch")
            mask = mark_kept(weights, self.own_mask(batch.own), self.composition.sparsifier)
            where = mask.nonzero()  # [nnz, 2], row-major, hence dimensions ascending within a row
            picked = weights[mask].float().cpu().numpy()
            columns = where[:, 1].to(torch.int32).cpu().numpy()
            bounds = np.searchsorted(where[:, 0].cpu().numpy(), np.arange(1, len(positions)))
            for position, row_dims, row_values in zip(
                positions, np.split(columns, bounds), np.split(picked, bounds), strict=True
            ):
                # Copies, because a view of a short row would keep its whole batch in memory.
                dims[position], values[position] = row_dims.copy(), row_values.copy()
            progress(len(positions))
        return as_csr(join_rows(dims, values, len(self.vocabulary)))

    def own_mask(self, own: list[np.ndarray] | None) -> Tensor | None:
        """Bool [B, V], True at the own tokens of each item of a batch."""
        if own is None:
            return None
        mask = torch.zeros(len(own), len(self.vocabulary), dtype=torch.bool, device=self.device)
        for row, dims in enumerate(own):
            mask[row, torch.from_numpy(dims)] = True
        return mask

    @torch.inference_mode()
    def dense_weights(self, inputs: Sequence[Any], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V] before the sparsifier."""
        result = np.empty((len(inputs), len(self.vocabulary)), dtype=np.float32)
        for batch in self.batches(inputs, batch_size):
            result[batch.positions] = self.pool_batch(batch.inputs, batch.masked).cpu().numpy()
        return result


class TextTower(ReadsTexts, LexicalTower):
    """Texts to lexical vectors, in batches by length."""

    def __init__(
        self,
        composition: Composition,
        reader: TextReader,
        columns: TokenColumns,
        device: torch.device | str = "cpu",
        joiner: str = " ",
    ):
        super().__init__(composition, columns, device)
        self.reader, self.joiner = reader, joiner

    def knows(self, text: str) -> bool:
        """Whether a token of the text is a term, so that more than associations finds documents."""
        return len(self.columns.own(self.reader([text]))[0]) > 0

    def batches(self, inputs: Sequence[str], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """The longest texts come first (see `by_length`)."""
        for positions, rows, padded in collate_tokens(self.reader, inputs, batch_size, self.device):
            masked = None if self.reader.padding == "max_length" else padded[1] == 0
            own = self.columns.own(rows) if self.composition.sparsifier.needs_own else None
            yield Batch(positions, padded, masked, own)


def collate_tokens(
    reader: TextReader, texts: Sequence[str], batch_size: int, device: torch.device
) -> Iterator[tuple[np.ndarray, list[list[int]], tuple[Tensor, Tensor]]]:
    """As `collate_texts`, with ids and attention mask as tensors on the device."""
    for positions, rows, arrays in collate_texts(reader, texts, batch_size, device.type == "cpu"):
        ids, attention = (torch.from_numpy(array).to(device) for array in arrays)
        yield positions, rows, (ids, attention)


@dataclass(frozen=True)
class Texts(ReadsTexts, Items):
    """Texts, tokenised and batched by length, the longest first; the inputs are token ids and attention [B, L]."""

    reader: TextReader
    device: torch.device

    def batches(self, inputs: Sequence[str], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """Token ids and attention mask, both int64 [B, L]."""
        for positions, _, padded in collate_tokens(self.reader, inputs, batch_size, self.device):
            yield Batch(positions, padded)


class ReadsItems:
    """What a tower reads of documents and topics: what its items do."""

    items: Items

    def read(self, document: Document) -> str:
        """The input that a document gives."""
        return self.items.read(document)

    def read_topic(self, topic: Topic) -> str:
        """The input that a topic gives."""
        return self.items.read_topic(topic)


@dataclass(frozen=True)
class DenseTower(ReadsItems):
    """One side of a dense encoder; a vector depends on its own item only."""

    items: Items
    embed: Callable[[Batch], Tensor]  # one forward pass -> features [B, width]
    width: int
    normalise: bool = True  # vectors have unit length: their inner product is the cosine
    dimensions: int | None = None  # keep only the first ones, before normalising

    kind: ClassVar[Kind] = "dense"

    def __post_init__(self) -> None:
        check_dimensions(self.dimensions, self.width)

    @torch.inference_mode()
    def features(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> np.ndarray:
        """float32 [n, width] as the model computes them, neither cut nor normalised."""
        result = np.zeros((len(inputs), self.width), dtype=np.float32)
        for batch in self.items.batches(inputs, batch_size, on_error):
            embedded = self.embed(batch).float().cpu().numpy()  # [B, width]
            if not np.isfinite(embedded).all():
                first = str(inputs[batch.positions[0]])[:60]
                raise LexvlError(f"the model gave a vector that is not finite for input {first!r} or its batch")
            result[batch.positions] = embedded
            progress(len(batch.positions))
        return result

    def vectors(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> np.ndarray:
        """float32 [n, D]; the inner product of two vectors is the model's own similarity."""
        return cut(self.features(inputs, batch_size, progress, on_error), self.dimensions, self.normalise)


T = TypeVar("T")

# The tower of one side, from the number of dimensions that it keeps per vector; None leaves the choice to the tower.
TowerOf = Callable[[int | None], Tower]

Direction = Literal["text-to-image", "image-to-text", "text-to-text"]


def in_direction(direction: Direction, text: T, image: T) -> tuple[T, T]:
    """The query side and the document side of a direction, from what encodes texts and what encodes images.

    >>> in_direction("image-to-text", "caption tower", "image tower")
    ('image tower', 'caption tower')
    """
    sides = {"text": text, "image": image}
    query, _, document = direction.partition("-to-")
    return sides[query], sides[document]


def with_topk(sides: tuple[TowerOf, TowerOf], topk: int | None, query_topk: int | None) -> tuple[Tower, Tower]:
    """Query and document tower."""
    query, document = sides
    return query(topk if query_topk is None else query_topk), document(topk)
