"""EfficientNet-Lite: images to the states of a 7 x 7 grid [B, P, 1280] (Tan and Le, ICML 2019, Lite variant of 2020).

EfficientNet-B0 without squeeze and excitation, with ReLU6, and with a stem and a head that the width does not scale.
Written from the published table, not taken from `efficientnet-lite-pytorch`: that package builds padding for one size
of image, prints while it runs, and cannot join batch norms to convolutions, which makes encoding faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import fuse_conv_bn_eval

# The epsilon of TensorFlow, which trained the published weights.
NORM_EPS = 1e-3

STEM, HEAD = 32, 1280

# The prefix of the classifier in the published weights; it maps the mean of the states to ImageNet's 1,000 classes.
CLASSIFIER = "_fc"


class Blocks(NamedTuple):
    """A row of table 1 of the paper: `repeats` blocks, of which the first has the stride."""

    kernel: int
    stride: int
    expansion: int
    width: int
    repeats: int


STAGES = (
    Blocks(3, 1, 1, 16, 1),
    Blocks(3, 2, 6, 24, 2),
    Blocks(5, 2, 6, 40, 2),
    Blocks(3, 2, 6, 80, 3),
    Blocks(5, 1, 6, 112, 3),
    Blocks(5, 2, 6, 192, 4),
    Blocks(3, 1, 6, 320, 1),
)


class Variant(NamedTuple):
    """Factors of the widths and of the repeats, and the side of the images in pixels."""

    width: float
    depth: float
    resolution: int


VARIANTS: Mapping[str, Variant] = {
    "efficientnet-lite0": Variant(1.0, 1.0, 224),
    "efficientnet-lite1": Variant(1.0, 1.1, 240),
    "efficientnet-lite2": Variant(1.1, 1.2, 260),
}


class SameConv(nn.Conv2d):
    """A convolution with TensorFlow's padding: the output has ceil(side / stride) rows, an odd row is padded below."""

    def __init__(self, before: int, after: int, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False):
        # With stride 1 both sides get as many rows, which the convolution itself can add.
        super().__init__(before, after, kernel, stride, (kernel - 1) // 2 if stride == 1 else 0, 1, groups, bias)

    def forward(self, maps: Tensor) -> Tensor:  # [B, C, H, W]
        """Maps [B, C', ceil(H / stride), ceil(W / stride)]."""
        if self.stride[0] > 1:
            top, left = (self._missing(side) for side in maps.shape[2:])
            maps = pad(maps, (left // 2, left - left // 2, top // 2, top - top // 2))
        return super().forward(maps)

    def _missing(self, side: int) -> int:
        kernel, stride = self.kernel_size[0], self.stride[0]
        return max((ceil(side / stride) - 1) * stride + kernel - side, 0)


class Unit(nn.Sequential):
    """Convolution, batch norm and, unless it is the last of a block, ReLU6."""

    def __init__(
        self, before: int, after: int, kernel: int = 1, stride: int = 1, groups: int = 1, bounded: bool = True
    ):
        super().__init__(SameConv(before, after, kernel, stride, groups), nn.BatchNorm2d(after, eps=NORM_EPS))
        if bounded:
            self.append(nn.ReLU6(inplace=True))

    def fold(self) -> None:
        """Joins the batch norm to the convolution: the same function, computed in one pass."""
        convolution, norm = self[0], self[1]
        if isinstance(convolution, SameConv) and isinstance(norm, nn.BatchNorm2d):
            self[0], self[1] = fuse_conv_bn_eval(convolution, norm), nn.Identity()


class Block(nn.Module):
    """Expansion, depthwise convolution and projection, beside the identity where the shape stays (MobileNet v2)."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        inner = before * expansion
        self.expand = Unit(before, inner) if expansion > 1 else None
        self.depthwise = Unit(inner, inner, kernel, stride, groups=inner)
        self.project = Unit(inner, after, bounded=False)
        self.residual = stride == 1 and before == after

    def forward(self, maps: Tensor) -> Tensor:  # [B, C, H, W]
        """Maps [B, C', H / stride, W / stride]."""
        inner = maps if self.expand is None else self.expand(maps)
        out: Tensor = self.project(self.depthwise(inner))
        return maps + out if self.residual else out


class EfficientNetLite(nn.Module):
    """The network up to its last maps; its output is the state of every grid cell.

    Attributes:
        name: a key of `VARIANTS`.
        width: of the states of all `layers` together.
    """

    def __init__(self, name: str):
        super().__init__()
        variant = VARIANTS[name]
        self.stem = Unit(3, STEM, 3, 2)
        before, blocks, self.width = STEM, [], STEM + HEAD
        for number, stage in enumerate(STAGES):
            width = compute_rounded_width(stage.width * variant.width)
            self.width += width
            fixed = number in (0, len(STAGES) - 1)
            for repeat in range(stage.repeats if fixed else ceil(stage.repeats * variant.depth)):
                blocks.append(Block(before, width, stage.kernel, 1 if repeat else stage.stride, stage.expansion))
                before = width
        self.blocks = nn.ModuleList(blocks)
        self.head = Unit(before, HEAD)

    def forward(self, pixels: Tensor) -> Tensor:  # [B, 3, R, R]
        """States of the grid cells [B, P, 1280], row by row."""
        return self.layers(pixels)[-1].flatten(2).transpose(1, 2)

    def layers(self, pixels: Tensor) -> list[Tensor]:  # [B, 3, R, R]
        """Maps [B, C, H, W]: those of the stem, the last ones of each width of the blocks, and those of the head."""
        maps = [self.stem(pixels.contiguous(memory_format=torch.channels_last))]  # for which convolutions are fastest
        for block in self.blocks:
            after = block(maps[-1])
            if after.shape[1] == maps[-1].shape[1]:
                maps[-1] = after
            else:
                maps.append(after)
        return [*maps, self.head(maps[-1])]

    def folded(self) -> EfficientNetLite:
        """Joins all batch norms to their convolutions, for encoding; returns itself."""
        for module in self.modules():
            if isinstance(module, Unit):
                module.fold()
        to: Any = self.to  # its types lack this argument before torch 2.14
        return cast("EfficientNetLite", to(memory_format=torch.channels_last))


def compute_rounded_width(width: float) -> int:
    """The nearest multiple of 8, which is at least 9/10 of the width."""
    nearest = max(8, int(width + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * width else nearest


def convert_published_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published weights (`efficientnet_lite_pytorch`) under the names of our network, without the classifier."""
    outside = {"_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "head.0", "_bn1": "head.1"}
    inside = {
        "_expand_conv": "expand.0",
        "_bn0": "expand.1",
        "_depthwise_conv": "depthwise.0",
        "_bn1": "depthwise.1",
        "_project_conv": "project.0",
        "_bn2": "project.1",
    }
    named = {}
    for key, value in weights.items():
        part, _, rest = key.partition(".")
        if part == "_blocks":
            number, part, rest = rest.split(".", 2)
            # The first block has no expansion, and its depthwise convolution is followed by the norm `_bn1` too.
            named[f"blocks.{number}.{inside[part]}.{rest}"] = value
        elif part != CLASSIFIER:
            named[f"{outside[part]}.{rest}"] = value
    return named
