"""Image backbones: pictures to patch states [B, P, D], and the pixels they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.data.images import read_images
from lexvl_anserini.encoders.base import read_image_of
from lexvl_anserini.encoders.tokens import Columns
from lexvl_anserini.encoders.towers import Batch, Composition, LexicalTower
from lexvl_anserini.records import Document, Topic

# CLIP's channel statistics, which VDR keeps.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Pixels:
    """How a picture becomes a square of numbers: shorter side resized bicubically, centre cropped, normalised.

    resolution  side of the square in pixels
    mean, std   per channel, of values in 0..1
    """

    resolution: int
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    def crop(self, image: Any) -> np.ndarray:
        """uint8 [R, R, 3] of an RGB PIL image.

        The long side is rounded down and the crop's offset half to even, as torchvision does (VDR, section 1.3).
        """
        from PIL import Image

        width, height = image.size
        side = self.resolution
        if width <= height:
            size = (side, max(side, int(side * height / width)))
        else:
            size = (max(side, int(side * width / height)), side)
        image = image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
        left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
        return np.asarray(image.crop((left, top, left + side, top + side)), dtype=np.uint8)

    def normalise(self, crops: Tensor) -> Tensor:
        """uint8 [B, R, R, 3] -> float32 [B, 3, R, R]."""
        pixels = crops.permute(0, 3, 1, 2).float() / 255.0
        mean, std = (torch.tensor(v, device=crops.device).view(1, 3, 1, 1) for v in (self.mean, self.std))
        return (pixels - mean) / std


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x), CLIP's approximation of GELU."""

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        return x * torch.sigmoid(1.702 * x)


class ResidualBlock(nn.Module):
    """Pre-LayerNorm attention and MLP; the names of its parts are those of CLIP checkpoints."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", QuickGELU())
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:  # [B, P, D]
        """States of the next layer [B, P, D]."""
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class PatchTransformer(nn.Module):
    """CLIP's vision transformer without class token: every patch state leaves it (VDR, section 1.3)."""

    def __init__(
        self, resolution: int = 224, patch_size: int = 32, width: int = 768, layers: int = 12, heads: int = 12
    ):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch_size, stride=patch_size, bias=False)
        self.positional_embedding = nn.Parameter(torch.zeros((resolution // patch_size) ** 2, width))
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList(ResidualBlock(width, heads) for _ in range(layers))
        self.ln_post = nn.LayerNorm(width)

    def forward(self, pixels: Tensor) -> Tensor:  # [B, 3, R, R]
        """Patch states [B, P, D]."""
        x = self.conv1(pixels).flatten(2).transpose(1, 2)  # [B, P, D]
        x = self.ln_pre(x + self.positional_embedding)
        for block in self.transformer.resblocks:  # type: ignore[union-attr]
            x = block(x)
        return self.ln_post(x)


class ImageTower(LexicalTower):
    """Images to lexical vectors. Pictures are decoded and cropped in threads beside the forward pass.

    Inputs are paths, `archive.tar::member` or PIL images.
    """

    def __init__(self, composition: Composition, pixels: Pixels, columns: Columns, device: torch.device | str = "cpu"):
        super().__init__(composition, columns, device)
        self.pixels = pixels

    def read(self, document: Document) -> str:
        """The image of a document."""
        return read_image_of(document)

    def read_topic(self, topic: Topic) -> str:
        """The image of a topic."""
        return read_image_of(topic)

    def batches(self, inputs: Sequence[Any], batch_size: int) -> Iterator[Batch]:
        """In the order of the inputs."""
        crops = iter(read_images(inputs, prepare=self.pixels.crop))
        while piece := list(islice(crops, batch_size)):
            positions = np.array([image.position for image in piece], dtype=np.int64)
            stacked = torch.from_numpy(np.stack([image.value for image in piece])).to(self.device)
            yield Batch(positions, (self.pixels.normalise(stacked),))
