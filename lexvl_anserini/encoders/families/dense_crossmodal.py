"""The dense twin of VDR cross-modal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import build, complain, load_strictly, read_weights, take_below
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import build_bert, read_position_limit, take_hidden_states
from lexvl_anserini.encoders.parts.features import (
    TABLES,
    Features,
    HeadInputs,
    LiveOptions,
    TextAndImage,
    load_live_features,
    load_own_tokenizer,
    make_stored,
)
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.images.vision import Images, PatchTransformer
from lexvl_anserini.encoders.parts.pretrained import (
    build_cells,
    find_companions,
    find_dense_pair,
    load_pretrained_bert,
    load_pretrained_image,
    load_vector_head,
    read_entry,
    read_vision_shape,
)
from lexvl_anserini.encoders.parts.tokens import TextReader, load_tokenizer
from lexvl_anserini.encoders.parts.towers import Batch, DenseTower, Texts, in_direction
from lexvl_anserini.ground.errors import CheckpointError

TEXT_TYPE = "dense_crossmodal_text"
IMAGE_TYPE = "dense_crossmodal_image"


def compute_mean_state(states: Tensor, attention: Tensor) -> Tensor:
    """The mean over unpadded positions, [B, D], of states [B, L, D]."""
    weights = attention[:, :, None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def load_dense_crossmodal(
    source: Source,
    direction: Literal["text-to-image", "image-to-text"] = "text-to-image",
    text_max_length: int | None = None,
    dimensions: int | None = None,
) -> Encoder:
    """A CLIP-style dense pair on the backbones of VDR cross-modal: its twin, trained beside it for comparison.

    Text:  v = W mean_i h_i over the tokens of a BERT, of unit length.
    Image: v = W mean_p h_p over the patches of a vision transformer, of unit length.

    Over pretrained networks, two layers with GELU replace W. The layout is that of vdr-crossmodal.

    Args:
        source: `python -m lexvl_plugins.train.command` writes such folders.
        direction: the modalities of queries and documents.
        text_max_length: tokens per text; default the checkpoint's.
        dimensions: keep only the first ones (Matryoshka); default all.
    """
    checkpoint = source.required("dense-crossmodal")
    text, image = load_dense_towers(source, checkpoint, build_projection, text_max_length)
    if text.width != image.width:
        widths = f"encoder_q.proj gives {text.width} dimensions, encoder_p.proj {image.width}"
        raise CheckpointError(f"{checkpoint.folder}: {widths}; both sides of one model have the same")
    text, image = (replace(tower, dimensions=dimensions) for tower in (text, image))
    query, document = in_direction(direction, text, image)
    return Encoder("dense-crossmodal", "dense", query=query, document=document)


# What maps the mean state [B, before] of a side to what its tower gives, and the width of that; the arguments are the
# side's entry of config.json, its weights, the width of a state, its name in errors, and the device.
HeadOf = Callable[
    [Mapping[str, Any], Mapping[str, Tensor], int, str, torch.device], tuple[Callable[[Tensor], Tensor], int]
]


def load_dense_towers(
    source: Source, checkpoint: Checkpoint, head_of: HeadOf, text_max_length: int | None = None
) -> tuple[DenseTower, DenseTower]:
    """The towers of texts and of images: `build_projection` gives vectors, `build_hidden` the states before them."""
    config, weights = checkpoint.config(), read_weights(checkpoint.folder)
    text_about = read_entry(checkpoint, config, "encoder_q", (TEXT_TYPE,))
    image_about = read_entry(checkpoint, config, "encoder_p", (IMAGE_TYPE,))
    stray = [key for key in weights if not key.startswith(("encoder_q.", "encoder_p."))]
    complain(str(checkpoint.folder), (), stray, ())
    text = load_text_tower(source, checkpoint, text_about, take_below(weights, "encoder_q."), text_max_length, head_of)
    return text, load_image_tower(checkpoint, image_about, take_below(weights, "encoder_p."), source.device, head_of)


def load_text_tower(
    source: Source,
    checkpoint: Checkpoint,
    entry: Mapping[str, Any],
    side_weights: Mapping[str, Tensor],
    length: int | None,
    head_of: HeadOf,
) -> DenseTower:
    """Texts through a BERT, mean pooling and a head, from the keys of their side."""
    where = f"{checkpoint.folder}: encoder_q"
    config, tokenizer_folder = find_companions(source, checkpoint, entry["model_id"])
    tokenizer = load_tokenizer(tokenizer_folder, config.vocab_size)
    reader = TextReader(tokenizer, entry["max_len"], limit=read_position_limit(config)).with_max_length(length)
    of_bert = {key.removeprefix("bert_model."): value for key, value in side_weights.items() if not is_head(key)}
    if "backbone" in entry:
        of_bert = load_pretrained_bert(checkpoint, entry, of_bert)
    head, width = head_of(entry, side_weights, config.hidden_size, where, source.device)
    bert = take_hidden_states(build_bert(config, of_bert, where, source.device))

    def embed(batch: Batch) -> Tensor:
        return head(compute_mean_state(bert(*batch.inputs), batch.inputs[1]))

    return DenseTower(Texts(reader, source.device), embed, width)


def load_image_tower(
    checkpoint: Checkpoint,
    entry: Mapping[str, Any],
    side_weights: Mapping[str, Tensor],
    device: torch.device,
    head_of: HeadOf,
) -> DenseTower:
    """Images through a PatchTransformer or a pretrained network, mean pooling and a head."""
    where = f"{checkpoint.folder}: encoder_p"
    rest = {key: value for key, value in side_weights.items() if not is_head(key)}
    network: nn.Module
    if "backbone" in entry:
        stray = [key for key in rest if not key.startswith(("backbone.", "standard."))]
        complain(where, (), stray, ())
        backbone = load_pretrained_image(checkpoint, entry, take_below(rest, "backbone."))
        head, width = head_of(entry, side_weights, backbone.width, where, device)
        network, pixels = build_cells(backbone, {"grid": 1}, rest, where, device), backbone.pixels
    else:
        shape = read_vision_shape(entry)
        head, width = head_of(entry, side_weights, shape["width"], where, device)
        network, pixels = build(lambda: PatchTransformer(**shape), rest, f"{where}: its configuration"), None
        load_strictly(network, rest, where)
        network.eval().to(device)

    def embed(batch: Batch) -> Tensor:
        states: Tensor = network(*batch.inputs)
        return head(states.mean(dim=1))

    return DenseTower(Images(pixels or Pixels(shape["resolution"]), device), embed, width)


def is_head(key: str) -> bool:
    """True for the keys of a side that are its head's."""
    return key == "proj" or key.startswith("head.")


def build_projection(
    entry: Mapping[str, Any], side_weights: Mapping[str, Tensor], before: int, where: str, device: torch.device
) -> tuple[Callable[[Tensor], Tensor], int]:
    """What maps the mean state [B, before] to a vector, and its dimensions: two layers over a pretrained network."""
    if "backbone" in entry:
        layers = load_vector_head(side_weights, before, where, device)
        return layers, layers.dimensions
    matrix, expected = side_weights.get("proj"), f"expected [dimensions, {before}]"
    if matrix is None or matrix.dim() != 2:
        raise CheckpointError(f"{where}.proj is missing or not a matrix, {expected}")
    complain(where, (), (), [f"{where}.proj {list(matrix.shape)}, {expected}"] if matrix.shape[1] != before else ())
    matrix = matrix.float().to(device)
    return lambda states: states @ matrix.T, len(matrix)


def build_hidden(
    entry: Mapping[str, Any], side_weights: Mapping[str, Tensor], before: int, where: str, device: torch.device
) -> tuple[Callable[[Tensor], Tensor], int]:
    """What maps the mean state [B, before] to the states before the last layer (Joint's input), and their width."""
    if "backbone" not in entry:
        return nn.Identity(), before
    layers = load_vector_head(side_weights, before, where, device)
    return nn.Sequential(*list(layers)[:-1]), layers.hidden


def load_tokenizer_and_features(
    source: Source, checkpoint: Checkpoint, head_of: HeadOf, width: int
) -> tuple[Any, TextAndImage]:
    """The tokenizer of a dense pair, and its texts and images as a head of `width` numbers reads them."""
    pair_source = replace(source, checkpoint=checkpoint)
    towers = load_dense_towers(pair_source, checkpoint, head_of)
    if wrong := [tower.width for tower in towers if tower.width != width]:
        raise CheckpointError(f"{checkpoint.folder}: its vectors have {wrong[0]} numbers, the head reads {width}")

    def features(tower: DenseTower) -> Features:
        unit = head_of is build_projection
        return Features(tower.items, lambda batch: normalize(tower.embed(batch), dim=1) if unit else tower.embed(batch))

    text, image = towers
    assert isinstance(text.items, Texts)
    return text.items.reader.tokenizer, TextAndImage(features(text), features(image))


def load_head_inputs(
    source: Source,
    checkpoint: Checkpoint,
    live: LiveOptions,
    tokenizer: str,
    width: int,
    dimensions: int,
    masks: bool,
    projected: bool = True,
    tables: str = TABLES,
) -> HeadInputs:
    """What a head (D2S, Joint) of `width` numbers to `dimensions` reads.

    Vectors of a dense pair, of a live BLIP or ALBEF, or from `tables`: of unit length if `projected`, else the states
    before the last projection. `tokenizer` is a hub id, for a checkpoint that has none; `masks` as `needs_text`.
    """
    if pair := find_dense_pair(checkpoint, **live._asdict()):
        dense, terms = pair
        head_of = build_projection if projected else build_hidden
        return HeadInputs(*load_tokenizer_and_features(source, dense, head_of, width), terms)
    loaded = load_own_tokenizer(source, checkpoint, dimensions, tokenizer)
    if live.backbone_checkpoint is not None:
        return HeadInputs(loaded, load_live_features(source, live, width, loaded, projected))
    text, image = (make_stored(width, source.device, needs_text, tables) for needs_text in (masks, False))
    return HeadInputs(loaded, TextAndImage(text, image))
