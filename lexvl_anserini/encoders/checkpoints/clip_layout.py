"""CLIP checkpoints in the layouts of OpenAI (also open_clip) and DeCLIP (also FILIP, FDT), as transformers' CLIPModel.

The module renames the keys and reads the sizes of the network from the shapes of the weights.

FDT's image tower may be a Swin transformer V2 in its authors' layout, read as Swinv2ForImageClassification: the model
of images with the classifier as an unused projection. Weights say all sizes but those of the windows and of the image,
which their buffers or the configuration of the run have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.find import CONFIGURATIONS, Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import build, load_strictly
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.machine import expand_path

# Width of a head if there is no number of heads: that of all of OpenAI's models.
HEAD_WIDTH = 64

# OpenAI's merges, in all these repositories.
MERGES = "bpe_simple_vocab_16e6.txt.gz"
NO_MERGES = f"no BPE merges ({MERGES}); name the file with --set merges=FILE, or its folder with --tokenizer"

# Keys of OpenAI's files that are not weights, and the mask, which the model computes itself.
IGNORED = (r"(.*\.)?attn_mask", "input_resolution", "context_length", "vocab_size")

# Module names inside one residual block.
BLOCK = {
    "attn.out_proj": "self_attn.out_proj",
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
VISION = {
    "class_embedding": "embeddings.class_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
    "conv1.weight": "embeddings.patch_embedding.weight",
    "ln_pre.weight": "pre_layrnorm.weight",
    "ln_pre.bias": "pre_layrnorm.bias",
    "ln_post.weight": "post_layernorm.weight",
    "ln_post.bias": "post_layernorm.bias",
}
TEXT = {
    "token_embedding.weight": "embeddings.token_embedding.weight",
    "positional_embedding": "embeddings.position_embedding.weight",
    "ln_final.weight": "final_layer_norm.weight",
    "ln_final.bias": "final_layer_norm.bias",
}
RESIDUAL = re.compile(r"transformer\.resblocks\.(\d+)\.(.+)")
PACKED = re.compile(r"attn\.in_proj_(weight|bias)")


def is_open_layout(weights: Mapping[str, Tensor]) -> bool:
    """True if the keys are OpenAI's or DeCLIP's."""
    return "visual.conv1.weight" in weights and "visual.class_embedding" in weights


def is_declip(weights: Mapping[str, Tensor]) -> bool:
    """True if the keys of the text tower have a prefix, as in DeCLIP's layout."""
    return any(key.startswith("encode_text.") for key in weights)


def convert_names(weights: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """The weights under transformers' names; keys of no tower stay, for the error of strict loading."""
    text_prefix = "encode_text." if is_declip(weights) else ""
    result: dict[str, Tensor] = {}
    for key, value in weights.items():
        if any(re.fullmatch(pattern, key) for pattern in IGNORED):
            continue
        if key == "visual.proj":
            result["visual_projection.weight"] = value.T.contiguous()
        elif key == "text_projection":
            result["text_projection.weight"] = value.T.contiguous()
        elif key.startswith("encode_text.text_projection."):
            result[key.removeprefix("encode_text.")] = value
        elif key.startswith("visual."):
            result.update(_convert_weight(key.removeprefix("visual."), value, "vision_model.", VISION, where))
        elif key.startswith(text_prefix) and key != "logit_scale":
            result.update(_convert_weight(key.removeprefix(text_prefix), value, "text_model.", TEXT, where))
        else:
            result[key] = value.reshape(()) if key == "logit_scale" and value.numel() == 1 else value
    return result


def _convert_weight(key: str, value: Tensor, prefix: str, names: Mapping[str, str], where: str) -> dict[str, Tensor]:
    """One weight of one tower; the packed query, key and value projections become three."""
    if key in names:
        return {prefix + names[key]: value}
    if not (inside := RESIDUAL.fullmatch(key)):
        return {key: value}
    block = f"{prefix}encoder.layers.{inside[1]}."
    if packed := PACKED.fullmatch(inside[2]):
        if value.shape[0] % 3:
            raise CheckpointError(f"{where}: {key} {list(value.shape)}, expected three projections of one shape")
        parts = zip("qkv", value.chunk(3), strict=True)
        return {f"{block}self_attn.{part}_proj.{packed[1]}": rows.contiguous() for part, rows in parts}
    module, _, kind = inside[2].rpartition(".")
    return {f"{block}{BLOCK.get(module, module)}.{kind}": value}


def name_in_file(key: str, declip: bool) -> str:
    """The name in OpenAI's or DeCLIP's layout of a weight that `convert_names` gives transformers' name.

    >>> name_in_file("vision_model.encoder.layers.3.self_attn.k_proj.bias", declip=False)
    'visual.transformer.resblocks.3.attn.in_proj_bias'
    """
    if key.startswith("visual_projection."):
        return "visual.proj"
    text_prefix = "encode_text." if declip else ""
    if key.startswith("text_projection."):
        return f"{text_prefix}{key}" if declip else "text_projection"
    for tower, prefix, names in (("vision_model.", "visual.", VISION), ("text_model.", text_prefix, TEXT)):
        if key.startswith(tower):
            inside = key.removeprefix(tower)
            return prefix + {theirs: ours for ours, theirs in names.items()}.get(inside, _block_in_file(inside))
    return key


def _block_in_file(key: str) -> str:
    """A weight of one residual block, without its tower: `encoder.layers.0.mlp.fc1.bias`."""
    if not (match := re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)\.(\w+)", key)):
        return key
    number, module, kind = match.groups()
    block = f"transformer.resblocks.{number}."
    if re.fullmatch(r"self_attn\.[qkv]_proj", module):
        return f"{block}attn.in_proj_{kind}"
    return f"{block}{ {theirs: ours for ours, theirs in BLOCK.items()}.get(module, module) }.{kind}"


@dataclass(frozen=True)
class ClipShape:
    """Facts that shapes of weights do not give; no number of heads means widths of 64 each."""

    vision_heads: int | None = None
    text_heads: int | None = None
    activation: str = "quick_gelu"

    @classmethod
    def from_run(cls, config: Mapping[str, Any]) -> ClipShape:
        """Reads the configuration of a DeCLIP or FDT run, with entries under `model.kwargs`."""
        image, text = run_entry(config, "image_encode"), run_entry(config, "text_encode")
        return cls(image.get("heads"), text.get("transformer_heads"))

    @classmethod
    def from_open_clip(cls, config: Mapping[str, Any]) -> ClipShape:
        """Reads the configuration of an open_clip model."""
        vision, text = config.get("vision_cfg") or {}, config.get("text_cfg") or {}
        width, head_width = vision.get("width"), vision.get("head_width") or HEAD_WIDTH
        heads = width // head_width if isinstance(width, int) else None
        return cls(heads, text.get("heads"), "quick_gelu" if config.get("quick_gelu") else "gelu")


def run_entry(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An entry under `model.kwargs` in the configuration of a DeCLIP or FDT run."""
    kwargs = (config.get("model") or {}).get("kwargs") or {}
    return (kwargs.get("clip") or kwargs).get(name) or {}  # `clip` is of DeCLIP+FDT


def run_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The configuration of the training run, beside the weights or one folder above; empty if there is none."""
    for folder in (checkpoint.folder, checkpoint.folder.parent):
        if any((folder / name).is_file() for name in CONFIGURATIONS):
            return replace(checkpoint, folder=folder, file=None).config()
    return {}


def find_merges(named: str | None, folder: Path, config: Mapping[str, Any]) -> Path | None:
    """The BPE merges: the file that the user names, else the run's or OpenAI's in `folder`; None if there is none."""
    if named is not None:
        path = expand_path(named)
        if not path.is_file():
            raise CheckpointError(f"{named}: no such file; name CLIP's BPE merges (bpe_simple_vocab_16e6.txt.gz)")
        return path
    named_file = run_entry(config, "text_encode").get("bpe_path")
    for name in (Path(named_file).name if named_file else MERGES, MERGES, MERGES.removesuffix(".gz")):
        for place in (folder, folder.parent):
            if (place / name).is_file():
                return place / name
    return None


@contextmanager
def list_missing(where: str, name_in_file: Callable[[str], str]) -> Iterator[None]:
    """Names the weight without which no size is known."""
    try:
        yield
    except KeyError as error:
        missing = name_in_file(error.args[0])
        raise CheckpointError(f"{where}: the weights do not fit the model; missing: {missing}") from error


def measure_vision(weights: Mapping[str, Tensor], shape: ClipShape, where: str) -> dict[str, Any]:
    """The sizes of the image tower, as transformers' configuration has them."""
    patches = weights["vision_model.embeddings.patch_embedding.weight"]  # [D, 3, P, P]
    positions = weights["vision_model.embeddings.position_embedding.weight"]  # [1 + patches, D]
    side = round((positions.shape[0] - 1) ** 0.5)
    if side * side + 1 != positions.shape[0]:
        raise CheckpointError(f"{where}: {positions.shape[0]} image positions, expected a square of patches and one")
    own = {"image_size": side * patches.shape[-1], "patch_size": patches.shape[-1]}
    return own | measure_tower(weights, "vision_model", patches.shape[0], shape.vision_heads, shape, where)


def measure_text(weights: Mapping[str, Tensor], shape: ClipShape, where: str) -> dict[str, Any]:
    """The sizes of the text tower, as transformers' configuration has them."""
    tokens, width = weights["text_model.embeddings.token_embedding.weight"].shape
    context = weights["text_model.embeddings.position_embedding.weight"].shape[0]
    own = {"vocab_size": tokens, "max_position_embeddings": context, "eos_token_id": HIGHEST_ID}
    return own | measure_tower(weights, "text_model", width, shape.text_heads, shape, where)


def measure_tower(
    weights: Mapping[str, Tensor], tower: str, width: int, heads: int | None, shape: ClipShape, where: str
) -> dict[str, Any]:
    """The sizes that both towers have."""
    heads = heads or max(1, width // HEAD_WIDTH)
    if width % heads:
        raise CheckpointError(f"{where}: width {width} and {heads} heads")
    layers = (re.match(rf"{tower}\.encoder\.layers\.(\d+)\.", key) for key in weights)
    return {
        "hidden_size": width,
        "intermediate_size": weights[f"{tower}.encoder.layers.0.mlp.fc1.bias"].shape[0],
        "num_hidden_layers": 1 + max((int(layer[1]) for layer in layers if layer), default=-1),
        "num_attention_heads": heads,
        "hidden_act": shape.activation,
    }


# With this token id as the end of a text, transformers pools at the highest token id.
HIGHEST_ID = 2


def build_open_clip(weights: Mapping[str, Tensor], shape: ClipShape, where: str, device: torch.device) -> Any:
    """A CLIPModel with exactly `weights`, which are in OpenAI's or DeCLIP's layout and say its sizes."""
    import transformers

    names, in_file = convert_names(weights, where), partial(name_in_file, declip=is_declip(weights))
    with list_missing(where, in_file):
        vision, text = measure_vision(names, shape, where), measure_text(names, shape, where)
        joint: dict[str, Any] = {"projection_dim": names["visual_projection.weight"].shape[0]}
    config = transformers.CLIPConfig(vision_config=vision | joint, text_config=text | joint, **joint)
    return load_clip_model(lambda: transformers.CLIPModel(config), names, where, device, in_file)


def build_open_texts(weights: Mapping[str, Tensor], shape: ClipShape, where: str, device: torch.device) -> Any:
    """The text tower alone, a CLIPTextModelWithProjection with exactly `weights`, in OpenAI's or DeCLIP's layout."""
    import transformers

    names, in_file = convert_names(weights, where), partial(name_in_file, declip=is_declip(weights))
    with list_missing(where, in_file):
        joint = names["text_projection.weight"].shape[0]
        config = transformers.CLIPTextConfig(**measure_text(names, shape, where), projection_dim=joint)
    return load_clip_model(lambda: transformers.CLIPTextModelWithProjection(config), names, where, device, in_file)


def load_clip_model(
    make: Callable[[], Any],
    weights: Mapping[str, Tensor],
    where: str,
    device: torch.device,
    name_in_file: Callable[[str], str] = str,
) -> Any:
    """A model with exactly `weights`, which have transformers' names; errors use the names in the file."""
    model = build(make, weights, f"{where}: its configuration")
    if "text_projection.bias" in weights:  # DeCLIP's layout
        plain = model.text_projection
        model.text_projection = nn.Linear(plain.in_features, plain.out_features)
    load_strictly(model, weights, where, name_in_file=name_in_file)
    return model.float().eval().to(device)


# The beginnings of keys, theirs and transformers': of the whole model, and inside one block.
SWIN_MODEL = {
    "patch_embed.proj": "swinv2.embeddings.patch_embeddings.projection",
    "patch_embed.norm": "swinv2.embeddings.norm",
    "layers": "swinv2.encoder.layers",
    "norm": "swinv2.layernorm",
    "head": "classifier",
}
SWIN_BLOCK = {
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
SWIN_PACKED, PARTS = "attn.qkv.weight", ("query", "key", "value")

# Buffers that the model computes itself, and the table of the first window, whose size gives that of windows.
SWIN_IGNORED = r".*\.(attn_mask|relative_coords_table|relative_position_index)"
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


def name_swin_in_file(key: str) -> str:
    """The name in the authors' layout of a weight of transformers.

    >>> name_swin_in_file("swinv2.encoder.layers.1.blocks.0.attention.self.key.weight")
    'layers.1.blocks.0.attn.qkv.weight'
    """
    before, projection, _ = key.partition(".attention.self.")
    if projection and re.fullmatch(r"(query|key|value)\.weight", key.removeprefix(f"{before}{projection}")):
        return f"{_begun(before, {ours: theirs for theirs, ours in SWIN_MODEL.items()})}.{SWIN_PACKED}"
    return replace_names(key, *({ours: theirs for theirs, ours in names.items()} for names in (SWIN_MODEL, SWIN_BLOCK)))


def convert_swin_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under transformers' names, without buffers; other keys stay, for the error of strict loading."""
    result: dict[str, Tensor] = {}
    for key, value in weights.items():
        if re.fullmatch(SWIN_IGNORED, key):
            continue
        if key.endswith(f".{SWIN_PACKED}"):
            block = replace_names(key.removesuffix(f".{SWIN_PACKED}"), SWIN_MODEL, SWIN_BLOCK)
            parts = zip(PARTS, value.chunk(3), strict=False)
            result |= {f"{block}.attention.self.{part}.weight": rows.contiguous() for part, rows in parts}
        else:
            result[replace_names(key, SWIN_MODEL, SWIN_BLOCK)] = value
    return result


def build_swin_config(weights: Mapping[str, Tensor], entry: Mapping[str, Any], where: str) -> Any:
    """Transformers' configuration for weights with the authors' names; `entry` is used where they have no buffers."""
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
        missing = f"visual.{error.args[0]}"
        raise CheckpointError(f"{where}: the weights do not fit a Swin transformer V2; missing: {missing}") from error
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

    config, names = build_swin_config(weights, entry, where), convert_swin_names(weights)
    make = partial(transformers.Swinv2ForImageClassification, config)
    return load_clip_model(make, names, where, device, lambda key: f"visual.{name_swin_in_file(key)}")
