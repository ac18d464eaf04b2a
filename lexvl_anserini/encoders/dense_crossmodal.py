"""A CLIP-style dense pair on the backbones of VDR cross-modal: its twin, trained beside it for comparison.

Text:  v = W mean_i h_i over the tokens of a BERT, of unit length.
Image: v = W mean_p h_p over the patches of a vision transformer, of unit length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from lexvl_anserini.encoders.checkpoints.bounds import build
from lexvl_anserini.encoders.checkpoints.vdr_layout import about, vision_shape_of
from lexvl_anserini.encoders.checkpoints.weights import complain, load_strictly, read_weights
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import bert_from_weights, hidden_states, position_limit
from lexvl_anserini.encoders.parts.dense import DenseTower, Texts
from lexvl_anserini.encoders.parts.sides import in_direction
from lexvl_anserini.encoders.parts.tokens import TextReader, load_tokenizer
from lexvl_anserini.encoders.parts.towers import Batch
from lexvl_anserini.encoders.parts.vision import Images, PatchTransformer, Pixels
from lexvl_anserini.encoders.vdr import companions
from lexvl_anserini.errors import CheckpointError

TEXT_TYPE = "dense_crossmodal_text"
IMAGE_TYPE = "dense_crossmodal_image"


def mean_state(states: Tensor, attention: Tensor) -> Tensor:
    """The mean over unpadded positions, [B, D], of states [B, L, D]."""
    weights = attention[:, :, None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def load_dense_crossmodal(
    source: Source,
    direction: Literal["text-to-image", "image-to-text"] = "text-to-image",
    text_max_length: int | None = None,
    dimensions: int | None = None,
) -> Encoder:
    """A checkpoint in the layout of vdr-crossmodal: `encoder_q` reads texts, `encoder_p` images.

    Args:
        source: `python -m lexvl_anserini.train` writes such folders.
        direction: the modalities of queries and documents.
        text_max_length: tokens per text; default the checkpoint's.
        dimensions: keep only the first ones (Matryoshka); default all.

    Raises:
        CheckpointError: another layout, or weights that do not fit.
    """
    checkpoint = source.required("dense-crossmodal")
    config, weights = checkpoint.config(), read_weights(checkpoint.folder)
    text_about = about(checkpoint, config, "encoder_q", (TEXT_TYPE,))
    shape = vision_shape_of(about(checkpoint, config, "encoder_p", (IMAGE_TYPE,)))
    where = str(checkpoint.folder)
    complain(where, (), [key for key in weights if not key.startswith(("encoder_q.", "encoder_p."))], ())
    text_weights, text_matrix = side(weights, "encoder_q", where)
    image_weights, image_matrix = side(weights, "encoder_p", where)
    if len(text_matrix) != len(image_matrix):
        raise CheckpointError(
            f"{where}: encoder_q.proj gives {len(text_matrix)} dimensions, encoder_p.proj {len(image_matrix)}; "
            "both sides of one model have the same"
        )

    config, tokenizer_folder = companions(source, checkpoint, text_about["model_id"])
    tokenizer = load_tokenizer(tokenizer_folder, config.vocab_size)
    reader = TextReader(tokenizer, text_about["max_len"], limit=position_limit(config)).with_max_length(text_max_length)
    text = text_tower(Texts(reader, source.device), config, text_weights, text_matrix, f"{where}: encoder_q")
    image = image_tower(shape, image_weights, image_matrix, f"{where}: encoder_p", source.device)
    query, document = in_direction(direction, text, image)
    return Encoder(
        "dense-crossmodal",
        "dense",
        query=replace(query, dimensions=dimensions),
        document=replace(document, dimensions=dimensions),
    )


def text_tower(texts: Texts, config: Any, weights: Mapping[str, Tensor], matrix: Tensor, where: str) -> DenseTower:
    """Texts through a BERT of these weights, mean pooling and the projection `matrix` [D, width].

    Raises:
        CheckpointError: the weights do not fit the configuration.
    """
    check_width(matrix, config.hidden_size, where)
    own = {key.removeprefix("bert_model."): value for key, value in weights.items()}
    bert = hidden_states(bert_from_weights(config, own, where, texts.device))
    matrix = matrix.to(texts.device)

    def embed(batch: Batch) -> Tensor:
        return mean_state(bert(*batch.inputs), batch.inputs[1]) @ matrix.T

    return DenseTower(texts, embed, len(matrix))


def image_tower(
    shape: Mapping[str, Any], weights: Mapping[str, Tensor], matrix: Tensor, where: str, device: torch.device
) -> DenseTower:
    """Images through a PatchTransformer of these weights, mean pooling and the projection `matrix` [D, width].

    Raises:
        CheckpointError: the weights do not fit the configuration.
    """
    check_width(matrix, shape["width"], where)
    vision = build(lambda: PatchTransformer(**shape), weights, f"{where}: its configuration")
    load_strictly(vision, weights, where)
    vision.eval().to(device)
    matrix = matrix.to(device)

    def embed(batch: Batch) -> Tensor:
        states: Tensor = vision(*batch.inputs)
        return states.mean(dim=1) @ matrix.T

    return DenseTower(Images(Pixels(shape["resolution"]), device), embed, len(matrix))


def check_width(matrix: Tensor, width: int, where: str) -> None:
    """Checks that a projection has as many columns as the backbone's states.

    Raises:
        CheckpointError: it has not.
    """
    expected = f"{where}.proj {list(matrix.shape)}, expected [dimensions, {width}]"
    complain(where, (), (), [expected] if matrix.shape[1] != width else ())


def side(weights: Mapping[str, Tensor], prefix: str, where: str) -> tuple[dict[str, Tensor], Tensor]:
    """The backbone's weights of one side without their prefix, and its projection [D, width].

    Raises:
        CheckpointError: the projection is missing.
    """
    own = {key.removeprefix(prefix + "."): value for key, value in weights.items() if key.startswith(prefix + ".")}
    if (matrix := own.pop("proj", None)) is None or matrix.dim() != 2:
        raise CheckpointError(f"{where}: {prefix}.proj is missing or not a matrix, expected [dimensions, width]")
    return own, matrix.float()
