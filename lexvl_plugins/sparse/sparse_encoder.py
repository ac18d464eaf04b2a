"""Any sparse model that sentence-transformers' SparseEncoder loads, as an encoder: texts, images, routers, own modules.

The library computes weights; everything else is this package's: quantiser, manifest, resumed encoding, index and
explanations. A folder that `splade` or `sae` reads too is computed by them, without the library.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import RLock
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from lexvl_anserini.data.pictures.images import read_images
from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.sentence_layout import BACKBONES, ROUTER, read_about
from lexvl_anserini.encoders.encoder import Encoder, Kind, ReadsImages, ReadsTexts
from lexvl_anserini.encoders.families.splade import fits, load_splade
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import quietly
from lexvl_anserini.encoders.parts.sparsify import as_csr, cut, join_rows
from lexvl_anserini.encoders.parts.tokens import is_fast, list_token_strings, read_starts
from lexvl_anserini.encoders.parts.towers import Direction, in_direction
from lexvl_anserini.ground.errors import (
    FAIL,
    ArtefactError,
    CheckpointError,
    LexvlError,
    OnError,
    UsageError,
    describe_error,
)
from lexvl_anserini.ground.manifest import EncoderRef
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import Vocabulary
from lexvl_plugins.sparse.autoencoder import load_sae, name_latents
from lexvl_plugins.sparse.consent import (
    ask_consent,
    check_without_consent,
    describe_chains,
    fetch_code,
    has_consent,
    is_of_library,
    list_chains,
)

log = logging.getLogger(__name__)

# Floats of the dense rows that the library returns at once: 64 MiB.
PIECE_FLOATS = 1 << 24
# What `splade` reads, in any order; the order is checked there.
SPLADE_MODULES = {*BACKBONES, ROUTER, "SpladePooling", "SparseStaticEmbedding"}


@dataclass(frozen=True, repr=False)
class SparseModel(Encoder):
    """An encoder whose manifest notes more than the user's options: `modules`, and `code` where a folder's code ran."""

    noted: Mapping[str, str] = field(default_factory=dict)

    def identity(self) -> EncoderRef:
        """The manifest's `encoder` entry."""
        return EncoderRef({**super().identity(), "options": {**self.options, **self.noted}})


class LibraryTower:
    """One side of a SparseEncoder, whose other side shares the model: `lock` lets threads encode one after another."""

    kind: ClassVar[Kind] = "impact"

    def __init__(self, model: Any, side: str, chain: Sequence[Any], vocabulary: Vocabulary, topk: int | None = None):
        self.model, self.side, self.chain, self.vocabulary, self.topk = model, side, chain, vocabulary, topk
        self.lock = RLock()

    @property
    def binary(self) -> bool:
        """True if all weights are 1: those of a table of ones."""
        table: Any = getattr(self.chain[0], "weight", None) if len(self.chain) == 1 else None
        return type(self.chain[0]).__name__ == "SparseStaticEmbedding" and bool((table == 1).all())

    def pieces(self, inputs: Sequence[Any], size: int, on_error: OnError) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """Positions and inputs of the library, `size` at a time."""
        raise NotImplementedError

    def compute(self, piece: list[Any], batch_size: int, topk: int | None) -> np.ndarray:
        """float32 [n, D] as the model computes them, with as many columns as it has dimensions."""
        encode = self.model.encode_query if self.side == "query" else self.model.encode_document
        options = {"convert_to_sparse_tensor": False, "save_to_cpu": True, "show_progress_bar": False}
        with self.lock:
            rows: np.ndarray = encode(piece, batch_size=batch_size, max_active_dims=topk, **options).float().numpy()
        if not np.isfinite(rows).all() or (rows < 0).any():
            what = "is not finite" if not np.isfinite(rows).all() else "is negative, which no impact can be"
            raise LexvlError(f"the model gave a weight that {what} for input {str(piece[0])[:60]!r} or its batch")
        if self.model.similarity_fn_name == "cosine":
            rows = cut(rows, None, True)
        return rows[:, : len(self.vocabulary)]  # rows of a matrix without a token are no terms

    def weights(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """CSR [n, V] float32 after the sparsifier: weights > 0, dimensions ascending."""
        dims: list[np.ndarray] = [np.empty(0, np.int32)] * len(inputs)
        values: list[np.ndarray] = [np.empty(0, np.float32)] * len(inputs)
        size = max(batch_size, PIECE_FLOATS // len(self.vocabulary))
        for positions, piece in self.pieces(inputs, size, on_error):
            matrix = sparse.csr_matrix(self.compute(piece, batch_size, self.topk))
            for row, position in enumerate(positions):
                span = slice(matrix.indptr[row], matrix.indptr[row + 1])
                dims[position], values[position] = matrix.indices[span].astype(np.int32), matrix.data[span].copy()
            progress(len(piece))
        return as_csr(join_rows(dims, values, len(self.vocabulary)))

    def dense_weights(self, inputs: Sequence[Any], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V] before the sparsifier."""
        rows = np.zeros((len(inputs), len(self.vocabulary)), dtype=np.float32)
        for positions, piece in self.pieces(inputs, max(batch_size, PIECE_FLOATS // rows.shape[1]), FAIL):
            rows[positions] = self.compute(piece, batch_size, rows.shape[1])
        return rows


class LibraryTexts(ReadsTexts, LibraryTower):
    """Texts."""

    def pieces(self, inputs: Sequence[Any], size: int, on_error: OnError) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """As much of each text as the model reads, or a little more, in order."""
        first = self.chain[0]
        tokenizer, limit = getattr(first, "tokenizer", None), getattr(first, "max_seq_length", None)
        for start in range(0, len(inputs), size):
            texts = list(inputs[start : start + size])
            if limit and is_fast(tokenizer):
                texts = read_starts(tokenizer, texts, int(limit))
            # The library reads a text as the name of a picture, or fetches it, if it may be one.
            named: list[Any] = [{"text": text} for text in texts] if "image" in list_modalities(self.chain) else texts
            yield range(start, start + len(texts)), named


class LibraryImages(ReadsImages, LibraryTower):
    """Images; threads decode them beside the forward pass."""

    def pieces(self, inputs: Sequence[Any], size: int, on_error: OnError) -> Iterator[tuple[Sequence[int], list[Any]]]:
        """In the order of the inputs, which are paths, `archive.tar::member` or PIL images."""
        images = read_images(inputs, on_error=on_error, prepare=lambda image: image)
        while piece := list(islice(images, min(size, 64))):
            yield [image.position for image in piece], [image.value for image in piece]


def load_sparse_encoder(
    source: Source,
    direction: Direction = "text-to-image",
    native: bool = True,
    topk: int | None = None,
    query_topk: int | None = None,
    max_length: int | None = None,
    modules: str | None = None,
    code: str | None = None,
) -> Encoder:
    """Whatever sentence-transformers' SparseEncoder computes: w_j >= 0 per token, or per anonymous dimension.

    A SparseEncoder folder or hub id, or a plain masked LM. Code of a folder runs only where the environment's
    LEXVL_TRUST_REMOTE_CODE names the folder, or the hub id with its commit.

    Args:
        source: has modules.json, or is a masked LM.
        direction: the modalities of queries and documents.
        native: a folder that splade or sae reads is computed by them; false: always by the library.
        topk: dimensions kept per document; default the folder's own number, else all.
        query_topk: the same for queries; `topk` does not change it.
        max_length: tokens read per text; default the folder's own.
        modules: the classes of the modules, as manifests note them; another list is refused.
        code: the digest of the code that ran, as manifests note it; another is refused.
    """
    checkpoint = source.required("sparse-encoder")
    if source.tokenizer or source.backbone_config:
        raise UsageError("encoder 'sparse-encoder' reads its own tokenizer and configuration; give neither")
    chains = list_chains(checkpoint.folder)
    # A class of the folder may have the name of one of the library.
    kinds = {part.name if is_of_library(part) else part.kind for chain in chains.values() for part in chain}
    noted = {"modules": describe_chains(chains) or "none"}
    if native and direction == "text-to-text":
        encoder = load_natively(source, kinds, topk, query_topk, max_length)
    else:
        encoder = None
    if encoder is None:
        refuse_dense(checkpoint, bool(kinds))
        consent = has_consent(checkpoint.reference)
        if consent:
            noted["code"] = fetch_code(checkpoint)
        else:
            check_without_consent(checkpoint)
        encoder = load_by_library(source, checkpoint, direction, consent, (query_topk, topk), max_length)
    for key, given in (("modules", modules), ("code", code)):
        if given is not None and given != noted.get(key):
            what = f"{key} {noted.get(key, 'none')!r:.200}, the index was made with {given!r:.200}"
            raise ArtefactError(f"{checkpoint.reference}: has {what}; give that checkpoint or encode again")
    return SparseModel("sparse-encoder", "impact", encoder.query, encoder.document, noted=noted)


def load_natively(
    source: Source, kinds: set[str], topk: int | None, query_topk: int | None, max_length: int | None
) -> Encoder | None:
    """The encoder of a family of this package that reads a folder of these modules; None if there is none."""
    try:
        if kinds <= SPLADE_MODULES:
            return load_splade(
                source, topk=topk, query_topk=query_topk, max_length=max_length, query_max_length=max_length
            )
        if "SparseAutoEncoder" in kinds:
            return load_sae(source, topk, query_topk, max_length)
    except CheckpointError as error:  # the library reads more, and names what is wrong itself
        log.debug("not read natively: %s", error)
    return None


def refuse_dense(checkpoint: Checkpoint, has_modules: bool) -> None:
    """Refuses what is no sparse model: the library would add an autoencoder with random weights."""
    if not has_modules:
        names = checkpoint.config().get("architectures") or ["unknown"]
        if not any(str(name).endswith("ForMaskedLM") for name in names):
            what = f"no modules.json and no masked LM (architecture {names[0]}), so not a sparse model"
            raise CheckpointError(f"{checkpoint.folder}: {what}; sparse folders have the modules of a SparseEncoder")
        return
    if (kind := read_about(checkpoint.folder).get("model_type", "SentenceTransformer")) != "SparseEncoder":
        remedy = "load it with --encoder sentence" if kind == "SentenceTransformer" else "it gives no sparse vectors"
        raise CheckpointError(f"{checkpoint.folder}: a {kind!s:.40}, not a SparseEncoder; {remedy}")


def load_by_library(
    source: Source,
    checkpoint: Checkpoint,
    direction: Direction,
    consent: bool,
    topks: tuple[int | None, int | None],
    max_length: int | None,
) -> Encoder:
    """The towers of a SparseEncoder."""
    import torch
    from sentence_transformers import SparseEncoder

    folder, where = checkpoint.folder, checkpoint.reference
    options: Any = {"device": str(source.device), "local_files_only": True, "trust_remote_code": consent}
    try:
        with quietly():
            model = SparseEncoder(str(folder), model_kwargs={"dtype": torch.float32}, **options)
    except Exception as error:
        raise CheckpointError(f"{folder}: cannot be loaded as a SparseEncoder ({describe_error(error)})") from error
    if (similarity := model.similarity_fn_name) not in ("dot", "cosine"):
        expected = "an impact index adds products of weights (dot, or cosine of vectors of unit length)"
        raise CheckpointError(f"{folder}: similarity_fn_name {similarity!r}, but {expected}")
    if max_length is not None:
        model.max_seq_length = max_length
    towers: list[Any] = []
    sides = zip(("query", "document"), in_direction(direction, "text", "image"), topks, strict=True)
    for side, modality, topk in sides:
        chain = list_modules(model, side, modality)
        modalities = list_modalities(chain)
        if modality not in modalities:
            read = " and ".join(name + "s" for name in modalities)
            remedy = f"choose a direction of these for it, such as {modalities[0]}-to-{modalities[0]}"
            raise UsageError(f"{where}: its {side} side reads {read}, and no {modality}s; {remedy} (--direction)")
        if "message" in modalities and not consent:
            raise ask_consent(checkpoint, "its inputs go through a chat template, a program of the folder")
        kind = LibraryTexts if modality == "text" else LibraryImages
        towers.append(kind(model, side, chain, probe_terms(model, side, modality, chain, where), topk))
    query, document = towers
    document.lock = query.lock
    if query.vocabulary.digest != document.vocabulary.digest:
        sizes = f"{len(query.vocabulary)} terms, its documents have {len(document.vocabulary)}"
        raise CheckpointError(f"{where}: its queries have another vocabulary ({sizes}); both sides need the same")
    return Encoder("sparse-encoder", "impact", query, document)


def list_modules(model: Any, side: str, modality: str) -> list[Any]:
    """The modules that inputs of a side go through."""
    modules = list(model)
    if type(modules[0]).__name__ != ROUTER:
        return modules
    router = modules[0]
    return [*router.sub_modules[router._resolve_route(task=side, modality=modality)], *modules[1:]]


def list_modalities(chain: Sequence[Any]) -> list[str]:
    """What a chain of modules reads; a module that does not say it reads texts."""
    return [name for name in getattr(chain[0], "modalities", ["text"]) if isinstance(name, str)]


def probe_terms(model: Any, side: str, modality: str, chain: Sequence[Any], where: str) -> Vocabulary:
    """The terms of a side's dimensions, which an empty input shows: tokens, latents, or dim00000, dim00001, ..."""
    from PIL import Image

    images = "image" in list_modalities(chain)
    given: Any = Image.new("RGB", (32, 32)) if modality == "image" else {"text": ""} if images else ""
    try:
        encode = model.encode_query if side == "query" else model.encode_document
        size = int(encode([given], convert_to_sparse_tensor=False, show_progress_bar=False).shape[1])
    except Exception as error:
        raise CheckpointError(f"{where}: its {side} modules do not fit ({describe_error(error)})") from error
    if type(chain[-1]).__name__ == "SparseAutoEncoder":
        return name_latents(size)
    tokenizer = getattr(chain[0], "tokenizer", None)
    if tokenizer is not None and hasattr(tokenizer, "get_vocab") and fits(size, tokenizer):
        return Vocabulary(list_token_strings(tokenizer), "the tokenizer's vocabulary")
    return Vocabulary((f"dim{number:05d}" for number in range(size)), "the model's dimensions")
