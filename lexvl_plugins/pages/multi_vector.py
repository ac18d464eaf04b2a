"""Late interaction: MaxSim(q, d) = sum over tokens i of q of max over tokens j of d of <q_i, d_j>, to score hits again.

Khattab and Zaharia, ColBERT, SIGIR 2020 (arXiv 2004.12832); for pages Faysse et al., ColPali, ICLR 2025 (arXiv
2407.01449), where tokens of a document are patches of its image. Folders of sentence-transformers' MultiVectorEncoder,
PyLate and ColBERT, and those of transformers whose class ends in ForRetrieval. Code of a folder is never run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from lexvl_anserini.data.pictures.images import read_images
from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.sentence_layout import (
    MODULES_FILE,
    check_part,
    check_types,
    read_about,
    read_modules,
)
from lexvl_anserini.encoders.encoder import Encoder, Kind, ReadsImages, ReadsTexts
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import check_model, quietly
from lexvl_anserini.encoders.parts.towers import Direction
from lexvl_anserini.ground.errors import (
    FAIL,
    CheckpointError,
    InstallationError,
    OnError,
    UsageError,
    describe_error,
)
from lexvl_anserini.ground.machine import find_version
from lexvl_anserini.ground.progress import Progress, silent

# What `config_sentence_transformers.json` calls such models: sentence-transformers, and PyLate.
KINDS = ("MultiVectorEncoder", "ColBERT")
# Modules that only they have, as the files name them; the library reads PyLate's as its own.
OWN_MODULES = (
    "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "sentence_transformers.multi_vector_encoder.modules.token_pooling.HierarchicalTokenPooling",
    "pylate.models.Dense.Dense",
)
# The encoder of a folder of another kind.
OTHERS = {"SparseEncoder": "splade", "SentenceTransformer": "sentence"}
# Inputs per call: enough to sort by length, few enough to show progress; of images, which are decoded at once.
PIECE, IMAGES_OF_PIECE = 512, 32
# The score of a document without tokens, below all others, as in sentence-transformers.
NO_TOKENS = -1e9


class TokenVectors:
    """The token vectors of several inputs, float [L_i, D] each; `@` the token vectors of a query is MaxSim."""

    def __init__(self, rows: Sequence[np.ndarray]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Any:
        """One input's vectors by a number, several by a list of numbers."""
        return self.rows[key] if isinstance(key, int) else TokenVectors([self.rows[number] for number in key])

    def astype(self, dtype: Any) -> TokenVectors:
        """The same in another type."""
        return TokenVectors([row.astype(dtype) for row in self.rows])

    def __matmul__(self, query: np.ndarray) -> np.ndarray:
        """Float [n]: MaxSim of a query, float [L, D], and each input; one by one, so that equal inputs score alike."""
        return np.array([(row @ query.T).max(axis=0).sum() if len(row) else NO_TOKENS for row in self.rows])


class TokenTower:
    """One side of a model, which the other may share: `lock` lets threads encode one after the other."""

    kind: ClassVar[Kind] = "multi-vector"
    piece: ClassVar[int] = PIECE

    def __init__(self, model: Any, lock: Lock, side: str):
        self.model, self.lock, self.side = model, lock, side

    def vectors(
        self, inputs: Sequence[Any], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> Any:
        """`TokenVectors` of the inputs; where a model takes the mean over a query's tokens, queries are divided."""
        encode = self.model.encode_query if self.side == "query" else self.model.encode_document
        mean, rows = self.side == "query" and self.model.similarity_fn_name == "meanmaxsim", list[np.ndarray]()
        for start in range(0, len(inputs), self.piece):
            items = self.open(inputs[start : start + self.piece])
            with self.lock:
                embedded = encode(items, batch_size=batch_size, convert_to_numpy=True, show_progress_bar=False)
            rows += [row / max(len(row), 1) if mean else row for row in embedded]
            progress(len(items))
        return TokenVectors(rows)

    def open(self, inputs: Sequence[Any]) -> list[Any]:
        """What the model reads."""
        return list(inputs)


class TextTokens(ReadsTexts, TokenTower):
    """Texts to the vectors of their tokens."""


class ImageTokens(ReadsImages, TokenTower):
    """Images to the vectors of their patches."""

    piece = IMAGES_OF_PIECE

    def open(self, inputs: Sequence[Any]) -> list[Any]:
        """The images, decoded."""
        return [image for _, image in read_images(inputs)]


TOWERS = {"text": TextTokens, "image": ImageTokens}


def load_multi_vector(source: Source, direction: Direction = "text-to-image") -> Encoder:
    """MaxSim(q, d) = sum over tokens i of q of max over tokens j of d of <q_i, d_j>; for `rerank --encoder`.

    A folder or hub id of sentence-transformers' MultiVectorEncoder, PyLate or ColBERT. No index holds these vectors.

    Args:
        source: the folder.
        direction: what queries and documents are; of images only for models that read them.
    """
    checkpoint = source.required("multi-vector")
    refuse_others(checkpoint)
    check_folder(checkpoint.folder)
    try:
        from sentence_transformers import MultiVectorEncoder
    except ImportError as error:
        what = f"sentence-transformers {find_version('sentence-transformers')} is installed"
        raise InstallationError(f"{what}, expected >=6: pip install 'lexvl-anserini[pages]'") from error
    options: Any = {"device": str(source.device), "local_files_only": True, "trust_remote_code": False}
    try:
        with quietly():
            model = MultiVectorEncoder(str(checkpoint.folder), **options)
    except Exception as error:
        what = f"cannot be loaded as a multi-vector model ({describe_error(error)})"
        raise CheckpointError(f"{checkpoint.folder}: {what}") from error
    query, _, document = direction.partition("-to-")
    supports: Any = model.supports
    for kind in {query, document}:
        if not supports(kind):
            reads = f"reads {', '.join(map(str, model.modalities))}, and {direction} needs {kind}"
            raise UsageError(f"{checkpoint.folder}: {reads}; --set direction=text-to-text scores texts")
    lock = Lock()
    towers: Any = [TOWERS[kind](model, lock, side) for kind, side in ((query, "query"), (document, "document"))]
    return Encoder("multi-vector", "multi-vector", *towers)


def refuse_others(checkpoint: Checkpoint) -> None:
    """Refuses models of other kinds, to which the library would add a projection with random weights."""
    kind = str(read_about(checkpoint.folder).get("model_type") or "")
    if not kind and (checkpoint.folder / MODULES_FILE).is_file():
        kind = "SentenceTransformer"  # older versions write no kind
    kind = kind or str((checkpoint.config().get("architectures") or ["unknown"])[0])
    if kind in KINDS or kind == "HF_ColBERT" or kind.endswith("ForRetrieval"):
        return
    expected = f"expected a model of vectors per token ({', '.join(KINDS)})"
    remedy = f"; load it with --encoder {OTHERS[kind]}" if kind in OTHERS else ""
    raise CheckpointError(f"{checkpoint.folder}: a {kind!r:.80}, {expected}{remedy}")


def check_folder(folder: Path) -> None:
    """Checks what a folder asks the library to import, to run and to allocate, before the library reads it."""
    import transformers

    modules = read_modules(folder) if (folder / MODULES_FILE).is_file() else []
    check_types([part.kind for part in modules if part.kind not in OWN_MODULES], folder / MODULES_FILE)
    for part in modules:
        for network in check_part(part):
            check_model(transformers.AutoModel, network.folder)
