"""Checkpoints of BLIP and ALBEF for image-text contrast (ITC), in any published layout, as an `ItcModel`.

Layouts: Hugging Face's `BlipForImageTextRetrieval`, LAVIS' `{"model": ...}` files, the authors' original files. ALBEF
reads a text with the layers below its fusion layer only. The cross-attention and the matching head (ITM) of a
checkpoint, which read an image and a text together and so give no vector, are not loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.find import TEXT_DESCRIPTIONS, Checkpoint, find_checkpoint
from lexvl_anserini.encoders.checkpoints.weights import build, load_strictly, read_weights
from lexvl_anserini.encoders.parts.backbones import quietly, read_config
from lexvl_anserini.encoders.parts.images.pixels import Squares, describe_squares, read_preprocessing
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.files import read_json


class ItcModel(nn.Module):
    """A ViT and a BERT with their projections; the names of its parts are Hugging Face's."""

    def __init__(self, vision: Any, text: Any, size: int):
        from transformers.models.blip.modeling_blip import BlipVisionModel
        from transformers.models.blip.modeling_blip_text import BlipTextModel

        super().__init__()
        self.vision_model = BlipVisionModel(vision)
        self.text_encoder = BlipTextModel(text, add_pooling_layer=False)
        self.vision_proj = nn.Linear(vision.hidden_size, size)
        self.text_proj = nn.Linear(text.hidden_size, size)

    def image_states(self, pixels: Tensor) -> Tensor:  # [B, 3, R, R]
        """[CLS] of the last layer after the final LayerNorm, [B, W]."""
        return self.vision_model(pixels).last_hidden_state[:, 0]

    def text_states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # [B, L] each
        """[CLS] of the last layer that ITC uses, [B, W]."""
        return self.text_encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]

    def image_features(self, pixels: Tensor) -> Tensor:
        """The projected image, [B, D], not of unit length."""
        return self.vision_proj(self.image_states(pixels))

    def text_features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The projected text, [B, D], not of unit length."""
        return self.text_proj(self.text_states(input_ids, attention_mask))


def fit_positions(positions: Tensor, before: int, after: int) -> Tensor:
    """Position embeddings [1, 1 + before^2, D] of a square grid as [1, 1 + after^2, D]: bicubic, [CLS] unchanged."""
    if before == after:
        return positions
    first, places = positions[:, :1], fit_places(positions[0, 1:], before, after)
    return torch.cat([first, places[None].to(first.dtype)], dim=1)


def fit_places(rows: Tensor, before: int, after: int) -> Tensor:
    """Rows [before^2, D] of the places of a square grid as float32 [after^2, D]: bicubic."""
    grid = rows.reshape(1, before, before, -1).permute(0, 3, 1, 2)  # [1, D, G, G]
    grid = nn.functional.interpolate(grid.float(), size=(after, after), mode="bicubic", align_corners=False)
    return grid.permute(0, 2, 3, 1).reshape(after * after, -1)


# The ViT of timm, which LAVIS and the original repositories use. Hugging Face's configuration gives its own value.
VISION_EPS = 1e-6
# BERT's.
TEXT_EPS = 1e-12
# The width of a head of ViT-B, ViT-L and BERT-base. The weights do not contain the number of heads.
HEAD_WIDTH = 64

# LAVIS' names -> Hugging Face's, in this order.
RENAMED = (
    (r"^text_encoder\.bert\.", "text_encoder."),  # the original ALBEF.pth
    (r"^visual_encoder\.cls_token$", "vision_model.embeddings.class_embedding"),
    (r"^visual_encoder\.pos_embed$", "vision_model.embeddings.position_embedding"),
    (r"^visual_encoder\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual_encoder\.norm\.", "vision_model.post_layernorm."),
    (r"^visual_encoder\.blocks\.(\d+)\.norm(\d)\.", r"vision_model.encoder.layers.\1.layer_norm\2."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.qkv\.", r"vision_model.encoder.layers.\1.self_attn.qkv."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.proj\.", r"vision_model.encoder.layers.\1.self_attn.projection."),
    (r"^visual_encoder\.blocks\.", "vision_model.encoder.layers."),
)
# Weights that the two vectors do not use: momentum copies, queues, the temperature, matching and masked-LM heads.
UNUSED = (
    r".*_m\..*",
    r"(image|text|idx)_queue|queue_ptr|ptr_queue|temp|logit_scale",
    r"itm_head\..*",
    r"text_encoder\.(cls|pooler)\..*",
    r"text_encoder\.encoder\.layer\.\d+\.crossattention\..*",
    r"text_encoder\.embeddings\.token_type_embeddings\..*",  # LAVIS uses no token types
)

POSITIONS = "vision_model.embeddings.position_embedding"
_CROSS = re.compile(r"text_encoder\.encoder\.layer\.(\d+)\.crossattention\.")
_LAYER = re.compile(r"text_encoder\.encoder\.layer\.(\d+)\.")


class LoadedItc(NamedTuple):
    """A model of "blip" or "albef", and how its layout prepares texts and images."""

    model: ItcModel
    family: str
    published: str  # "transformers" or "lavis": whose preprocessing of captions the model expects
    pixels: Squares
    tokens: int  # rows of the text embeddings
    positions: int  # the largest number of tokens of a text


def load_itc(
    checkpoint: Checkpoint,
    device: torch.device,
    resolution: int | None = None,
    head_width: int | None = None,
    fusion_layer: int | None = None,
    description: str | None = None,
) -> LoadedItc:
    """A BLIP or ALBEF retrieval model, as its configuration or its keys say; options as those of `load_albef`."""
    where, weights = str(checkpoint.path), read_weights(checkpoint.path)
    if any(key.startswith("visual_encoder.") for key in weights):
        weights = convert_names(weights)
        described = read_text_description(checkpoint, description)
        family, vision, text = read_lavis_shapes(where, weights, head_width, fusion_layer, described)
        published, pixels = "lavis", Squares(vision.image_size)
    else:
        family, vision, text = read_transformers_shapes(checkpoint)
        published, pixels = "transformers", read_squares(checkpoint, vision.image_size)
    if resolution is not None and resolution != vision.image_size:
        size = vision.patch_size
        if resolution < size or resolution % size:
            raise UsageError(f"resolution {resolution}: expected a multiple of the patch size {size}")
        fitted = fit_positions(weights[POSITIONS], count_patches(where, weights), resolution // size)
        weights, vision.image_size = {**weights, POSITIONS: fitted}, resolution
        pixels = replace(pixels, resolution=resolution)
    projection = weights.get("text_proj.weight")
    if projection is None:
        what = "not a retrieval model of BLIP or ALBEF"
        if "visual_projection.weight" in weights:  # its pooler applies the last LayerNorm twice
            what = "transformers' BlipModel, whose vectors are not BLIP's; expected BlipForImageTextRetrieval"
        elif any(key.startswith("itm_head.") for key in weights):
            what = "a matching head (ITM) gives neither image nor text a vector; expected one with projections (ITC)"
        raise CheckpointError(f"{where}: no text_proj.weight; {what}")
    with quietly(), torch.device("cpu"):
        model = build(lambda: ItcModel(vision, text, projection.shape[0]), weights, f"{where}: its configuration")
    if family == "albef":  # the layers from the fusion layer on read no text
        layers = {key: int(match[1]) for key in weights if (match := _LAYER.match(key))}
        weights = {key: value for key, value in weights.items() if layers.get(key, -1) < text.num_hidden_layers}
    load_strictly(model, weights, where, ignored=UNUSED)
    return LoadedItc(model.eval().to(device), family, published, pixels, text.vocab_size, text.max_position_embeddings)


def convert_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under Hugging Face's names, from LAVIS' or the original ones."""
    names = {}
    for key, value in weights.items():
        for pattern, replacement in RENAMED:
            key = re.sub(pattern, replacement, key)
        names[key] = value
    return names


def read_transformers_shapes(checkpoint: Checkpoint) -> tuple[str, Any, Any]:
    """Family and configurations of a Hugging Face folder."""
    config = read_config(checkpoint.folder)
    if config.model_type != "blip":
        expected = "a BLIP folder (model type 'blip'), or a file with keys visual_encoder.* and text_encoder.*"
        raise CheckpointError(f"{checkpoint.path}: model type {config.model_type!r}; expected {expected}")
    # ITC does not attend to the other modality, so the layers are built without cross-attention.
    config.text_config.is_decoder = False
    return "blip", config.vision_config, config.text_config


def read_squares(checkpoint: Checkpoint, resolution: int) -> Squares:
    """How a Hugging Face folder resizes its images; without a description, as the published ones do."""
    path, preprocessing = read_preprocessing(checkpoint.folder)
    size = preprocessing.get("size", resolution)
    sides = {size.get("height"), size.get("width")} if isinstance(size, Mapping) else {size}
    steps = [key for key in ("do_resize", "do_rescale", "do_normalize") if preprocessing.get(key) is False]
    if sides != {resolution} or steps or preprocessing.get("do_center_crop"):
        what = f"without {', '.join(steps)}" if steps else f"size {size}"
        raise CheckpointError(f"{path}: {what}; expected squares of {resolution} pixels and normalising, as BLIP")
    return describe_squares(resolution, preprocessing)


def read_text_description(checkpoint: Checkpoint, named: str | None) -> Mapping[str, Any]:
    """LAVIS' description of the text encoder: the file or folder named, else the only one beside the weights."""
    if named is not None:
        described = find_checkpoint(named, weights=False)
        files = [described.file or described.folder / "config.json"]
    else:
        files = sorted(checkpoint.folder.glob(TEXT_DESCRIPTIONS))
    return read_json(files[0], "text encoder's configuration", CheckpointError) if len(files) == 1 else {}


def read_lavis_shapes(
    where: str,
    weights: Mapping[str, Tensor],
    head_width: int | None,
    fusion_layer: int | None,
    described: Mapping[str, Any],
) -> tuple[str, Any, Any]:
    """Family and configurations, from the shapes of renamed weights and what `described` says of the text encoder."""
    from transformers import BlipTextConfig, BlipVisionConfig

    family, read = count_text_layers(where, weights, described.get("fusion_layer"), fusion_layer)
    embeddings = "text_encoder.embeddings.{}_embeddings.weight"
    words, places = (get_shape(where, weights, embeddings.format(kind)) for kind in ("word", "position"))
    patch = get_shape(where, weights, "vision_model.embeddings.patch_embedding.weight")
    grid = count_patches(where, weights)
    vision_width, text_width = patch[0], words[1]
    if described.get("hidden_size", text_width) != text_width:
        says = f"its description says {described['hidden_size']}"
        raise CheckpointError(f"{where}: a text encoder of width {text_width}; {says}")
    vision_heads, text_heads = count_heads(where, vision_width, text_width, head_width, described)
    vision = BlipVisionConfig(
        hidden_size=vision_width,
        intermediate_size=get_shape(where, weights, "vision_model.encoder.layers.0.mlp.fc1.weight")[0],
        num_hidden_layers=len({key.split(".")[3] for key in weights if key.startswith("vision_model.encoder.layers.")}),
        num_attention_heads=vision_heads,
        image_size=grid * patch[2],
        patch_size=patch[2],
        layer_norm_eps=VISION_EPS,
    )
    text = BlipTextConfig(
        vocab_size=words[0],
        hidden_size=text_width,
        intermediate_size=get_shape(where, weights, "text_encoder.encoder.layer.0.intermediate.dense.weight")[0],
        num_hidden_layers=read,
        num_attention_heads=text_heads,
        layer_norm_eps=described.get("layer_norm_eps", TEXT_EPS),
        hidden_act=described.get("hidden_act", "gelu"),
        max_position_embeddings=places[0],
        is_decoder=False,
        # Used by generation only; the defaults are outside of small vocabularies.
        bos_token_id=None,
        eos_token_id=None,
        sep_token_id=None,
    )
    return family, vision, text


def count_text_layers(
    where: str, weights: Mapping[str, Tensor], described: int | None, fusion_layer: int | None
) -> tuple[str, int]:
    """The family, and how many text layers ITC uses: ALBEF has cross-attention from the fusion layer on."""
    layers = 1 + max((int(match[1]) for key in weights if (match := _LAYER.match(key))), default=-1)
    crossing = sorted({int(match[1]) for key in weights if (match := _CROSS.match(key))})
    if fusion_layer is None and not crossing:
        fusion_layer = described
    if not crossing and fusion_layer is None:
        remedy = "give the number of layers that read a text with --set fusion_layer=N (ALBEF: 6)"
        raise CheckpointError(f"{where}: no text layer has cross-attention, so BLIP or ALBEF; {remedy}")
    family = "blip" if crossing and crossing[0] == 0 else "albef"
    read = fusion_layer if fusion_layer is not None else layers if family == "blip" else crossing[0]
    if not 0 < read <= layers:
        raise UsageError(f"fusion_layer {read}: the text encoder has {layers} layers")
    return family, read


def count_heads(
    where: str, vision_width: int, text_width: int, head_width: int | None, described: Mapping[str, Any]
) -> tuple[int, int]:
    """Attention heads of the vision and of the text encoder; a description has the number of the latter."""
    noted = described.get("num_attention_heads") if head_width is None else None
    text_heads = noted or split_width(where, text_width, head_width or HEAD_WIDTH)
    if noted is None or vision_width % HEAD_WIDTH == 0:
        return split_width(where, vision_width, head_width or HEAD_WIDTH), text_heads
    for width in (vision_width, text_width):
        split_width(where, width, width // text_heads)
    return text_heads, text_heads


def split_width(where: str, width: int, head_width: int) -> int:
    """The number of heads of `head_width` in a width."""
    if not head_width or width % head_width:
        raise UsageError(f"head_width {head_width}: does not divide the width {width} of {where}")
    return width // head_width


def get_shape(where: str, weights: Mapping[str, Tensor], key: str) -> tuple[int, ...]:
    """The shape of a weight."""
    if key not in weights:
        raise CheckpointError(f"{where}: no {key}; not a retrieval model of BLIP or ALBEF")
    return tuple(weights[key].shape)


def count_patches(where: str, weights: Mapping[str, Tensor]) -> int:
    """Patches along one side of the image that the position embeddings were trained for."""
    rows = get_shape(where, weights, POSITIONS)[1]
    side = round((rows - 1) ** 0.5)
    if side * side + 1 != rows:
        raise CheckpointError(f"{where}: {rows} position embeddings, expected those of a square grid and [CLS]")
    return side
