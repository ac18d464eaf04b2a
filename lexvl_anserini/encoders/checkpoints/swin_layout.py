"""Swin transformers V2 in the layout of their authors' code, as transformers' Swinv2ForImageClassification.

FDT's image tower of this kind is the model of images with the classifier as an unused projection. Weights say all sizes
but those of the windows and of the image, which their buffers or the configuration of the run have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from lexvl_anserini.encoders.checkpoints.weights import build, load_strictly
from lexvl_anserini.ground.errors import CheckpointError

# The beginnings of keys, theirs and transformers': of the whole model, and inside one block.
MODEL = {
    "patch_embed.proj": "swinv2.embeddings.patch_embeddings.projection",
    "patch_embed.norm": "swinv2.embeddings.norm",
    "layers": "swinv2.encoder.layers",
    "norm": "swinv2.layernorm",
    "head": "classifier",
}
BLOCK = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.logit_scale": "attention.self.logit_scale",
    "attn.cpb_mlp": "attention.self.continuous_position_bias_mlp",
    "attn.q_bias": "attention.self.query.bias",
    "attn.v_bias": "attention.self.value.bias",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
IN_BLOCK = re.compile(r"(.*layers\.\d+\.blocks\.\d+)\.(.+)")
PACKED, PARTS = "attn.qkv.weight", ("query", "key", "value")

# Buffers that the model computes itself, and the table of the first window, whose size gives that of windows.
IGNORED = r".*\.(attn_mask|relative_coords_table|relative_position_index)"
FIRST, SHIFTED = "layers.0.blocks.0.attn.relative_coords_table", "layers.0.blocks.1.attn_mask"

# The sizes of the published models, which neither weights nor configuration need to say.
WINDOW, RESOLUTION = 7, 224


def is_swin(weights: Mapping[str, Tensor], prefix: str = "visual.") -> bool:
    """True if the keys of the image tower are those of a Swin transformer, of version 1 or 2."""
    return f"{prefix}patch_embed.proj.weight" in weights


def replace_names(key: str, of_model: Mapping[str, str], of_block: Mapping[str, str]) -> str:
    """A key whose beginning, and whose beginning inside a block, is replaced."""
    if inside := IN_BLOCK.fullmatch(key):
        return f"{_begun(inside[1], of_model)}.{_begun(inside[2], of_block)}"
    return _begun(key, of_model)


def _begun(key: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if key == old or key.startswith(f"{old}."):
            return new + key[len(old) :]
    return key


def name_in_file(key: str) -> str:
    """The name in the authors' layout of a weight of transformers.

    >>> name_in_file("swinv2.encoder.layers.1.blocks.0.attention.self.key.weight")
    'layers.1.blocks.0.attn.qkv.weight'
    """
    before, projection, _ = key.partition(".attention.self.")
    if projection and re.fullmatch(r"(query|key|value)\.weight", key.removeprefix(f"{before}{projection}")):
        return f"{_begun(before, {ours: theirs for theirs, ours in MODEL.items()})}.{PACKED}"
    return replace_names(key, *({ours: theirs for theirs, ours in names.items()} for names in (MODEL, BLOCK)))


def convert_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under transformers' names, without buffers; other keys stay, for the error of strict loading."""
    result: dict[str, Tensor] = {}
    for key, value in weights.items():
        if re.fullmatch(IGNORED, key):
            continue
        if key.endswith(f".{PACKED}"):
            block = replace_names(key.removesuffix(f".{PACKED}"), MODEL, BLOCK)
            parts = zip(PARTS, value.chunk(3), strict=False)
            result |= {f"{block}.attention.self.{part}.weight": rows.contiguous() for part, rows in parts}
        else:
            result[replace_names(key, MODEL, BLOCK)] = value
    return result


def build_swin_config(weights: Mapping[str, Tensor], entry: Mapping[str, Any], where: str) -> Any:
    """Transformers' configuration for weights with the authors' names.

    Args:
        weights: of the image tower, with their buffers if they have them.
        entry: of the configuration of the run, with `input_resolution` and `window_size` where weights have no buffers.
        where: names the file in errors.
    """
    import transformers

    blocks = [match for key in weights if (match := re.match(r"layers\.(\d+)\.blocks\.(\d+)\.attn\.", key))]
    stages = 1 + max((int(match[1]) for match in blocks), default=-1)
    depths = [1 + max((int(match[2]) for match in blocks if int(match[1]) == n), default=-1) for n in range(stages)]
    try:
        heads = [weights[f"layers.{number}.blocks.0.attn.logit_scale"].shape[0] for number in range(stages)]
        patches = weights["patch_embed.proj.weight"]  # [D, 3, P, P]
        hidden = weights["layers.0.blocks.0.mlp.fc1.weight"].shape[0]
        classes = weights["head.weight"].shape[0]
    except KeyError as error:
        raise CheckpointError(
            f"{where}: the weights do not fit a Swin transformer V2; missing: visual.{error.args[0]}"
        ) from error
    window = (weights[FIRST].shape[1] + 1) // 2 if FIRST in weights else entry.get("window_size") or WINDOW
    resolution = entry.get("input_resolution") or RESOLUTION
    if SHIFTED in weights:
        resolution = isqrt(weights[SHIFTED].shape[0]) * window * patches.shape[-1]
    config = transformers.Swinv2Config(
        image_size=resolution,
        patch_size=patches.shape[-1],
        embed_dim=patches.shape[0],
        depths=depths,
        num_heads=heads,
        window_size=window,
        mlp_ratio=hidden / patches.shape[0],
        qkv_bias="layers.0.blocks.0.attn.q_bias" in weights,
    )
    config.num_labels = classes
    return config


def build_swin(weights: Mapping[str, Tensor], entry: Mapping[str, Any], where: str, device: torch.device) -> Any:
    """A Swinv2ForImageClassification with exactly `weights`, which have the authors' names without `visual.`."""
    import transformers

    config, names = build_swin_config(weights, entry, where), convert_names(weights)
    model = build(lambda: transformers.Swinv2ForImageClassification(config), names, f"{where}: its configuration")
    load_strictly(model, names, where, name_in_file=lambda key: f"visual.{name_in_file(key)}")
    return model.float().eval().to(device)
