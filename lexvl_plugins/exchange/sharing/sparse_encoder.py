"""sentence-transformers: an encoder of ours as its SparseEncoder.

    as_sparse_encoder(load_encoder("vdr", "lexvl-mini")).encode_query(["a ship"])
    SparseEncoder(FOLDER, trust_remote_code=True)    # a folder that `save_pretrained` wrote

It encodes and does not train. `trust_remote_code` is sentence-transformers' condition; the folder holds no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from sentence_transformers.base.modules import InputModule

from lexvl_anserini.data.pictures.images import list_image_suffixes
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.encoder import Encoder, LexicalSide, as_lexical, reads_images
from lexvl_anserini.encoders.loading import SAVED, load_encoder, load_encoder_from, read_saved
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_plugins.exchange.sharing.saving import write_encoder

if TYPE_CHECKING:
    from sentence_transformers import SparseEncoder


def as_sparse_encoder(model: Encoder) -> SparseEncoder:
    """Makes a SparseEncoder that gives the vectors of an encoder."""
    from sentence_transformers import SparseEncoder

    return SparseEncoder(modules=[LexicalModule(model)], similarity_fn_name="dot", device=model.device or "cpu")


def load_saved(folder: str, device: str = "auto") -> Encoder:
    """Loads a saved encoder; the folder, or model of the hub, names it."""
    saved = read_saved(find_checkpoint(folder))
    if saved is None:
        raise CheckpointError(f"{folder}: no {SAVED}, so save_pretrained did not write it; load it with load_encoder")
    return load_encoder(saved[0].name, folder, device=device)


class LexicalModule(InputModule):
    """A lexical encoder as the only module of a SparseEncoder; an input takes the side that reads it."""

    forward_kwargs = {"task"}
    save_in_root = True

    def __init__(self, model: Encoder):
        super().__init__()
        self._model = model
        terms: Any = Terms(model.vocabulary.terms)
        self.tokenizer = terms  # of `SparseEncoder.decode`
        # Moves with `SparseEncoder.to`.
        self.register_buffer("place", torch.empty(0, device=model.device or "cpu"), persistent=False)

    @property
    def model(self) -> Encoder:
        """The encoder, on the device of the SparseEncoder; loaded again where that changed."""
        place = str(self.place.device)
        if self._model.device not in (None, place):
            self._model = load_encoder_from(self._model.identity(), device=place)
        return self._model

    @property
    def modalities(self) -> Any:
        """What its sides read."""
        images = [reads_images(side) for side in (self._model.query, self._model.document)]
        return [name for name, read in (("text", not all(images)), ("image", any(images))) if read]

    @property
    def max_seq_length(self) -> int | None:
        """Tokens read per text; None where no side reads texts by tokens."""
        readers = (getattr(side, "reader", None) for side in (self._model.document, self._model.query))
        return next((int(reader.max_length) for reader in readers if reader is not None), None)

    def get_embedding_dimension(self) -> int:
        """Returns the number of terms."""
        return len(self._model.vocabulary)

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **options: Any) -> dict[str, Any]:
        """Passes texts, paths of pictures and PIL images on; refuses pairs, dictionaries and options of a processor."""
        options.pop("task", None)
        if refused := sorted(key for key, value in options.items() if value is not None):
            raise UsageError(f"{refused[0]}: this encoder has its own processing; leave it out")
        if strange := next((item for item in inputs if isinstance(item, tuple | list | dict)), None):
            raise UsageError(f"a {type(strange).__name__} is nothing to encode; expected a text or an image")
        return {"inputs": [prompt + item if prompt and isinstance(item, str) else item for item in inputs]}

    def forward(self, features: dict[str, Any], task: str | None = None, **options: Any) -> dict[str, Any]:
        """Adds `sentence_embedding`, float32 [B, V]."""
        inputs = features["inputs"]
        weights = self.choose_side(inputs, task).weights(inputs, batch_size=max(1, len(inputs)))
        return {**features, "sentence_embedding": torch.from_numpy(weights.toarray()).to(self.place.device)}

    def choose_side(self, inputs: Sequence[Any], task: str | None) -> LexicalSide:
        """Chooses the side of a task, or the other if only that reads the inputs."""
        sides = [self.model.query, self.model.document]
        first, second = sides if task == "query" else reversed(sides)
        # The name of a picture is its path, as for sentence-transformers, where a side reads pictures.
        suffixes = list_image_suffixes() if "image" in self.modalities else ()
        images = {not isinstance(item, str) or PurePath(item).suffix.lower() in suffixes for item in inputs}
        if len(images) > 1:
            raise UsageError("texts and images in one batch; encode them one after the other")
        side = next((side for side in (first, second) if reads_images(side) == (images == {True})), None)
        if side is None and images == {True}:
            raise UsageError("an image, but this encoder reads texts only")
        return as_lexical(side or first)

    def save(self, output_path: str, *args: Any, **options: Any) -> None:
        """Writes the encoder into a folder, beside what sentence-transformers writes there."""
        write_encoder(self.model, Path(output_path))

    @classmethod
    def load(  # type: ignore[override]
        cls, model_name_or_path: str, subfolder: str = "", revision: str | None = None, **options: Any
    ) -> LexicalModule:
        """Loads the module of a folder, or of a model of the hub, that `save_pretrained` wrote."""
        if Path(model_name_or_path).is_dir():
            return cls(load_saved(str(Path(model_name_or_path, subfolder))))
        return cls(load_saved(f"{model_name_or_path}@{revision}" if revision else model_name_or_path))

    def get_config_dict(self) -> dict[str, Any]:
        """Returns what `repr` prints."""
        return {"encoder": self._model.name, "checkpoint": self._model.checkpoint, **self._model.options}


class Terms(NamedTuple):
    """What `SparseEncoder.decode` asks of a tokenizer: the term of each dimension."""

    terms: Sequence[str]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]:
        """Returns the terms of dimensions."""
        return self.terms[ids] if isinstance(ids, int) else [self.terms[token_id] for token_id in ids]
