"""Encoders: a query tower and a document tower, whatever the model.

Three kinds exist: "impact" (lexical vectors for an inverted index), "dense" (for FAISS) and "text" (plain text for
BM25). A tower has its `kind`, `read(document)`, and `weights(inputs)` or `vectors(inputs)`. `skipping(skipped)` is the
same tower for a corpus in which some pictures cannot be read: it appends them to the list, and their rows are zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.errors import UsageError
from lexvl_anserini.manifest import EncoderRef, Manifest
from lexvl_anserini.records import Document, Topic

if TYPE_CHECKING:
    from scipy import sparse

    from lexvl_anserini.encoders.stock import StockQueryEncoder


class OtherModality(UsageError):
    """A text was given to what reads images, or the reverse."""


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
            f"{what} {name!r} has no image; this side of the encoder reads images only, so leave texts out"
        )
    return item.image


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
    device: str | None = None

    def identity(self) -> EncoderRef:
        """The manifest's `encoder` entry."""
        return EncoderRef(
            name=self.name,
            checkpoint=self.checkpoint,
            checkpoint_digest=self.checkpoint_digest,
            options=dict(self.options),
        )

    def encode_query(self, texts: Sequence[str], batch_size: int = 32) -> Any:
        """CSR [n, V] (lexical) or float32 [n, D] (dense) of query texts."""
        return _encode(self.query, texts, batch_size)

    def encode_document(self, texts: Sequence[str], batch_size: int = 32) -> Any:
        """CSR [n, V] (lexical) or float32 [n, D] (dense) of document texts."""
        return _encode(self.document, texts, batch_size)

    def as_pyserini(self, manifest: Manifest | None = None, batch_size: int = 32) -> StockQueryEncoder:
        """A query encoder for stock Pyserini: `LuceneImpactSearcher(INDEX, model.as_pyserini(manifest), min_idf=-1)`.

        Args:
            manifest: of the shards or the index (`index.manifest`): its quantiser, and its bound on scores; without
                one, queries are quantised to 8 bits.

        Raises:
            UsageError: the model is not lexical.
        """
        from lexvl_anserini.encoders.stock import StockQueryEncoder

        return StockQueryEncoder.of(self, manifest, batch_size)

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
