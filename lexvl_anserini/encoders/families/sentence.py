"""Dense models of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from lexvl_anserini.encoders.cards import name_readers
from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.sentence_layout import SPARSE_MODULES, check_modules, read_about, read_modules
from lexvl_anserini.encoders.encoder import Encoder, Kind, ReadsTexts
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.sparsify import check_dimensions, cut
from lexvl_anserini.encoders.parts.tokens import is_fast, read_starts
from lexvl_anserini.ground.errors import FAIL, CheckpointError, OnError, UsageError, describe_error
from lexvl_anserini.ground.progress import Progress, silent

# Texts per call: enough to sort by length, few enough to show progress.
PIECE = 512


class SentenceTower(ReadsTexts):
    """One side of a model, which the other may share: `lock` lets threads encode one after the other."""

    kind: ClassVar[Kind] = "dense"

    def __init__(self, model: Any, lock: Lock, side: str, normalise: bool, dimensions: int | None = None):
        self.model, self.lock, self.side, self.normalise = model, lock, side, normalise
        self.dimensions = check_dimensions(dimensions, model.get_embedding_dimension())

    def vectors(
        self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> np.ndarray:
        """float32 [n, D]; the inner product of two vectors is the model's own similarity."""
        encode = self.model.encode_query if self.side == "query" else self.model.encode_document
        pieces = [np.empty((0, self.model.get_embedding_dimension()), dtype=np.float32)]
        for start in range(0, len(inputs), PIECE):
            piece = list(inputs[start : start + PIECE])
            options = {"batch_size": batch_size, "normalize_embeddings": self.normalise, "show_progress_bar": False}
            with self.lock:
                pieces.append(encode(self.readable(piece), convert_to_numpy=True, **options))
            progress(len(piece))
        return cut(np.concatenate(pieces), self.dimensions, self.normalise and self.dimensions is not None)

    def readable(self, texts: list[str]) -> list[str]:
        """As much of each text as the model reads, or a little more; the prompt that it adds leaves less room."""
        tokenizer, limit = self.model.tokenizer, self.model.max_seq_length
        return read_starts(tokenizer, texts, limit) if limit and is_fast(tokenizer) else texts


def load_sentence(source: Source, max_length: int | None = None, dimensions: int | None = None) -> Encoder:
    """Dense sentence vectors through sentence-transformers: the text baseline beside the lexical encoders.

    A sentence-transformers folder or hub id.

    Args:
        source: the folder has modules.json.
        max_length: tokens read per text; default the folder's own limit.
        dimensions: keep only the first ones (Matryoshka), of unit length again if the model's vectors are; default all.
    """
    checkpoint = source.required("sentence")
    refuse_sparse(checkpoint)
    import transformers
    from sentence_transformers import SentenceTransformer

    from lexvl_anserini.encoders.parts.backbones import check_model, quietly

    # The library reads the files a second time; nothing that it would import, run or allocate is left in them.
    for part in check_modules(checkpoint.folder):
        check_model(transformers.AutoModel, part.folder)
    options: Any = {"device": str(source.device), "local_files_only": True, "trust_remote_code": False}
    try:
        with quietly():
            model = SentenceTransformer(str(checkpoint.folder), **options)
            # The width is what a file says; modules that do not fit each other fail only now.
            encode_empty = (model.encode_query, model.encode_document)
            shapes = {encode([""], show_progress_bar=False).shape for encode in encode_empty}
    except Exception as error:
        what = f"cannot be loaded as a dense model ({describe_error(error)})"
        raise CheckpointError(f"{checkpoint.folder}: {what}") from error
    if shapes != {(1, width := model.get_embedding_dimension())}:
        raise CheckpointError(f"{checkpoint.folder}: its modules say {width} dimensions, and give {shapes}")
    if max_length is not None:
        model.max_seq_length = max_length
    similarity = model.similarity_fn_name or "cosine"
    if similarity not in ("cosine", "dot"):
        expected = "only cosine and dot fit an inner product index"
        raise UsageError(f"{checkpoint.folder}: compares by {similarity} distance; {expected}")
    lock, cosine = Lock(), similarity == "cosine"
    query, document = (SentenceTower(model, lock, side, cosine, dimensions) for side in ("query", "document"))
    return Encoder("sentence", "dense", query, document)


def refuse_sparse(checkpoint: Checkpoint) -> None:
    """Refuses what is no dense model: without modules.json the library would add mean pooling without a warning."""
    folder = checkpoint.folder
    if not (folder / "modules.json").is_file():
        architectures = checkpoint.config().get("architectures") or ["unknown"]
        what = f"no modules.json, so not a dense sentence-transformers model (architecture {architectures[0]})"
        raise CheckpointError(f"{folder}: {what}; sparse checkpoints are loaded with --encoder splade or vdr")
    names = [part.name for part in read_modules(folder)]
    if read_about(folder).get("model_type") == "SparseEncoder" or {*names} & {*SPARSE_MODULES}:
        raise CheckpointError(f"{folder}: a sparse model; load it with {name_readers(names[-1], 'sentence')}")
