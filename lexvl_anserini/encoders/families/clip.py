"""CLIP in the layouts of transformers, OpenAI, open_clip and DeCLIP."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from lexvl_anserini.encoders.checkpoints.clip_layout import (
    MERGES,
    NO_MERGES,
    ClipShape,
    build_open_clip,
    find_merges,
    is_declip,
    is_open_layout,
    load_clip_model,
    run_config,
)
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint, has_tokenizer
from lexvl_anserini.encoders.checkpoints.weights import read_weights
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import read_config
from lexvl_anserini.encoders.parts.clip_bpe import END, SPECIALS, START, ClipBpe
from lexvl_anserini.encoders.parts.images.pixels import CLIP_MEAN, CLIP_STD, Crop, make_crop, read_preprocessor
from lexvl_anserini.encoders.parts.images.vision import Images
from lexvl_anserini.encoders.parts.tokens import TextReader, load_tokenizer
from lexvl_anserini.encoders.parts.towers import Batch, DenseTower, Direction, Texts, in_direction
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.files import read_json

OPEN_CLIP = "open_clip_config.json"


def load_clip(
    source: Source,
    direction: Direction = "text-to-image",
    prompt: str = "",
    activation: Literal["quick_gelu", "gelu"] | None = None,
    text_max_length: int | None = None,
    dimensions: int | None = None,
    merges: str | None = None,
    open_clip: str | None = None,
) -> Encoder:
    """CLIP: the cosine of one projected state per text and image (Radford et al., 2021), dense baseline of the papers.

    Text: v = W_t ln(h)_end, the state at the end symbol. Image: v = W_v ln(h)_class. Both L2-normalised. It loads a
    folder of transformers, a folder or weight file in OpenAI's or DeCLIP's layout, or open_clip's name of one.

    Args:
        source: for weights without a tokenizer, `tokenizer` names a folder that has one.
        direction: the modalities of queries and documents.
        prompt: put before each text; "a photo of " is usual for retrieval without training (STAIR).
        activation: of the MLPs, for weights without a configuration; default quick_gelu, OpenAI's.
        text_max_length: tokens per text, with both special tokens; default the number of positions of the model (77).
        dimensions: keep only the first ones (Matryoshka); default all.
        merges: BPE merges file of weights in OpenAI's or DeCLIP's layout; default beside the weights.
        open_clip: NAME/PRETRAINED in the package open_clip, for the model of the hub that has its weights.
    """
    beside: str | None = None
    if open_clip is not None:
        source, beside = find_open_clip(source, open_clip)
    checkpoint = source.required("clip")
    weights = read_weights(checkpoint.path)
    read = read_transformers
    if is_open_layout(weights):
        read, merges = read_open_layout, merges or beside
    model, tokenizer, pixels = read(source, checkpoint, weights, merges, activation)
    limit, width = model.config.text_config.max_position_embeddings, model.config.projection_dim
    reader = TextReader(tokenizer, text_max_length or limit, limit=limit, prompt=prompt)

    def embed_texts(batch: Batch) -> Tensor:
        return model.text_projection(model.text_model(*batch.inputs).pooler_output)  # [B, D]

    def embed_images(batch: Batch) -> Tensor:
        return model.visual_projection(model.vision_model(*batch.inputs).pooler_output)  # [B, D]

    text = DenseTower(Texts(reader, source.device), embed_texts, width, dimensions=dimensions)
    image = DenseTower(Images(pixels, source.device), embed_images, width, dimensions=dimensions)
    query, document = in_direction(direction, text, image)
    return Encoder("clip", "dense", query=query, document=document)


def read_transformers(
    source: Source, checkpoint: Checkpoint, weights: Mapping[str, Tensor], merges: str | None, activation: str | None
) -> tuple[Any, Any, Crop]:
    """CLIPModel, tokenizer and crop of a transformers folder, whose config.json has defaults for missing fields."""
    import transformers

    config: Any = read_config(checkpoint.folder)
    if config.model_type != "clip":
        what = f"a {config.model_type} model, expected clip or weights in OpenAI's layout"
        raise CheckpointError(f"{checkpoint.folder}: {what}")
    if merges or activation:
        raise UsageError("merges and activation are for OpenAI's or DeCLIP's layout; config.json has its own")
    make = partial(transformers.CLIPModel, config)
    model = load_clip_model(make, weights, str(checkpoint.folder), source.device)
    tokenizer = load_tokenizer(source.tokenizer_folder(), config.text_config.vocab_size)
    return model, tokenizer, read_preprocessor(checkpoint.folder, config.vision_config.image_size)


def read_open_layout(
    source: Source, checkpoint: Checkpoint, weights: Mapping[str, Tensor], merges: str | None, activation: str | None
) -> tuple[Any, Any, Crop]:
    """The same of OpenAI's or DeCLIP's layout, with the configuration of open_clip, of a training run, or none."""
    config_file = checkpoint.folder / OPEN_CLIP
    config = {} if config_file.is_file() else run_config(checkpoint)
    if config_file.is_file():
        described = read_json(config_file, "open_clip configuration", CheckpointError)
        shape = ClipShape.from_open_clip(described.get("model_cfg") or {})
        preprocess = described.get("preprocess_cfg") or {}
    else:
        shape, preprocess = ClipShape.from_run(config), {}
    shape = replace(shape, activation=activation or shape.activation)
    where = str(checkpoint.path)
    model, declip = build_open_clip(weights, shape, where, source.device), is_declip(weights)
    size = model.config.text_config.vocab_size
    folder = source.tokenizer_folder()
    if (path := find_merges(merges, folder, config)) is not None:
        tokenizer = ClipBpe(path, SPECIALS if declip else (START, END), size)
    elif not declip and has_tokenizer(folder):  # which has OpenAI's symbols only
        tokenizer = load_tokenizer(folder, size)
    else:
        raise CheckpointError(f"{folder}: {NO_MERGES}")
    side = model.config.vision_config.image_size
    if declip:
        return model, tokenizer, make_crop(side)
    if (mode := preprocess.get("resize_mode", "shortest")) != "shortest":
        raise CheckpointError(f"{OPEN_CLIP}: resize_mode {mode!r}, expected shortest")
    # Cropped as torchvision does, with open_clip's statistics if it gives some.
    mean, std = tuple(preprocess.get("mean") or CLIP_MEAN), tuple(preprocess.get("std") or CLIP_STD)
    return model, tokenizer, Crop(side, mean, std)


def find_open_clip(source: Source, name: str) -> tuple[Source, str]:
    """The source with the checkpoint on the hub that a name of open_clip means, and the package's merges."""
    if source.checkpoint is not None:
        raise UsageError(f"open_clip={name!r} and a checkpoint exclude each other; give one of them")
    if importlib.util.find_spec("open_clip") is None:
        raise UsageError(f"open_clip={name!r} needs the package open_clip: pip install open_clip_torch")
    import open_clip

    architecture, _, pretrained = name.partition("/")
    known = open_clip.get_pretrained_cfg(architecture, pretrained)
    owner, model, file, *_ = f"{known.get('hf_hub') or ''}///".split("/")
    if not model:
        url = known.get("url")
        reason = f"its weights are not on the hub; download {url} and give its folder as checkpoint"
        raise UsageError(f"open_clip={name!r}: {reason if url else 'no name that the package has weights of'}")
    checkpoint = find_checkpoint(f"{owner}/{model}")
    checkpoint = replace(checkpoint, file=checkpoint.folder / file) if file else checkpoint
    return replace(source, checkpoint=checkpoint), str(Path(open_clip.__file__).parent / MERGES)
