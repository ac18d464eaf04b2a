"""Towers whose network is a graph that ONNX Runtime computes on the CPU. Loads neither torch nor transformers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.encoder import (
    Kind,
    ReadsTexts,
    Tower,
    as_lexical,
    read_document,
    read_image_of,
    read_topic,
)
from lexvl_anserini.encoders.parts.batches import PassageReader, padded_batches, read_passage
from lexvl_anserini.encoders.parts.images.pixels import Pixels, crop_batches
from lexvl_anserini.encoders.parts.sparsify import (
    Sparsifier,
    WeightsOfRows,
    checked_dimensions,
    cut,
    join_rows,
    kept_rows,
)
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, MissingExtra, UsageError, reason_of
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import CsrRows
from lexvl_anserini.ground.records import Document, Topic
from lexvl_anserini.ground.vocabulary import Vocabulary


class GraphBatch(NamedTuple):
    """One run of a graph.

    positions  of its items among the inputs of the tower, int64 [B]
    inputs     of the graph
    rows       token ids of each item, without padding; None of images
    """

    positions: np.ndarray
    inputs: tuple[np.ndarray, ...]
    rows: list[list[int]] | None = None


class GraphItems(NamedTuple):
    """Reads the documents and topics of one side, and builds runs of its graph.

    read, read_topic  the input that a document gives, and a topic
    batches           (inputs, batch size, what to do about errors) -> runs, each item in exactly one; a skipped image
                      is in none
    """

    read: Callable[[Document], str]
    read_topic: Callable[[Topic], str]
    batches: Callable[[Sequence[Any], int, OnError], Iterator[GraphBatch]]


def graph_texts(reader: TextReader, joiner: str = " ") -> GraphItems:
    """Texts, the longest first; `joiner` is put between title and text."""

    def batches(inputs: Sequence[Any], batch_size: int, on_error: OnError) -> Iterator[GraphBatch]:
        for positions, rows, arrays in padded_batches(reader, inputs, batch_size):
            yield GraphBatch(positions, arrays, rows)

    return GraphItems(partial(read_document, joiner=joiner), read_topic, batches)


def graph_passages(passages: PassageReader) -> GraphItems:
    """Pairs of title and text, as DPR reads them, the longest first."""

    def batches(inputs: Sequence[Any], batch_size: int, on_error: OnError) -> Iterator[GraphBatch]:
        for positions, arrays in passages.batches(inputs, batch_size):
            yield GraphBatch(positions, arrays)

    return GraphItems(read_passage, read_topic, batches)


def graph_images(pixels: Pixels) -> GraphItems:
    """Images in their order: paths, `archive.tar::member` or PIL images; the graph normalises their crops."""

    def batches(inputs: Sequence[Any], batch_size: int, on_error: OnError) -> Iterator[GraphBatch]:
        for positions, crops in crop_batches(pixels, inputs, batch_size, on_error):
            yield GraphBatch(positions, (crops,))

    return GraphItems(read_image_of, read_image_of, batches)


class Graph:
    """A network in ONNX Runtime; threads may run it at once."""

    def __init__(self, data: bytes, where: str):
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtra("--runtime onnx", "onnx") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads()
        options.log_severity_level = 3  # warnings are about the graph's own shapes, errors are raised
        try:
            self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common class
            raise CheckpointError(f"{where}: ONNX Runtime cannot load the graph ({reason_of(error)})") from error
        self.names = [node.name for node in self.session.get_inputs()]

    def __call__(self, inputs: tuple[np.ndarray, ...], first: Any) -> np.ndarray:
        """float32 [B, V] or [B, D], from the inputs of the graph; an error names `first`, an input of the tower."""
        [output] = self.session.run(None, dict(zip(self.names, inputs, strict=True)))
        if not np.isfinite(output).all():
            raise LexvlError(f"the model gave a number that is not finite for input {str(first)[:60]!r} or its batch")
        result: np.ndarray = output
        return result


def threads() -> int:
    """Threads of a graph: `$OMP_NUM_THREADS`, which torch obeys too; 0, all cores, where it is not set."""
    number = os.environ.get("OMP_NUM_THREADS", "")
    return int(number) if number.isdecimal() else 0


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

    def runs(
        self, inputs: Sequence[Any], batch_size: int, progress: Progress, on_error: OnError
    ) -> Iterator[tuple[GraphBatch, np.ndarray]]:
        """The runs of the graph with their outputs."""
        for batch in self.items.batches(inputs, batch_size, on_error):
            yield batch, self.graph(batch.inputs, inputs[batch.positions[0]])
            progress(len(batch.positions))


@dataclass(frozen=True)
class LexicalGraphTower(WeightsOfRows, GraphTower):
    """Inputs to lexical vectors: as `parts.towers.LexicalTower`, with a graph in place of the composition.

    columns  the dimension of each token id, and the vocabulary
    """

    columns: TokenColumns
    sparsifier: Sparsifier

    kind: ClassVar[Kind] = "impact"
    binary: ClassVar[bool] = False

    @property
    def vocabulary(self) -> Vocabulary:
        """Maps a column of `weights` to its term."""
        return self.columns.vocabulary

    def knows(self, text: str) -> bool:
        """Whether a token of the text is a term, so that more than associations finds documents."""
        [batch] = self.items.batches([text], 1, FAIL)
        return batch.rows is None or len(self.columns.own(batch.rows)[0]) > 0

    def csr_rows(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> CsrRows:
        """As `weights`, without scipy."""
        dims: list[np.ndarray] = [np.empty(0, np.int32)] * len(inputs)
        values: list[np.ndarray] = [np.empty(0, np.float32)] * len(inputs)
        for batch, weights in self.runs(inputs, batch_size, progress, on_error):  # [B, V]
            mask = kept_rows(weights, self.own_mask(batch.rows), self.sparsifier)
            for position, row, keep in zip(batch.positions, weights, mask, strict=True):
                dims[position] = np.flatnonzero(keep).astype(np.int32)
                values[position] = row[dims[position]]
        return join_rows(dims, values, len(self.vocabulary))

    def own_mask(self, rows: list[list[int]] | None) -> np.ndarray | None:
        """Bool [B, V], True at the own tokens of each item; None unless the sparsifier needs it."""
        if not self.sparsifier.needs_own or rows is None:
            return None
        mask = np.zeros((len(rows), len(self.vocabulary)), dtype=bool)
        for row, dims in enumerate(self.columns.own(rows)):
            mask[row, dims] = True
        return mask

    def dense_weights(self, inputs: Sequence[Any], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V] before the sparsifier."""
        result = np.empty((len(inputs), len(self.vocabulary)), dtype=np.float32)
        for batch, weights in self.runs(inputs, batch_size, silent, FAIL):
            result[batch.positions] = weights
        return result


@dataclass(frozen=True)
class DenseGraphTower(GraphTower):
    """Inputs to dense vectors: as `parts.towers.DenseTower`, with a graph that embeds.

    width       of the features that the graph gives
    normalise   vectors have unit length
    dimensions  keep only the first ones, before normalising; None keeps all
    """

    width: int
    normalise: bool
    dimensions: int | None = None

    kind: ClassVar[Kind] = "dense"

    def __post_init__(self) -> None:
        checked_dimensions(self.dimensions, self.width)

    def vectors(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> np.ndarray:
        """float32 [n, D]; the inner product of two vectors is the model's own similarity."""
        features = np.zeros((len(inputs), self.width), dtype=np.float32)
        for batch, output in self.runs(inputs, batch_size, progress, on_error):
            features[batch.positions] = output
        return cut(features, self.dimensions, self.normalise)


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
        """No vectors.

        Raises:
            UsageError: always.
        """
        raise UsageError("exported for queries alone; encode documents by torch, or export again without queries-only")

    dense_weights = vectors = weights
