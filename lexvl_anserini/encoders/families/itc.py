"""BLIP and ALBEF: dense pairs trained by image-text contrast (ITC)."""

from __future__ import annotations

from lexvl_anserini.encoders.checkpoints.itc_layout import load_itc
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.features import MAX_LENGTH, make_caption_items
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
    """BLIP retrieval, dense: the cosine of the [CLS] states of a ViT and a BERT (Li et al., ICML 2022, ITC).

    Text:  v = W_t h_[CLS] of a bidirectional BERT without token types, of unit length.
    Image: v = W_v h_[CLS] of a ViT after its final LayerNorm, of unit length.

    A Hugging Face folder (`BlipForImageTextRetrieval`) or a weight file of LAVIS or of the authors.

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
        remedy = f"load them with --encoder {loaded.family}"
        raise CheckpointError(f"{checkpoint.path}: the weights are of {loaded.family.upper()}; {remedy}")
    model = loaded.model
    width = model.text_proj.out_features

    captions = make_caption_items(source, checkpoint, loaded, clean, max_length)
    images = Images(loaded.pixels, source.device)
    text = DenseTower(captions, lambda batch: model.text_features(*batch.inputs), width, dimensions=dimensions)
    image = DenseTower(images, lambda batch: model.image_features(*batch.inputs), width, dimensions=dimensions)
    query, document = in_direction(direction, text, image)
    return Encoder(family, "dense", query=query, document=document)


def load_albef(
    source: Source,
    direction: Direction = "text-to-image",
    clean: bool = True,
    max_length: int = MAX_LENGTH,
    resolution: int | None = None,
    head_width: int | None = None,
    fusion_layer: int | None = None,
    dimensions: int | None = None,
) -> Encoder:
    """ALBEF retrieval, dense: as BLIP, but only layers below the fusion layer read a text (Li et al., NeurIPS 2021).

    Text:  v = W_t h_[CLS] of the first six of twelve BERT layers, of unit length.
    Image: v = W_v h_[CLS] of a ViT after its final LayerNorm, of unit length.

    A weight file of LAVIS (`albef_coco_retrieval_lavis.pt`) or of the authors (`ALBEF.pth`).

    Args:
        source: the files have no tokenizer; default that of `bert-base-uncased`, or `tokenizer` names its folder.
        direction: the modalities of queries and documents; text-to-text compares captions.
        clean: lower-case texts, drop punctuation, keep fifty words, as LAVIS does.
        max_length: tokens per text; 35 as in LAVIS' evaluation (30 in training).
        resolution: side of the images in pixels; default the checkpoint's. ALBEF.pth has positions for 256; for 384
            they are interpolated.
        head_width: of attention heads, which weight files do not contain; default the value in a med_config.json beside
            the file (or named by `backbone_config`), else 64.
        fusion_layer: number of layers that read a text; default those below the first with cross-attention.
        dimensions: keep only the first ones of each vector.
    """
    return load_family("albef", source, direction, clean, max_length, resolution, head_width, fusion_layer, dimensions)
