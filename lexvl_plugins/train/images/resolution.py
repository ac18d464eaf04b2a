"""Pretrained image networks for images of another side: their positions are interpolated over the grid of patches.

The files of the changed network are written, and a checkpoint has a copy, so that its encoder loads it as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from inspect import signature
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexvl_anserini.encoders.checkpoints.itc_layout import fit_places
from lexvl_anserini.encoders.checkpoints.weights import load_strictly
from lexvl_anserini.encoders.parts.backbones import quietly
from lexvl_anserini.encoders.parts.images.image_backbones import GridOf, ImageBackbone, load_image_backbone
from lexvl_anserini.encoders.parts.images.pixels import read_preprocessing
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import make_folder, write_json

# Tables with a row for each place of a square: before these, positions have those of class tokens; after these, BEiT's
# biases have those between the class token and patches.
POSITIONS, BIASES = ("position_embeddings", "position_embedding.weight"), ("relative_position_bias_table",)


def interpolate_rows(rows: Tensor, count: int, others_first: bool) -> Tensor:
    """A table [count, D] from a table [n, D], bicubic over its square of places; the other rows stay."""
    old = isqrt(len(rows))
    others = len(rows) - old * old
    new, first = isqrt(count - others), others if others_first else 0
    before, places, after = rows.split([first, old * old, others - first])
    return torch.cat([before, fit_places(places, old, new), after])


def fit_positions(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights whose tables of positions have as many rows as those that are expected."""
    fitted = dict(weights)
    for key, value in weights.items():
        shape = expected[key].shape if key in expected else value.shape
        if key.endswith(POSITIONS + BIASES) and shape[-2] != value.shape[-2]:
            rows = interpolate_rows(value.flatten(0, -2).float(), shape[-2], key.endswith(POSITIONS))
            fitted[key] = rows.to(value).reshape(shape)
    return fitted


def resize_network(backbone: ImageBackbone, side: int, folder: Path) -> ImageBackbone:
    """The network that reads images of a side, whose files are written into a folder."""
    if side == backbone.pixels.resolution:
        return backbone
    network, where = backbone.network, f"model.image.resolution {side}: {backbone.reference}"
    if not isinstance(network, GridOf) or backbone.folder is None:
        raise UsageError(
            f"{where} reads {backbone.pixels.resolution} pixels, and only a folder of transformers changes"
        )
    model: Any = network.model
    config = deepcopy(model.config)
    patch = getattr(config, "patch_size", None)
    if not isinstance(getattr(config, "image_size", None), int) or not isinstance(patch, int) or side % patch:
        raise UsageError(f"{where} has patches of {patch} pixels; expected a multiple")
    config.image_size = side
    resized = type(model)(config)
    load_strictly(resized, fit_positions(model.state_dict(), resized.state_dict()), backbone.reference)
    make_folder(folder)
    with quietly():
        resized.save_pretrained(str(folder))
    _, preprocessing = read_preprocessing(backbone.folder)
    if preprocessing:
        square = {"height": side, "width": side}
        sizes: dict[str, Any] = {key: square for key in ("size", "crop_size") if key in preprocessing}
        write_json(folder / "preprocessor_config.json", {**preprocessing, **sizes})
    return load_image_backbone(str(folder.absolute()))


def admit_half(backbone: ImageBackbone) -> None:
    """Lets a network read images of half its side too: one of transformers interpolates its positions meanwhile."""
    own, network = backbone.pixels.resolution, backbone.network
    model: Any = getattr(network, "model", network)

    def interpolate(module: Any, inputs: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return inputs, {**named, "interpolate_pos_encoding": named["pixel_values"].shape[-1] != own}

    if "interpolate_pos_encoding" in signature(model.forward).parameters:
        model.register_forward_pre_hook(interpolate, with_kwargs=True)
    try:
        with torch.inference_mode():
            network(torch.zeros(1, 3, own // 2, own // 2))
    except (RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise UsageError(f"augmentation.half: {backbone.reference} does not read {own // 2} pixels ({said})") from error
