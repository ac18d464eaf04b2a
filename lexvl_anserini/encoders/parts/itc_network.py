"""The two transformers of BLIP and ALBEF whose [CLS] states are compared (image-text contrast, ITC).

Both families are a ViT and a BERT without token types, each followed by a linear projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


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


def interpolated(positions: Tensor, before: int, after: int) -> Tensor:
    """Position embeddings [1, 1 + before^2, D] of a square grid as [1, 1 + after^2, D]: bicubic, [CLS] unchanged."""
    if before == after:
        return positions
    first, grid = positions[:, :1], positions[:, 1:]
    grid = grid.reshape(1, before, before, -1).permute(0, 3, 1, 2)  # [1, D, G, G]
    grid = nn.functional.interpolate(grid.float(), size=(after, after), mode="bicubic", align_corners=False)
    return torch.cat([first, grid.permute(0, 2, 3, 1).reshape(1, after * after, -1).to(first.dtype)], dim=1)
