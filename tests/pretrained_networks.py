"""Tiny pretrained networks for tests: a ViT folder with random weights."""

from __future__ import annotations

from pathlib import Path


def tiny_vit(folder: Path, seed: int = 11) -> Path:
    """A ViT that reads 16 x 16 pixels as a grid of 4 x 4 cells, with random weights that are not near 0."""
    import torch
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    )
    model = ViTModel(config, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    model.save_pretrained(str(folder))
    return folder
