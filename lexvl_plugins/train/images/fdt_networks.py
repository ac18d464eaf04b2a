"""FDT's own networks with random weights: CLIP's texts over BPE merges, and CLIP's images or a Swin transformer V2.

They have the unused projections of the published ones, so that a checkpoint has all their weights. Initial weights are
those of transformers' classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from lexvl_anserini.encoders.checkpoints.clip_layout import HIGHEST_ID, find_merges
from lexvl_plugins.train.model_settings import BpeTextSettings, ImageSettings, SwinSettings

# The activation of CLIP's MLPs.
ACTIVATION = "quick_gelu"


def merges_of(settings: BpeTextSettings) -> Path:
    """The file of the merges.

    Raises:
        CheckpointError: it is not there.
    """
    path = find_merges(settings.merges, Path(), {})
    assert path is not None, "it is named"
    return path


def clip_texts(settings: BpeTextSettings, tokens: int, joint: int) -> Any:
    """A CLIPTextModelWithProjection, whose projection to `joint` dimensions has a bias, as DeCLIP's."""
    import transformers

    config = transformers.CLIPTextConfig(
        vocab_size=tokens,
        hidden_size=settings.width,
        intermediate_size=4 * settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=settings.max_length,
        hidden_act=ACTIVATION,
        projection_dim=joint,
        bos_token_id=None,
        eos_token_id=HIGHEST_ID,
    )
    texts = transformers.CLIPTextModelWithProjection(config)
    texts.text_projection = nn.Linear(settings.width, joint)
    return texts


def patch_network(settings: ImageSettings | SwinSettings, joint: int) -> Any:
    """A CLIPVisionModelWithProjection, or a Swinv2ForImageClassification of `joint` classes."""
    import transformers

    if isinstance(settings, SwinSettings):
        config = transformers.Swinv2Config(
            image_size=settings.resolution,
            patch_size=settings.patch_size,
            embed_dim=settings.width,
            depths=list(settings.depths),
            num_heads=list(settings.heads),
            window_size=settings.window,
            drop_path_rate=settings.drop_path,
        )
        config.num_labels = joint
        return transformers.Swinv2ForImageClassification(config)
    return transformers.CLIPVisionModelWithProjection(
        transformers.CLIPVisionConfig(
            image_size=settings.resolution,
            patch_size=settings.patch_size,
            hidden_size=settings.width,
            intermediate_size=4 * settings.width,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            hidden_act=ACTIVATION,
            projection_dim=joint,
        )
    )
