"""VDR cross-modal: texts and images as weights over one vocabulary (Zhou et al., ICLR 2024).

Text:  w = elu1p(max_i <ln(h_i), E_v>) over the ASCII tokens v of BERT's vocabulary, L2-normalised, top-k or own tokens.
Image: w = elu1p(max_p <h_p, P_v>) over the patches p of a vision transformer without class token, L2-normalised, top-k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.activations import elu1p
from lexvl_anserini.encoders.base import Encoder
from lexvl_anserini.encoders.checkpoints import Checkpoint, complain, load_strictly, read_weights
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.pooling import masked_max
from lexvl_anserini.encoders.tokens import FIRST_WORD_ID, Columns, columns_ascii
from lexvl_anserini.encoders.towers import Composition, Head
from lexvl_anserini.encoders.vdr import SIDES, TOPK, Side, bert_side, vdr_sparsifier
from lexvl_anserini.encoders.vision import ImageTower, PatchTransformer, Pixels
from lexvl_anserini.errors import CheckpointError

# Hub files carry the first name, checkpoints from before June 2024 the second.
TEXT_TYPES = ("vdr_crossmodal_text", "vdr_cm_text")
IMAGE_TYPES = ("vdr_crossmodal_image", "vdr_cm_image")

# What the published configurations leave out.
VISION_DEFAULTS = {"resolution": 224, "patch_size": 32, "width": 768, "layers": 12, "heads": 12}


def load_vdr_crossmodal(
    source: Source,
    direction: Literal["text-to-image", "image-to-text"] = "text-to-image",
    mode: Literal["full", "alpha"] = "full",
    topk: int | None = None,
    query_topk: int | None = None,
    lexical_union: bool = True,
    text_max_length: int | None = None,
) -> Encoder:
    """A checkpoint in the published layout: `encoder_q` reads texts, `encoder_p` images.

    Args:
        source: the text side names its backbone by `model_id`; `tokenizer` and `backbone_config` override it.
        direction: which side asks.
        mode: full; alpha (texts are binary bags of their own tokens: no text encoder at query time).
        topk: dimensions kept per document; -1 all, 0 a text's own tokens only; default the checkpoint's.
        query_topk: the same for queries; default `topk`.
        lexical_union: texts keep their own tokens besides the top k, as the reference always does.
        text_max_length: tokens per text; default the checkpoint's.

    Raises:
        CheckpointError: another layout, or weights that do not fit.
    """
    checkpoint = source.required("vdr-crossmodal")
    config, weights = checkpoint.config(), read_weights(checkpoint.folder)
    text_about = about(checkpoint, config, "encoder_q", TEXT_TYPES)
    image_about = about(checkpoint, config, "encoder_p", IMAGE_TYPES)
    complain(str(checkpoint.folder), (), [key for key in weights if key.partition(".")[0] not in SIDES], ())
    # Checkpoints over another vocabulary than BERT's say from which id on its tokens are words.
    columns_of = partial(columns_ascii, shift=text_about.get("first_word_id") or FIRST_WORD_ID)
    text = bert_side(source, checkpoint, text_about, "encoder_q", weights, columns_of)
    query_topk = topk if query_topk is None else query_topk
    text_topk, image_topk = (query_topk, topk) if direction == "text-to-image" else (topk, query_topk)
    text = text.adjusted(text_topk, lexical_union, text_max_length, text_about.get("padding"))
    # The reference normalises what the network gives, never the bag of tokens.
    text_tower = text.bag() if mode == "alpha" else replace(text, normalise=True).tower()
    images = image_tower(source, checkpoint, image_about, weights, text, image_topk)
    query, document = (text_tower, images) if direction == "text-to-image" else (images, text_tower)
    return Encoder("vdr-crossmodal", "impact", query=query, document=document)


def about(checkpoint: Checkpoint, config: Mapping[str, Any], prefix: str, types: tuple[str, ...]) -> Mapping[str, Any]:
    """The entry of config.json for one side.

    Raises:
        CheckpointError: it is not there, or of another type.
    """
    entry = config.get(prefix) or {}
    if entry.get("type") not in types:
        raise CheckpointError(f"{checkpoint.folder}: {prefix} is of type {entry.get('type')!r}, expected {types[0]!r}")
    return entry


def vision_shape_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the PatchTransformer that an entry of config.json describes."""
    shape = {key: default if entry.get(key) is None else entry[key] for key, default in VISION_DEFAULTS.items()}
    return shape | ({"stem": entry["stem"]} if entry.get("stem") else {})


def image_tower(
    source: Source,
    checkpoint: Checkpoint,
    entry: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    text: Side,
    topk: int | None,
) -> ImageTower:
    """The image side from the keys `encoder_p.*`; its vocabulary is the text side's."""
    shape = vision_shape_of(entry)
    own = {k.removeprefix("encoder_p."): v for k, v in weights.items() if k.startswith("encoder_p.")}
    columns: Columns = text.columns
    model = nn.Module()
    model.vision = PatchTransformer(**shape)
    model.proj = nn.Parameter(torch.empty(len(columns.vocabulary), shape["width"]))
    named = {key if key == "proj" else f"vision.{key}": value for key, value in own.items()}
    load_strictly(model, named, f"{checkpoint.folder}: encoder_p")
    model.eval().to(source.device)
    k = entry.get("topk") or TOPK
    composition = Composition(
        backbone=model.vision,
        head=Head(nn.Identity(), model.proj.detach()),
        activation=elu1p,
        pooling=masked_max,
        sparsifier=vdr_sparsifier(k if topk is None else topk, lexical_union=False),
        normalise=True,
    )
    return ImageTower(composition, Pixels(shape["resolution"]), columns, source.device)
