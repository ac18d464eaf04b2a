"""ALBEF retrieval, dense: as BLIP, but only layers below the fusion layer read a text (Li et al., NeurIPS 2021).

Text:  v = W_t h_[CLS] of the first six of twelve BERT layers, of unit length.
Image: v = W_v h_[CLS] of a ViT after its final LayerNorm, of unit length.
"""

from __future__ import annotations

from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.families.dense.blip import load_family
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.features import MAX_LENGTH
from lexvl_anserini.encoders.parts.towers import Direction


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
    """A weight file of LAVIS (`albef_coco_retrieval_lavis.pt`) or of the authors (`ALBEF.pth`).

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
