"""Image backbones: pixels to patch states [B, P, D]; and the tower of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.encoder import ReadsImages
from lexvl_anserini.encoders.parts.images.pixels import Pixels, place_on_grid, read_crop_batches
from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.encoders.parts.towers import Batch, Composition, LexicalTower
from lexvl_anserini.ground.errors import FAIL, CheckpointError, OnError


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x), CLIP's approximation of GELU."""

    def forward(self, x: Tensor) -> Tensor:
        """Element by element; computed by SiLU, which reads the memory once."""
        return torch.nn.functional.silu(1.702 * x) / 1.702


class ResidualBlock(nn.Module):
    """Pre-LayerNorm attention and MLP; its parts have the names in CLIP checkpoints."""

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


class ConvResidual(nn.Module):
    """Two 3x3 convolutions with batch norm beside the identity (He et al., CVPR 2016)."""

    def __init__(self, width: int):
        super().__init__()
        self.conv_1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_1 = nn.BatchNorm2d(width)
        self.conv_2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        """Maps of the same shape."""
        inner = nn.functional.relu(self.norm_1(self.conv_1(x)))
        return nn.functional.relu(x + self.norm_2(self.conv_2(inner)))


class ConvStem(nn.Sequential):
    """Convolutions instead of the patch embedding, so that small transformers learn from few images.

    Each stage halves the grid, has its own width, and ends in residual blocks (Xiao et al., NeurIPS 2021).
    """

    def __init__(self, widths: Sequence[int], blocks: Sequence[int], width: int):
        if not widths or len(widths) != len(blocks):
            counts = f"{len(widths)} widths and {len(blocks)} blocks"
            raise CheckpointError(f"convolutional stem: {counts}, expected one each per stage")
        layers: list[nn.Module] = []
        for before, channels, count in zip((3, *widths), widths, blocks, strict=False):
            layers += [
                nn.Conv2d(before, channels, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                *(ConvResidual(channels) for _ in range(count)),
            ]
        if widths[-1] != width:
            layers.append(nn.Conv2d(widths[-1], width, 1, bias=False))
        super().__init__(*layers)

    def forward(self, pixels: Tensor) -> Tensor:  # [B, 3, R, R]
        """Maps [B, D, R / 2^stages, R / 2^stages], with channels last, for which convolutions are fastest."""
        return super().forward(pixels.contiguous(memory_format=torch.channels_last))


class PatchTransformer(nn.Module):
    """CLIP's vision transformer without class token; its output is the state of every patch (VDR).

    With `stem` (`{"widths": [32, 64, 128], "blocks": [0, 1, 1]}`) a convolutional stem of total stride `patch_size`
    replaces the patch embedding.
    """

    def __init__(
        self,
        resolution: int = 224,
        patch_size: int = 32,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        stem: Mapping[str, Sequence[int]] | None = None,
    ):
        super().__init__()
        self.conv1: nn.Module
        if stem is None:
            self.conv1 = nn.Conv2d(3, width, patch_size, stride=patch_size, bias=False)
        else:
            self.conv1 = ConvStem(stem["widths"], stem["blocks"], width)
            if (stride := 2 ** len(stem["widths"])) != patch_size:
                raise CheckpointError(f"convolutional stem has stride {stride}, expected patch_size {patch_size}")
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


class PatchStates(nn.Module):
    """Pixels [B, 3, R, R] to states [B, P, D] before the last LayerNorm of transformers' CLIP or Swinv2."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        config = getattr(model.config, "vision_config", model.config)
        self.width, self.resolution = int(config.hidden_size), int(config.image_size)
        halvings = len(config.depths) - 1 if hasattr(config, "depths") else 0
        self.grid = self.resolution // (config.patch_size << halvings)

    def forward(self, pixels: Tensor) -> Tensor:
        """States [B, P, D]."""
        if (swin := getattr(self.model, "swinv2", None)) is not None:
            cells: Tensor = swin.encoder(*swin.embeddings(pixels)).last_hidden_state
            return cells
        states: Tensor = self.model.vision_model(pixels).last_hidden_state
        return states[:, 1:]


@dataclass(frozen=True)
class Images(ReadsImages):
    """Images; threads decode and crop them beside the forward pass. The input of the model is pixels [B, 3, R, R]."""

    pixels: Pixels
    device: torch.device

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """In the order of the inputs, which are paths, `archive.tar::member` or PIL images."""
        for positions, crops in read_crop_batches(self.pixels, inputs, batch_size, on_error):
            yield Batch(positions, (self.pixels.normalise(torch.from_numpy(crops).to(self.device)),))


class ImageTower(ReadsImages, LexicalTower):
    """Images to lexical vectors; inputs are paths, `archive.tar::member` or PIL images."""

    def __init__(
        self,
        composition: Composition | Callable[[], Composition],
        pixels: Pixels,
        columns: TokenColumns,
        device: torch.device | str = "cpu",
    ):
        super().__init__(composition, columns, device)
        self.items = Images(pixels, self.device)

    @property
    def pixels(self) -> Pixels:
        """How an image becomes a square of numbers."""
        return self.items.pixels

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """In the order of the inputs."""
        return self.items.batches(inputs, batch_size, on_error)

    def cells(self, states: Tensor, batch: Batch) -> Tensor:
        """States [B, L, C] of a batch at the cells of its images, [B, rows, columns, C]."""
        return place_on_grid(states)
