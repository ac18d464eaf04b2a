"""Towers whose network is a graph that ONNX Runtime computes on the CPU. Loads neither torch nor transformers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.encoder import Kind, ReadsImages, ReadsTexts, Tower, as_lexical
from lexvl_anserini.encoders.parts import sparsify
from lexvl_anserini.encoders.parts.batches import PassageReader, collate_texts, read_passage
from lexvl_anserini.encoders.parts.images.pixels import Pixels, read_crop_batches
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, UsageError, describe_error
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import CsrRows
from lexvl_anserini.ground.records import Document, Topic, Vocabulary
from lexvl_anserini.ground.registry import require


class GraphBatch(NamedTuple):
    """One run of a graph: the positions of its items among the inputs of the tower, its inputs, and ids of texts."""

    positions: np.ndarray
    inputs: tuple[np.ndarray, ...]
    rows: list[list[int]] | None = None


@dataclass(frozen=True)
class GraphTexts(ReadsTexts):
    """Texts, the longest first."""

    reader: TextReader
    joiner: str = " "

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[GraphBatch]:
        """Token ids and attention."""
        for positions, rows, arrays in collate_texts(self.reader, inputs, batch_size):
            yield GraphBatch(positions, arrays, rows)


@dataclass(frozen=True)
class GraphPassages(ReadsTexts):
    """Pairs of title and text, as DPR reads them, the longest first."""

    passages: PassageReader

    def read(self, document: Document) -> str:
        """The passage of a document."""
        return read_passage(document)

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[GraphBatch]:
        """Token ids, attention and token types."""
        for positions, arrays in self.passages.batches(inputs, batch_size):
            yield GraphBatch(positions, arrays)


@dataclass(frozen=True)
class GraphImages(ReadsImages):
    """Images in their order: paths, `archive.tar::member` or PIL images; the graph normalises their crops."""

    pixels: Pixels

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[GraphBatch]:
        """Crops; a skipped image is in no batch."""
        for positions, crops in read_crop_batches(self.pixels, inputs, batch_size, on_error):
            yield GraphBatch(positions, (crops,))


GraphItems: TypeAlias = GraphTexts | GraphPassages | GraphImages


class Graph:
    """A network in ONNX Runtime; threads may run it at once."""

    def __init__(self, data: bytes, where: str):
        require("onnxruntime")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # As torch does; 0 are all cores.
        threads = os.environ.get("OMP_NUM_THREADS", "")
        options.intra_op_num_threads = int(threads) if threads.isdecimal() else 0
        options.log_severity_level = 3  # warnings are about the graph's own shapes, errors are raised
        try:
            self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common class
            raise CheckpointError(f"{where}: ONNX Runtime cannot load the graph ({describe_error(error)})") from error
        self.names = [node.name for node in self.session.get_inputs()]

    def __call__(self, inputs: tuple[np.ndarray, ...], first: Any) -> np.ndarray:
        """float32 [B, V] or [B, D], from the inputs of the graph; an error names `first`, an input of the tower."""
        [output] = self.session.run(None, dict(zip(self.names, inputs, strict=True)))
        if not np.isfinite(output).all():
            raise LexvlError(f"the model gave a number that is not finite for input {str(first)[:60]!r} or its batch")
        return np.asarray(output)


@dataclass(frozen=True)
class GraphTower:
    """One side of an encoder, whose network is a graph."""

    items: GraphItems
    graph: Graph

    def read(self, document: Document) -> str:
        """The input that a document gives this tower."""
        return self.items.read(document)

    def read_topic(self, topic: Topic) -> str:
        """The input that a topic gives this tower."""
        return self.items.read_topic(topic)

    def run(
        self, inputs: Sequence[Any], batch_size: int, progress: Progress, on_error: OnError
    ) -> Iterator[tuple[GraphBatch, np.ndarray]]:
        """The runs of the graph with their outputs."""
        for batch in self.items.batches(inputs, batch_size, on_error):
            yield batch, self.graph(batch.inputs, inputs[batch.positions[0]])
            progress(len(batch.positions))


def mark_kept_rows(weights: np.ndarray, own: np.ndarray | None, sparsifier: sparsify.Sparsifier) -> np.ndarray:
    """As `mark_kept`, of arrays."""
    positive = (weights > 0) & np.isfinite(weights)
    mask: np.ndarray = sparsify.mark_by_rule(sparsifier, mark_top_rows, positive, weights, own)
    return mask


def mark_top_rows(weights: np.ndarray, k: int) -> np.ndarray:
    """As `mark_top`, of an array."""
    k = min(k, weights.shape[1])
    if k <= 0:
        return np.zeros_like(weights, dtype=bool)
    last = weights.shape[1] - k
    boundary = np.partition(weights, last, axis=1)[:, last : last + 1]  # [B, 1]
    above, equal = weights > boundary, weights == boundary
    room = k - above.sum(axis=1, keepdims=True)  # [B, 1], >= 1
    equal &= equal.cumsum(axis=1) <= room
    mask: np.ndarray = above | equal
    return mask


@dataclass(frozen=True)
class LexicalGraphTower(sparsify.WeightsOfRows, GraphTower):
    """Inputs to lexical vectors: as `parts.towers.LexicalTower`, with a graph in place of the composition."""

    columns: TokenColumns
    sparsifier: sparsify.Sparsifier

    kind: ClassVar[Kind] = "impact"
    binary: ClassVar[bool] = False

    @property
    def vocabulary(self) -> Vocabulary:
        """Maps a column of `weights` to its term."""
        return self.columns.vocabulary

    def knows(self, text: str) -> bool:
        """Whether a token of the text is a term, so that more than associations finds documents."""
        [batch] = self.items.batches([text], 1)
        return batch.rows is None or len(self.columns.own(batch.rows)[0]) > 0

    def csr_rows(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> CsrRows:
        """As `weights`, without scipy."""
        dims: list[np.ndarray] = [np.empty(0, np.int32)] * len(inputs)
        values: list[np.ndarray] = [np.empty(0, np.float32)] * len(inputs)
        for batch, weights in self.run(inputs, batch_size, progress, on_error):  # [B, V]
            own = None
            if self.sparsifier.needs_own and batch.rows is not None:
                own = np.zeros(weights.shape, dtype=bool)
                for row, terms in enumerate(self.columns.own(batch.rows)):
                    own[row, terms] = True
            mask = mark_kept_rows(weights, own, self.sparsifier)
            for position, row_weights, keep in zip(batch.positions, weights, mask, strict=True):
                dims[position] = np.flatnonzero(keep).astype(np.int32)
                values[position] = row_weights[dims[position]]
        return sparsify.join_rows(dims, values, len(self.vocabulary))

    def dense_weights(self, inputs: Sequence[Any], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V] before the sparsifier."""
        result = np.empty((len(inputs), len(self.vocabulary)), dtype=np.float32)
        for batch, weights in self.run(inputs, batch_size, silent, FAIL):
            result[batch.positions] = weights
        return result


@dataclass(frozen=True)
class DenseGraphTower(GraphTower):
    """Inputs to dense vectors: as `parts.towers.DenseTower`, with a graph that embeds."""

    width: int
    normalise: bool
    dimensions: int | None = None

    kind: ClassVar[Kind] = "dense"

    def __post_init__(self) -> None:
        sparsify.check_dimensions(self.dimensions, self.width)

    def vectors(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> np.ndarray:
        """float32 [n, D]; the inner product of two vectors is the model's own similarity."""
        features = np.zeros((len(inputs), self.width), dtype=np.float32)
        for batch, output in self.run(inputs, batch_size, progress, on_error):
            features[batch.positions] = output
        return sparsify.cut(features, self.dimensions, self.normalise)


class QueriesAlone(ReadsTexts):
    """In place of the side of documents where an export has none: the terms of the queries, and no vectors."""

    binary = False

    def __init__(self, query: Tower):
        self.query, self.kind = query, query.kind

    @property
    def vocabulary(self) -> Vocabulary:
        """The terms of a lexical encoder."""
        return as_lexical(self.query).vocabulary

    def weights(self, *_: Any, **__: Any) -> Any:
        """Raises UsageError: there are no vectors."""
        raise UsageError("exported for queries alone; encode documents by torch, or export again without queries-only")

    dense_weights = vectors = weights
