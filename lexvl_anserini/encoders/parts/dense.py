"""Dense towers: items to one vector each, for FAISS.

A dense tower is composed of its items (which read documents and topics and build forward passes) and of a function that
embeds one forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.encoder import Kind, read_document, read_topic
from lexvl_anserini.encoders.parts.texts.cutting import checked_dimensions, cut
from lexvl_anserini.encoders.parts.texts.tokens import TextReader
from lexvl_anserini.encoders.parts.towers import Batch, token_batches
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import Document, Topic


class Items(Protocol):
    """Reads the documents and topics of one side, and builds forward passes from its inputs."""

    def read(self, document: Document) -> str:
        """The input that a document gives."""
        ...

    def read_topic(self, topic: Topic) -> str:
        """The input that a topic gives."""
        ...

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """The forward passes of `inputs`, each item in exactly one; a skipped image is in none."""
        ...


@dataclass(frozen=True)
class Texts(Items):
    """Texts, tokenised and batched by length, the longest first; the inputs are token ids and attention [B, L]."""

    reader: TextReader
    device: torch.device

    def read(self, document: Document) -> str:
        """Title and text of a document joined by one blank."""
        return read_document(document)

    def read_topic(self, topic: Topic) -> str:
        """The text of a topic."""
        return read_topic(topic)

    def batches(self, inputs: Sequence[str], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """Token ids and attention mask, both int64 [B, L]."""
        for positions, _, padded in token_batches(self.reader, inputs, batch_size, self.device):
            yield Batch(positions, padded)


@dataclass(frozen=True)
class DenseTower:
    """One side of a dense encoder.

    items       reads documents and topics, builds forward passes
    embed       one forward pass -> features [B, width]
    normalise   vectors have unit length: their inner product is the cosine
    dimensions  keep only the first ones, before normalising; None keeps all

    A vector depends on its own item only.
    """

    items: Items
    embed: Callable[[Batch], Tensor]
    width: int
    normalise: bool = True
    dimensions: int | None = None

    kind: ClassVar[Kind] = "dense"

    def __post_init__(self) -> None:
        checked_dimensions(self.dimensions, self.width)

    def read(self, document: Document) -> str:
        """The input that a document gives this tower."""
        return self.items.read(document)

    def read_topic(self, topic: Topic) -> str:
        """The input that a topic gives this tower."""
        return self.items.read_topic(topic)

    @torch.inference_mode()
    def features(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> np.ndarray:
        """float32 [n, width] as the model computes them, neither cut nor normalised."""
        result = np.zeros((len(inputs), self.width), dtype=np.float32)
        for batch in self.items.batches(inputs, batch_size, on_error):
            found = self.embed(batch).float().cpu().numpy()  # [B, width]
            if not np.isfinite(found).all():
                first = str(inputs[batch.positions[0]])[:60]
                raise LexvlError(f"the model gave a vector that is not finite for input {first!r} or its batch")
            result[batch.positions] = found
            progress(len(batch.positions))
        return result

    def vectors(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> np.ndarray:
        """float32 [n, D]; the inner product of two vectors is the model's own similarity."""
        return cut(self.features(inputs, batch_size, progress, on_error), self.dimensions, self.normalise)
