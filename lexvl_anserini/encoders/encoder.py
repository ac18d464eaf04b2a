"""Encoders: a query tower and a document tower, whatever the model.

Three kinds exist: "impact" (lexical vectors for an inverted index), "dense" (vectors for FAISS) and "text" (plain text
for BM25). `Tower` is what all towers have; `LexicalSide` and `DenseSide` add the vectors of their kind. The towers
themselves are in `parts/` (`LexicalTower`, `BagTower`, `DenseTower`) and in the modules of a few encoders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np

from lexvl_anserini.data.images import FAIL, OnError
from lexvl_anserini.encoders.inputs import OtherModality, inputs_of
from lexvl_anserini.errors import UsageError
from lexvl_anserini.manifest import EncoderRef, Manifest
from lexvl_anserini.progress import Progress, silent
from lexvl_anserini.records import Document, Topic

if TYPE_CHECKING:
    from scipy import sparse

    from lexvl_anserini.encoders.pyserini_adapter import StockQueryEncoder
    from lexvl_anserini.vocabulary import Vocabulary

Kind = Literal["impact", "dense", "text"]


class Tower(Protocol):
    """One side of an encoder.

    Its inputs are what `read` and `read_topic` return: texts, image references, or references of stored vectors. A text
    tower takes any string, an image tower also PIL images.
    """

    @property
    def kind(self) -> Kind:
        """What the tower gives: "impact" (`LexicalSide`), "dense" (`DenseSide`) or "text" (no vectors)."""
        ...

    def read(self, document: Document) -> str:
        """The input that a document gives this tower.

        Raises:
            OtherModality: the document has no text, or no image, for a tower that reads it.
        """
        ...

    def read_topic(self, topic: Topic) -> str:
        """The input that a topic gives this tower.

        Raises:
            OtherModality: the topic has no text, or no image, for a tower that reads it.
        """
        ...


class LexicalSide(Tower, Protocol):
    """A tower of kind "impact": a weight per term of its vocabulary."""

    @property
    def binary(self) -> bool:
        """True if all weights are 1, so that quantising must not scale them."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Maps a column of `weights` to its term."""
        ...

    def weights(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """CSR [n, V] float32 after the sparsifier: weights > 0, dimensions ascending.

        Args:
            inputs: see `Tower`.
            batch_size: inputs per forward pass.
            progress: called with the number of inputs just encoded.
            on_error: policy for images that cannot be read; the row of a skipped image is empty.
        """
        ...

    def dense_weights(self, inputs: Sequence[Any], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V] before the sparsifier."""
        ...


class DenseSide(Tower, Protocol):
    """A tower of kind "dense": one vector per input."""

    def vectors(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> np.ndarray:
        """float32 [n, D]; the inner product of two vectors is the model's own similarity.

        Args: as those of `LexicalSide.weights`; the row of a skipped image is zeros.
        """
        ...


def as_lexical(tower: Tower) -> LexicalSide:
    """The tower, as one of kind "impact".

    Raises:
        UsageError: it is of another kind.
    """
    if tower.kind != "impact":
        raise UsageError(f"a {tower.kind} encoder has no terms; choose a lexical one")
    return cast(LexicalSide, tower)


def as_dense(tower: Tower) -> DenseSide:
    """The tower, as one of kind "dense".

    Raises:
        UsageError: it is of another kind.
    """
    if tower.kind != "dense":
        raise UsageError(f"an encoder of kind {tower.kind!r} has no dense vectors; choose a dense one")
    return cast(DenseSide, tower)


def encode_inputs(
    tower: Tower,
    inputs: Sequence[Any],
    batch_size: int = 32,
    progress: Progress = silent,
    on_error: OnError = FAIL,
) -> sparse.csr_matrix | np.ndarray:
    """CSR [n, V] of a lexical tower, float32 [n, D] of a dense one; arguments as those of `LexicalSide.weights`.

    Raises:
        UsageError: the tower passes plain text on and has no vectors.
    """
    if tower.kind == "text":
        raise UsageError("bm25 has no vectors: Lucene analyses its texts itself")
    encode = as_lexical(tower).weights if tower.kind == "impact" else as_dense(tower).vectors
    return encode(inputs, batch_size, progress, on_error)


def _encoded(tower: Tower, given: Any, batch_size: int) -> Any:
    """The vectors of what a caller gives; of one item to a dense tower its vector [D]."""
    items, single = inputs_of(tower, given)
    vectors = encode_inputs(tower, items, batch_size)
    return vectors[0] if single and tower.kind == "dense" else vectors


def read_document(document: Document, joiner: str = " ") -> str:
    """Title and text of a document, joined.

    Raises:
        OtherModality: the document has neither (it may be an image).
    """
    if document.title is None and document.text is None:
        raise OtherModality(
            f"document {document.doc_id!r} has no text, not even a caption; this side of the encoder reads texts only"
        )
    return joiner.join(part for part in (document.title, document.text) if part)


def read_topic(topic: Topic) -> str:
    """The text of a topic.

    Raises:
        OtherModality: the topic has none (it may be an image).
    """
    if topic.text is None:
        raise OtherModality(f"topic {topic.query_id!r} has no text; this side of the encoder reads texts only")
    return topic.text


def read_image_of(item: Document | Topic) -> str:
    """The image reference of a document or topic.

    Raises:
        OtherModality: it has none.
    """
    if item.image is None:
        what, name = ("document", item.doc_id) if isinstance(item, Document) else ("topic", item.query_id)
        raise OtherModality(
            f"{what} {name!r} has no image; this side of the encoder reads images only, so leave texts out; "
            "--corpus pictures:FOLDER has the pictures of a folder alone"
        )
    return item.image


@dataclass(frozen=True)
class Encoder:
    """A loaded model: its towers, and the facts that a manifest records to load it again.

    name               of its card
    kind               of both towers
    query, document    the towers of the chosen direction
    checkpoint         what it was loaded from: a folder, or a hub id with its revision
    checkpoint_digest  of all files that it was loaded from
    options            that it was loaded with
    device             that it computes on

    Names of sentence-transformers work too: `encode_query`, `encode_document`, `decode`.
    """

    name: str
    kind: Kind
    query: Tower
    document: Tower
    checkpoint: str | None = None
    checkpoint_digest: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None

    def __repr__(self) -> str:
        """Name and kind, and what it was loaded from."""
        places = [
            f"{name}={value!r}" for name, value in (("checkpoint", self.checkpoint), ("device", self.device)) if value
        ]
        options = [f"options={dict(self.options)!r}"] if self.options else []
        return f"Encoder({', '.join([repr(self.name), self.kind, *places, *options])})"

    def identity(self) -> EncoderRef:
        """The manifest's `encoder` entry."""
        return EncoderRef(
            name=self.name,
            checkpoint=self.checkpoint,
            checkpoint_digest=self.checkpoint_digest,
            options=dict(self.options),
        )

    def encode_query(self, queries: Any, batch_size: int = 32) -> Any:
        """The vectors of queries: CSR [n, V] (lexical) or float32 [n, D] (dense).

        Args:
            queries: a text (or the path of an image, a PIL image, a `Topic`), or a list of these. One text gives CSR
                [1, V] or float32 [D].
            batch_size: inputs per forward pass.

        Raises:
            UsageError: something else, or an image for a side that reads texts.
        """
        return _encoded(self.query, queries, batch_size)

    def encode_document(self, documents: Any, batch_size: int = 32) -> Any:
        """The vectors of documents, as `encode_query`: texts, paths of images, PIL images or `Document`s."""
        return _encoded(self.document, documents, batch_size)

    def as_pyserini(self, manifest: Manifest | None = None, batch_size: int = 32) -> StockQueryEncoder:
        """A query encoder for stock Pyserini: `LuceneImpactSearcher(INDEX, model.as_pyserini(manifest), min_idf=-1)`.

        Args:
            manifest: of the shards or the index (`index.manifest`): its quantiser, and its bound on scores; without
                one, queries are quantised to 8 bits.

        Raises:
            UsageError: the model is not lexical.
        """
        from lexvl_anserini.encoders.pyserini_adapter import StockQueryEncoder
        from lexvl_anserini.quantise import Quantiser

        if self.kind != "impact":
            raise UsageError(f"encoder {self.name!r} is {self.kind}; an impact index answers lexical queries")
        query = as_lexical(self.query)
        if manifest is not None and manifest.quantiser:
            quantiser = Quantiser.from_json(manifest.quantiser)
        else:
            quantiser = Quantiser().for_towers(query.binary, as_lexical(self.document).binary)
        return StockQueryEncoder(query, quantiser, manifest.counts.max_impact if manifest else None, batch_size)

    def decode(self, vectors: sparse.csr_matrix, top_k: int | None = None) -> list[list[tuple[str, float]]]:
        """Per row, (term, weight) by descending weight, ties by dimension; `top_k` cuts."""
        terms = as_lexical(self.document).vocabulary.terms
        rows = []
        for row in range(vectors.shape[0]):
            span = slice(vectors.indptr[row], vectors.indptr[row + 1])
            dims, weights = vectors.indices[span], vectors.data[span]
            order = np.lexsort((dims, -weights))[:top_k]
            rows.append([(terms[int(dims[i])], float(weights[i])) for i in order])
        return rows
