"""Towers and encoders: what turns texts into lexical or dense vectors, whatever the model.

An encoder has two towers, `query` and `document`; a tower is one composition. Three kinds exist:
"impact" (lexical vectors for an inverted index), "dense" (for FAISS) and "text" (plain text for BM25).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from lexvl_anserini.encoders.activations import Activation
from lexvl_anserini.encoders.pooling import Pooling, Projector
from lexvl_anserini.encoders.sparsify import Sparsifier, kept
from lexvl_anserini.encoders.tokens import Columns, TextReader
from lexvl_anserini.errors import CheckpointError, LexvlError, UsageError
from lexvl_anserini.records import Document, Topic
from lexvl_anserini.vocabulary import Vocabulary

Progress = Callable[[int], None]


def silent(_: int) -> None:
    """The progress callback that tells nobody."""


class Backbone(Protocol):
    """Maps token ids [B, L] and a 0/1 attention mask [B, L] to hidden states [B, L, D]."""

    def __call__(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Hidden states [B, L, D]."""
        ...


@dataclass(frozen=True)
class Head:
    """hidden [B, L, D] -> logit [B, L, V]: a transform, then a projection on the vocabulary.

    transform  [B, L, D] -> [B, L, D']
    matrix     [V, D'], often the (tied) input embeddings
    bias       [V] or None
    """

    transform: Callable[[Tensor], Tensor]
    matrix: Tensor
    bias: Tensor | None = None


def read_document(document: Document, joiner: str = " ") -> str:
    """Title and text of a document, joined.

    Raises:
        UsageError: the document has neither (it may be an image).
    """
    if document.title is None and document.text is None:
        raise UsageError(f"document {document.doc_id!r} has no text; this encoder reads texts only")
    return joiner.join(part for part in (document.title, document.text) if part)


def read_topic(topic: Topic) -> str:
    """The text of a topic.

    Raises:
        UsageError: the topic has none (it may be an image).
    """
    if topic.text is None:
        raise UsageError(f"topic {topic.query_id!r} has no text; this encoder reads texts only")
    return topic.text


def pad(ids: Sequence[Sequence[int]], length: int, pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, both int64 [B, length]."""
    input_ids = np.full((len(ids), length), pad_id, dtype=np.int64)
    attention = np.zeros((len(ids), length), dtype=np.int64)
    for row, tokens in enumerate(ids):
        input_ids[row, : len(tokens)] = tokens
        attention[row, : len(tokens)] = 1
    return torch.from_numpy(input_ids).to(device), torch.from_numpy(attention).to(device)


def csr_rows(rows: Sequence[np.ndarray], width: int) -> sparse.csr_matrix:
    """Binary CSR [n, width] float32 from the ascending dimensions of each row."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    indices = np.concatenate(rows) if rows else np.empty(0)
    data = np.ones(len(indices), dtype=np.float32)
    return sparse.csr_matrix((data, indices.astype(np.int32), indptr), shape=(len(rows), width))


class BagTower:
    """Binary bag of a text's own tokens: no network (SVDR's non-parametric side, SPLADE-doc queries).

    weight     [V], when given, replaces the ones (inference-free queries with IDF weights)
    normalise  divide by the L2 norm (VDR checkpoints with `norm: true`)
    topk       keep the largest weights only; None keeps all
    """

    kind = "impact"

    def __init__(
        self,
        reader: TextReader,
        columns: Columns,
        weight: np.ndarray | None = None,
        joiner: str = " ",
        normalise: bool = False,
        topk: int | None = None,
    ):
        self.reader, self.columns, self.joiner, self.normalise, self.topk = reader, columns, joiner, normalise, topk
        self.weight = None if weight is None else weight.astype(np.float32)

    @property
    def binary(self) -> bool:
        """True if all weights are 1, so that quantising must not scale them."""
        return not self.normalise and (self.weight is None or bool((self.weight == 1).all()))

    @property
    def vocabulary(self) -> Vocabulary:
        """Maps a column of `weights` to its term."""
        return self.columns.vocabulary

    def read(self, document: Document) -> str:
        """The text of a document, as this tower reads it."""
        return read_document(document, self.joiner)

    def weights(self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent) -> sparse.csr_matrix:
        """CSR [n, V] float32, > 0, dimensions ascending."""
        rows = self.columns.own(self.reader(inputs))
        matrix = csr_rows(rows, len(self.vocabulary))
        if self.weight is not None:
            matrix.data = self.weight[matrix.indices]
            matrix = without_zeros(matrix)
        if self.topk is not None:
            matrix = largest(matrix, self.topk)
        if self.normalise:
            lengths = np.sqrt(matrix.multiply(matrix).sum(axis=1)).A1
            matrix.data /= np.repeat(lengths, np.diff(matrix.indptr)).astype(np.float32)
        progress(len(inputs))
        return matrix

    def dense_weights(self, inputs: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V]; a bag has no other weights than its own tokens'."""
        return self.weights(inputs, batch_size).toarray()


def without_zeros(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """The same matrix without stored values <= 0."""
    matrix.data[~(matrix.data > 0)] = 0
    matrix.eliminate_zeros()
    return matrix


def largest(matrix: sparse.csr_matrix, k: int) -> sparse.csr_matrix:
    """The k largest weights of each row; among equals the lowest dimensions."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, rows))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - matrix.indptr[rows[order]]
    matrix.data[rank >= k] = 0
    matrix.eliminate_zeros()
    return matrix


@dataclass(frozen=True)
class Composition:
    """backbone x head x activation x pooling x sparsifier: the equation of a lexical tower, as data.

    normalise  L2 norm over the dimensions before the sparsifier (a masked vector is then not of unit length)
    """

    backbone: Backbone
    head: Head
    activation: Activation
    pooling: Pooling
    sparsifier: Sparsifier
    normalise: bool = False


class LexicalTower:
    """Texts to lexical vectors through a composition.

    Texts are batched by length and every vector is computed from its own tokens only, so that order, batch size and
    neighbours do not matter beyond float rounding.
    """

    kind = "impact"
    binary = False

    def __init__(
        self,
        composition: Composition,
        reader: TextReader,
        columns: Columns,
        device: torch.device | str = "cpu",
        joiner: str = " ",
    ):
        self.composition, self.reader, self.columns, self.joiner = composition, reader, columns, joiner
        self.device = torch.device(device)
        self.project = Projector()
        rows = composition.head.matrix.shape[0]
        if rows != len(columns.vocabulary):
            raise CheckpointError(f"the head has {rows} dimensions, the vocabulary {len(columns.vocabulary)} terms")

    @property
    def vocabulary(self) -> Vocabulary:
        """Maps a column of `weights` to its term."""
        return self.columns.vocabulary

    def read(self, document: Document) -> str:
        """The text of a document, as this tower reads it."""
        return read_document(document, self.joiner)

    @torch.inference_mode()
    def batches(self, ids: Sequence[Sequence[int]], batch_size: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yields (positions in `ids` [B], weights before the sparsifier [B, V]), longest texts first.

        The longest batch comes first, so that memory peaks (or runs out) at the start.
        """
        order = np.argsort([-len(row) for row in ids], kind="stable")
        padded = self.reader.padding == "max_length"
        for start in range(0, len(order), batch_size):
            positions = order[start : start + batch_size]
            rows = [ids[i] for i in positions]
            length = self.reader.max_length if padded else max(1, *map(len, rows))
            input_ids, attention = pad(rows, length, self.reader.pad_id, self.device)
            yield (
                positions,
                self.pooled(
                    input_ids,
                    attention,
                    attention == 0 if not padded else torch.zeros_like(attention, dtype=torch.bool),
                ),
            )

    def pooled(self, input_ids: Tensor, attention: Tensor, masked: Tensor) -> Tensor:
        """Weights before the sparsifier, float32 [B, V], from ids [B, L], attention [B, L] and pooling mask [B, L]."""
        composition = self.composition
        hidden = composition.backbone(input_ids, attention)  # [B, L, D]
        features = composition.head.transform(hidden)  # [B, L, D']
        weights = self.project(
            features,
            masked,
            composition.head.matrix,
            composition.head.bias,
            composition.pooling,
            composition.activation,
        )  # [B, V]
        # The reference divides by the norm clamped at 1e-12, as torch.nn.functional.normalize does.
        return torch.nn.functional.normalize(weights, dim=1) if composition.normalise else weights

    @torch.inference_mode()
    def weights(self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent) -> sparse.csr_matrix:
        """CSR [n, V] float32 after the sparsifier: weights > 0, dimensions ascending.

        Raises:
            LexvlError: the model gave a weight that is not a finite number.
        """
        ids = self.reader(inputs)
        own = self.columns.own(ids) if self.composition.sparsifier.needs_own else None
        dims: list[np.ndarray] = [np.empty(0, np.int32)] * len(ids)
        values: list[np.ndarray] = [np.empty(0, np.float32)] * len(ids)
        for positions, weights in self.batches(ids, batch_size):
            if not torch.isfinite(weights).all():
                raise LexvlError(
                    f"the model gave a weight that is not finite for input {inputs[positions[0]][:60]!r} or its batch"
                )
            mask = kept(weights, self.own_mask(own, positions), self.composition.sparsifier)
            where = mask.nonzero()  # [nnz, 2], row-major, hence dimensions ascending within a row
            picked = weights[mask].float().cpu().numpy()
            columns = where[:, 1].to(torch.int32).cpu().numpy()
            bounds = np.searchsorted(where[:, 0].cpu().numpy(), np.arange(1, len(positions)))
            for position, row_dims, row_values in zip(
                positions, np.split(columns, bounds), np.split(picked, bounds), strict=True
            ):
                # Copies, or each short row would keep its whole batch alive.
                dims[position], values[position] = row_dims.copy(), row_values.copy()
            progress(len(positions))
        indptr = np.concatenate([[0], np.cumsum([len(row) for row in dims])])
        shape = (len(ids), len(self.vocabulary))
        if not ids:
            return sparse.csr_matrix(shape, dtype=np.float32)
        return sparse.csr_matrix((np.concatenate(values), np.concatenate(dims), indptr), shape=shape)

    def own_mask(self, own: list[np.ndarray] | None, positions: np.ndarray) -> Tensor | None:
        """Bool [B, V], True at the own tokens of the texts at `positions`."""
        if own is None:
            return None
        mask = torch.zeros(len(positions), len(self.vocabulary), dtype=torch.bool, device=self.device)
        for row, position in enumerate(positions):
            mask[row, torch.from_numpy(own[position])] = True
        return mask

    @torch.inference_mode()
    def dense_weights(self, inputs: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V] before the sparsifier."""
        result = np.empty((len(inputs), len(self.vocabulary)), dtype=np.float32)
        for positions, weights in self.batches(self.reader(inputs), batch_size):
            result[positions] = weights.cpu().numpy()
        return result


@dataclass(frozen=True)
class Encoder:
    """A loaded model: its towers, and what a manifest must say to load it again.

    `query` and `document` are the towers of the chosen direction. Names of sentence-transformers work too:
    `encode_query`, `encode_document`, `decode`.
    """

    name: str
    kind: str
    query: Any
    document: Any
    checkpoint: str | None = None
    checkpoint_digest: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """The manifest's `encoder` entry."""
        return {
            "name": self.name,
            "checkpoint": self.checkpoint,
            "checkpoint_digest": self.checkpoint_digest,
            "options": dict(self.options),
        }

    def encode_query(self, texts: Sequence[str], batch_size: int = 32) -> Any:
        """CSR [n, V] (lexical) or float32 [n, D] (dense) of query texts."""
        return _encode(self.query, texts, batch_size)

    def encode_document(self, texts: Sequence[str], batch_size: int = 32) -> Any:
        """CSR [n, V] (lexical) or float32 [n, D] (dense) of document texts."""
        return _encode(self.document, texts, batch_size)

    def decode(self, vectors: sparse.csr_matrix, top_k: int | None = None) -> list[list[tuple[str, float]]]:
        """Per row, (term, weight) by descending weight, ties by dimension; `top_k` cuts."""
        rows = []
        for row in range(vectors.shape[0]):
            span = slice(vectors.indptr[row], vectors.indptr[row + 1])
            dims, weights = vectors.indices[span], vectors.data[span]
            order = np.lexsort((dims, -weights))[:top_k]
            rows.append([(self.document.vocabulary[int(dims[i])], float(weights[i])) for i in order])
        return rows


def _encode(tower: Any, texts: Sequence[str], batch_size: int) -> Any:
    if tower.kind == "impact":
        return tower.weights(texts, batch_size)
    if tower.kind == "dense":
        return tower.vectors(texts, batch_size)
    raise UsageError("bm25 has no vectors: Lucene analyses its texts itself")


def choose_device(device: str) -> torch.device:
    """`auto` is the first CUDA device if there is one, else the CPU.

    Raises:
        UsageError: the device does not exist here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).cpu()  # also refuses `meta`, which computes nothing
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device {device!r} cannot be used here ({str(error).splitlines()[0]}); try --device cpu"
        ) from error
    return chosen
