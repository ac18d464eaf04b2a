"""Encoders: a query tower and a document tower, whatever the model; and what a caller may give them.

Kinds: "impact" (lexical vectors for an inverted index), "dense" (vectors for FAISS), "text" (plain text for BM25) and
"multi-vector" (a vector per token, which `rerank` compares and nothing stores). `Tower` is what all towers have;
`LexicalSide` and `DenseSide` add the vectors of their kind. The towers themselves are in `parts/` (`LexicalTower`,
`BagTower`, `DenseTower`) and in the modules of a few encoders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from os import PathLike, fspath
from os.path import exists
from typing import TYPE_CHECKING, Any, Literal, Never, Protocol, TypeAlias, cast, overload

import numpy as np

from lexvl_anserini.ground.errors import FAIL, OnError, UsageError
from lexvl_anserini.ground.manifest import EncoderRef, Manifest, expect_lexical
from lexvl_anserini.ground.progress import Progress, progress_bar, silent
from lexvl_anserini.ground.records import Document, Topic
from lexvl_anserini.ground.typed import check_text

if TYPE_CHECKING:
    from scipy import sparse
    from torch import Tensor

    from lexvl_anserini.ground.quantise import Quantiser
    from lexvl_anserini.ground.records import Vocabulary

Kind = Literal["impact", "dense", "text", "multi-vector"]
# CSR [n, V] float32 (lexical) or float32 [n, D] (dense).
Vectors: TypeAlias = "sparse.csr_matrix | np.ndarray"
Shown: TypeAlias = bool | None  # `show_progress_bar`

# What `encode_query` and `encode_document` take, for errors.
EXPECTED = "a text, a path, a PIL image, a Document or a Topic, or a list of these"
# What to do in place of arguments of sentence-transformers.
REMEDIES: Mapping[str, str] = {
    "prompt": "put it before the texts",
    "prompt_name": "put the prompt before the texts",
    "device": "load the encoder on it: load_encoder(..., device=...)",
    "max_active_dims": "load the encoder with its option topk",
    "truncate_dim": "load the encoder with its option dimensions",
    "convert_to_numpy": "vectors are scipy's or numpy's unless convert_to_tensor=True",
    "convert_to_sparse_tensor": "tensors of lexical encoders are sparse; .to_dense() of torch gives the other form",
    "save_to_cpu": "vectors are on the CPU",
    "normalize_embeddings": "the encoder's own scores need its own lengths",
    "pool": "several processes may each load the encoder",
    "chunk_size": "batch_size is the number of inputs of a forward pass",
}


class OtherModality(UsageError):
    """A tower that reads images got a text, or the reverse."""


class InputReader(Protocol):
    """The part of a tower that reads documents and topics; `OtherModality` where its text or image is missing."""

    def read(self, document: Document) -> str:
        """The input that a document gives this tower."""
        ...

    def read_topic(self, topic: Topic) -> str:
        """The input that a topic gives this tower."""
        ...


class Tower(InputReader, Protocol):
    """One side of an encoder.

    Its inputs are what `read` and `read_topic` return: texts, image references, or references of stored vectors. A text
    tower takes any string, an image tower also PIL images.
    """

    @property
    def kind(self) -> Kind:
        """What the tower gives: "impact" (`LexicalSide`), "dense" (`DenseSide`), "multi-vector" or "text"."""
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

        `progress` is called with the number of inputs just encoded; the row of an image that `on_error` skips is empty.
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
        """float32 [n, D]; the inner product of two vectors is the model's own similarity; a skipped image has zeros."""
        ...


def as_lexical(tower: Tower) -> LexicalSide:
    """The tower, as one of kind "impact"."""
    if tower.kind != "impact":
        raise UsageError(f"a {tower.kind} encoder has no terms; choose a lexical one")
    return cast(LexicalSide, tower)


def as_dense(tower: Tower) -> DenseSide:
    """The tower, as one of kind "dense"."""
    if tower.kind != "dense":
        raise UsageError(f"an encoder of kind {tower.kind!r} has no dense vectors; choose a dense one")
    return cast(DenseSide, tower)


def encode_inputs(
    tower: Tower, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
) -> sparse.csr_matrix | np.ndarray:
    """CSR [n, V] of a lexical tower, float32 [n, D] of a dense one; arguments as those of `LexicalSide.weights`."""
    if tower.kind == "text":
        raise UsageError("bm25 has no vectors: Lucene analyses its texts itself")
    encode = as_lexical(tower).weights if tower.kind == "impact" else as_dense(tower).vectors
    return encode(inputs, batch_size, progress, on_error)


def _encode_given(tower: Tower, argument: Any, batch_size: int, show_progress_bar: bool | None) -> Vectors:
    """The vectors of what a caller gives; of one item to a dense tower its vector [D]."""
    items, single = collect_inputs(tower, argument)
    with progress_bar("encode", len(items), "inputs") if show_progress_bar else nullcontext(silent) as advance:
        vectors = encode_inputs(tower, items, batch_size, advance)
    return vectors[0] if single and tower.kind == "dense" else vectors


def collect_inputs(tower: InputReader, argument: Any) -> tuple[list[Any], bool]:
    """The inputs that a caller's argument gives a tower, and whether it is one item (`is_item`) and not several."""
    single = is_item(argument)
    if not single and (not isinstance(argument, Iterable) or isinstance(argument, Mapping | bytes | bytearray)):
        raise UsageError(f"{_describe(argument)} is nothing to encode; expected {EXPECTED}")
    items = [argument] if single else list(argument)
    for item in items:
        if not is_item(item):
            raise UsageError(f"{_describe(item)} in a list is nothing to encode; expected {EXPECTED}")
    return [_read_item(tower, item) for item in items], single


def is_item(value: Any) -> bool:
    """Whether it is one thing to encode: a text, a path of an image, a PIL image, a `Document` or a `Topic`."""
    return isinstance(value, str | PathLike | Document | Topic) or _is_picture(value)


def _is_picture(value: Any) -> bool:
    """Whether it is a PIL image; PIL is imported where an image was made."""
    return any(cls.__module__ == "PIL.Image" and cls.__name__ == "Image" for cls in type(value).__mro__)


def _read_item(tower: InputReader, item: Any) -> Any:
    if isinstance(item, Document):
        return tower.read(item)
    if isinstance(item, Topic):
        return tower.read_topic(item)
    if isinstance(item, str):
        check_text("a text", item)
        # Path.exists raises for a long text.
        if reads_images(tower) and not exists(item.partition("::")[0]):  # noqa: PTH110
            raise UsageError(f"{item!r:.80} is no file, and this side of the encoder reads images; expected its path")
        return item
    if not reads_images(tower):
        raise UsageError(f"{_describe(item)}, but this side of the encoder reads texts only; expected a text")
    return fspath(item) if isinstance(item, PathLike) else item


def reads_images(tower: InputReader) -> bool:
    """Whether the inputs of a tower are images."""
    try:
        tower.read_topic(Topic("text", text="text"))
    except OtherModality:
        return True
    return False


def _describe(value: Any) -> str:
    """What a value is, for an error."""
    if _is_picture(value):
        return "an image"
    if isinstance(value, PathLike):
        return f"the path {fspath(value)!r}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def refuse_others(others: Mapping[str, Any]) -> None:
    """Raises UsageError if there is an argument that only sentence-transformers has, or none has."""
    for name in others:
        remedy = REMEDIES.get(name, "it takes batch_size, show_progress_bar and convert_to_tensor")
        raise UsageError(f"{name}: no argument of an encoder's encode_query and encode_document; {remedy}")


def as_tensor(vectors: Vectors) -> Tensor:
    """A sparse COO tensor [n, V] of CSR, a dense tensor of an array."""
    import torch

    if isinstance(vectors, np.ndarray):
        return torch.from_numpy(vectors)
    rows = vectors.tocoo()
    places = torch.from_numpy(np.vstack([rows.row, rows.col]).astype(np.int64))
    values = torch.from_numpy(np.ascontiguousarray(rows.data))
    return torch.sparse_coo_tensor(places, values, rows.shape, check_invariants=True).coalesce()


def read_document(document: Document, joiner: str = " ") -> str:
    """Title and text of a document, joined."""
    if document.title is None and document.text is None:
        what = f"document {document.doc_id!r} has no text, not even a caption"
        raise OtherModality(f"{what}; this side of the encoder reads texts only")
    return joiner.join(part for part in (document.title, document.text) if part)


def read_topic(topic: Topic) -> str:
    """The text of a topic."""
    if topic.text is None:
        raise OtherModality(f"topic {topic.query_id!r} has no text; this side of the encoder reads texts only")
    return topic.text


def read_topic_image(item: Document | Topic) -> str:
    """The image reference of a document or topic."""
    if item.image is None:
        what, name = ("document", item.doc_id) if isinstance(item, Document) else ("topic", item.query_id)
        remedy = "so leave texts out; --corpus pictures:FOLDER has the pictures of a folder alone"
        raise OtherModality(f"{what} {name!r} has no image; this side of the encoder reads images only, {remedy}")
    return item.image


class ReadsTexts:
    """What a tower of texts reads of documents and topics; `joiner` is put between title and text."""

    joiner: str = " "

    def read(self, document: Document) -> str:
        """Title and text of a document, joined."""
        return read_document(document, self.joiner)

    def read_topic(self, topic: Topic) -> str:
        """The text of a topic."""
        return read_topic(topic)


class ReadsImages:
    """What a tower of images reads of documents and topics: their images."""

    read = staticmethod(read_topic_image)
    read_topic = staticmethod(read_topic_image)


@dataclass(frozen=True)
class Encoder:
    """A loaded model: its towers, and the facts that a manifest records to load it again.

    Names of sentence-transformers work too: `encode_query`, `encode_document`, `decode`.

    Attributes:
        query: the tower of queries in the chosen direction.
        checkpoint: what it was loaded from: a folder, or a hub id with its revision.
        checkpoint_digest: of all files that it was loaded from.
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
        facts = {"checkpoint": self.checkpoint, "device": self.device, "options": dict(self.options)}
        named = [f"{name}={value!r}" for name, value in facts.items() if value]
        return f"Encoder({', '.join([repr(self.name), self.kind, *named])})"

    def identity(self) -> EncoderRef:
        """The manifest's `encoder` entry."""
        facts = {"checkpoint": self.checkpoint, "checkpoint_digest": self.checkpoint_digest}
        return EncoderRef(name=self.name, **facts, options=dict(self.options))

    @property
    def vocabulary(self) -> Vocabulary:
        """The terms of a lexical encoder, which both towers have."""
        return as_lexical(self.document).vocabulary

    def fit_quantiser(self, quantiser: Quantiser) -> Quantiser:
        """The quantiser, with the scheme "binary" for each tower of a lexical encoder whose weights are all 1."""
        return quantiser.for_towers(as_lexical(self.query).binary, as_lexical(self.document).binary)

    @overload
    def encode_query(
        self, queries: Any, batch_size: int = ..., show_progress_bar: Shown = ..., *, convert_to_tensor: Literal[True]
    ) -> Tensor: ...

    @overload
    def encode_query(
        self,
        queries: Any,
        batch_size: int = ...,
        show_progress_bar: Shown = ...,
        convert_to_tensor: Literal[False] = ...,
    ) -> Vectors: ...

    def encode_query(
        self,
        queries: Any,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = False,
        **others: Never,
    ) -> Vectors | Tensor:
        """The vectors of queries: CSR [n, V] (lexical) or float32 [n, D] (dense).

        Args:
            queries: a text (or the path of an image, a PIL image, a `Topic`), or a list of these. One text gives CSR
                [1, V] or float32 [D].
            batch_size: inputs per forward pass.
            show_progress_bar: show progress; default no.
            convert_to_tensor: a torch tensor instead, sparse (COO) of a lexical encoder, as
                `semantic_search_lucene` and sentence-transformers' own functions take it.
            others: arguments of sentence-transformers that an encoder decides itself; refused by name.
        """
        refuse_others(others)
        vectors = _encode_given(self.query, queries, batch_size, show_progress_bar)
        return as_tensor(vectors) if convert_to_tensor else vectors

    @overload
    def encode_document(
        self, documents: Any, batch_size: int = ..., show_progress_bar: Shown = ..., *, convert_to_tensor: Literal[True]
    ) -> Tensor: ...

    @overload
    def encode_document(
        self,
        documents: Any,
        batch_size: int = ...,
        show_progress_bar: Shown = ...,
        convert_to_tensor: Literal[False] = ...,
    ) -> Vectors: ...

    def encode_document(
        self,
        documents: Any,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_tensor: bool = False,
        **others: Never,
    ) -> Vectors | Tensor:
        """The vectors of documents, as `encode_query`: texts, paths of images, PIL images or `Document`s."""
        refuse_others(others)
        vectors = _encode_given(self.document, documents, batch_size, show_progress_bar)
        return as_tensor(vectors) if convert_to_tensor else vectors

    def as_pyserini(self, manifest: Manifest | None = None, batch_size: int = 32) -> StockQueryEncoder:
        """A query encoder for stock Pyserini: `LuceneImpactSearcher(INDEX, model.as_pyserini(manifest), min_idf=-1)`.

        The manifest (`index.manifest`) has the quantiser and the bound on scores; without it, queries have 8 bits.
        """
        from lexvl_anserini.ground.quantise import Quantiser

        expect_lexical(f"encoder {self.name!r}", self.kind, "an impact index answers lexical queries")
        if manifest is not None and manifest.quantiser:
            quantiser = Quantiser.from_json(manifest.quantiser)
        else:
            quantiser = self.fit_quantiser(Quantiser())
        bound = manifest.counts.max_impact if manifest else None
        return StockQueryEncoder(as_lexical(self.query), quantiser, bound, batch_size)

    def decode(self, vectors: Vectors, top_k: int | None = None) -> list[list[tuple[str, float]]]:
        """Per row of CSR [n, V], (term, weight) by descending weight, ties by dimension; `top_k` cuts."""
        terms = self.vocabulary.terms
        if not hasattr(vectors, "indptr"):
            raise UsageError(f"vectors is {vectors!r:.60}, expected what encode_query or encode_document returns")
        vectors = cast("sparse.csr_matrix", vectors)
        rows = []
        for row in range(vectors.shape[0]):
            span = slice(vectors.indptr[row], vectors.indptr[row + 1])
            dims, weights = vectors.indices[span], vectors.data[span]
            order = np.lexsort((dims, -weights))[:top_k]
            rows.append([(terms[int(dims[i])], float(weights[i])) for i in order])
        return rows


@dataclass(frozen=True)
class StockQueryEncoder:
    """Queries to `{term: integer weight}` for stock Pyserini's `LuceneImpactSearcher`, quantised as in our own search.

    Stock drops terms that all documents have, unless its searcher has `min_idf=-1`.
    """

    tower: LexicalSide
    quantiser: Quantiser
    max_impact: int | None = None
    batch_size: int = 32

    def encode(self, query: Any, **_: Any) -> dict[str, int]:
        """One query (a text, or an image if the query side reads images): its terms and weights >= 1."""
        return self.encode_all([query])[0]

    def encode_all(self, queries: Sequence[Any]) -> list[dict[str, int]]:
        """The terms and weights of several queries."""
        impacts = self.quantiser.queries(self.tower.weights(queries, self.batch_size), self.max_impact)
        return impacts.by_term(self.tower.vocabulary.terms)
