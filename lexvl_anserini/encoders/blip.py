"""BLIP retrieval, dense: the cosine of the [CLS] states of a ViT and a BERT (Li et al., ICML 2022, ITC).

Text:  v = W_t h_[CLS] of a bidirectional BERT without token types, of unit length.
Image: v = W_v h_[CLS] of a ViT after its final LayerNorm, of unit length.
"""

from __future__ import annotations

from lexvl_anserini.encoders.checkpoints.itc_layout import load_itc
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.caption_cleaning import MAX_LENGTH
from lexvl_anserini.encoders.parts.dense import DenseTower
from lexvl_anserini.encoders.parts.features import caption_items, image_items
from lexvl_anserini.encoders.parts.sides import Direction, in_direction
from lexvl_anserini.errors import CheckpointError


def load_blip(
    source: Source,
    direction: Direction = "text-to-image",
    clean: bool | None = None,
    max_length: int = MAX_LENGTH,
    resolution: int | None = None,
    head_width: int | None = None,
    dimensions: int | None = None,
) -> Encoder:
    """A Hugging Face folder (`BlipForImageTextRetrieval`) or a weight file of LAVIS or of the authors.

    Args:
        source: weight files come without tokenizer: `bert-base-uncased`, or name its folder.
        direction: which side asks; text-to-text compares captions.
        clean: lower-case texts, drop punctuation, keep fifty words; default as the layout's own code does, so for
            weight files of LAVIS but not for Hugging Face folders. The authors' figures are with it.
        max_length: tokens per text.
        resolution: side of the pictures in pixels; default the checkpoint's. Another one interpolates positions.
        head_width: of attention heads, which weight files do not tell; default what a med_config.json beside the file
            (or named by `backbone_config`) says, else 64.
        dimensions: keep the first ones of each vector only.

    Raises:
        CheckpointError: another layout or family, or weights that do not fit.
    """
    return load_family("blip", source, direction, clean, max_length, resolution, head_width, None, dimensions)


def load_family(
    family: str,
    source: Source,
    direction: Direction,
    clean: bool | None,
    max_length: int,
    resolution: int | None,
    head_width: int | None,
    fusion_layer: int | None,
    dimensions: int | None,
) -> Encoder:
    """BLIP or ALBEF, which differ in how many layers read a text.

    Raises:
        CheckpointError: the checkpoint is the other family's.
    """
    checkpoint = source.required(family)
    loaded = load_itc(checkpoint, source.device, resolution, head_width, fusion_layer, source.backbone_config)
    if loaded.family != family:
        raise CheckpointError(
            f"{checkpoint.path}: the weights are of {loaded.family.upper()}; load them with --encoder {loaded.family}"
        )
    model = loaded.model
    width = model.text_proj.out_features

    captions, pictures = (
        caption_items(source, checkpoint, loaded, clean, max_length),
        image_items(loaded, source.device),
    )
    text = DenseTower(captions, lambda batch: model.text_features(*batch.inputs), width, dimensions=dimensions)
    image = DenseTower(pictures, lambda batch: model.image_features(*batch.inputs), width, dimensions=dimensions)
    query, document = in_direction(direction, text, image)
    return Encoder(family, "dense", query=query, document=document)
