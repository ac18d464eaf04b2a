"""BLIP retrieval, dense: the cosine of the [CLS] states of a ViT and a BERT (Li et al., ICML 2022, ITC).

Text:  v = W_t h_[CLS] of a bidirectional BERT without token types, of unit length.
Image: v = W_v h_[CLS] of a ViT after its final LayerNorm, of unit length.
"""

from __future__ import annotations

from lexvl_anserini.encoders.checkpoints.itc_layout import load_itc
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.features import MAX_LENGTH, caption_items
from lexvl_anserini.encoders.parts.images.vision import Images
from lexvl_anserini.encoders.parts.towers import DenseTower, Direction, in_direction
from lexvl_anserini.ground.errors import CheckpointError


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
        source: weight files have no tokenizer; default that of `bert-base-uncased`, or `tokenizer` names its folder.
        direction: the modalities of queries and documents; text-to-text compares captions.
        clean: lower-case texts, drop punctuation, keep fifty words; default as the layout's own code does: true for
            weight files of LAVIS, false for Hugging Face folders. The authors measured with it.
        max_length: tokens per text.
        resolution: side of the images in pixels; default the checkpoint's. Another one interpolates positions.
        head_width: of attention heads, which weight files do not contain; default the value in a med_config.json beside
            the file (or named by `backbone_config`), else 64.
        dimensions: keep only the first ones of each vector.
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
    """BLIP or ALBEF, which differ in the number of layers that read a text."""
    checkpoint = source.required(family)
    loaded = load_itc(checkpoint, source.device, resolution, head_width, fusion_layer, source.backbone_config)
    if loaded.family != family:
        raise CheckpointError(
            f"{checkpoint.path}: the weights are of {loaded.family.upper()}; load them with --encoder {loaded.family}"
        )
    model = loaded.model
    width = model.text_proj.out_features

    captions = caption_items(source, checkpoint, loaded, clean, max_length)
    images = Images(loaded.pixels, source.device)
    text = DenseTower(captions, lambda batch: model.text_features(*batch.inputs), width, dimensions=dimensions)
    image = DenseTower(images, lambda batch: model.image_features(*batch.inputs), width, dimensions=dimensions)
    query, document = in_direction(direction, text, image)
    return Encoder(family, "dense", query=query, document=document)
