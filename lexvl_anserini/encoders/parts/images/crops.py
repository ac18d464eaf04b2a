"""Images as each family of models crops them: resized to one side, cropped to another, rounded as its library does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.encoders.parts.images.pixels import BICUBIC, BILINEAR, Box, Pixels, centre_crop, crop_region
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.files import read_json

if TYPE_CHECKING:
    from torch import Tensor

# ImageNet's channel statistics.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# DeCLIP's and FDT's evaluation resizes the shorter side to this many sides of the centre crop.
SHORTER = 256 / 224


@dataclass(frozen=True)
class Crop(Pixels):
    """`Pixels` with all choices as fields.

    shorter   the shorter side after resizing; None resizes it to the side of the crop
    resample  Pillow's number of the filter
    floor     the crop's offset is rounded down, as transformers does; else half to even, as torchvision does
    """

    shorter: int | None = None
    resample: int = BICUBIC
    floor: bool = False

    def crop(self, image: Any) -> np.ndarray:
        """uint8 [R, R, 3] of an RGB PIL image; a resized image that is smaller than the crop gets a black border."""
        return centre_crop(image, self.resolution, self.shorter or self.resolution, self.resample, self.floor)

    def region(self, size: tuple[int, int]) -> Box:
        """Which part of an image of `size` (width, height) the crop shows."""
        return crop_region(size, self.resolution, self.shorter or self.resolution, self.floor)


@dataclass(frozen=True)
class Squares(Pixels):
    """Images resized to a square without cropping, whatever their shape (BLIP, ALBEF).

    resample  Pillow's number of the filter
    """

    resample: int = BICUBIC

    def crop(self, image: Any) -> np.ndarray:
        """uint8 [R, R, 3] of an RGB PIL image."""
        size = (self.resolution, self.resolution)
        return np.asarray(image if image.size == size else image.resize(size, self.resample), dtype=np.uint8)

    def region(self, size: tuple[int, int]) -> Box:
        """The whole image."""
        return 0.0, 0.0, float(size[0]), float(size[1])


# Ways to make a square, as an exported encoder names them.
CROPS: Mapping[str, type[Pixels]] = {cls.__name__: cls for cls in (Pixels, Crop, Squares)}


def described(pixels: Pixels) -> dict[str, Any]:
    """The class and the fields of a way to make a square, for JSON."""
    if CROPS.get(type(pixels).__name__) is not type(pixels):
        raise UsageError(f"{type(pixels).__name__} has no name in JSON; those that have: {', '.join(CROPS)}")
    return {"kind": type(pixels).__name__, **asdict(pixels)}


def pixels_of(about: Mapping[str, Any]) -> Pixels:
    """The reverse of `described`."""
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}
    kind = str(values.pop("kind", None))
    try:
        return CROPS[kind](**values)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"pixels of kind {kind!r:.40}: expected {', '.join(CROPS)} and their fields") from error


def one_crop(side: int) -> Crop:
    """The evaluation crop of DeCLIP and FDT ("ONECROP"): bilinear, ImageNet's statistics."""
    return Crop(side, IMAGENET_MEAN, IMAGENET_STD, round(side * SHORTER), BILINEAR)


def read_preprocessing(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file in which a transformers folder describes its image preprocessing, and that description.

    The description is empty where there is none. Up to transformers 4.x it has a file of its own; from 5.0 on it may be
    a part of the description of texts and images together.
    """
    own, common = folder / "preprocessor_config.json", folder / "processor_config.json"
    if own.is_file():
        return own, read_json(own, "image preprocessing", CheckpointError)
    if common.is_file():
        return common, read_json(common, "preprocessing", CheckpointError).get("image_processor") or {}
    return own, {}


def read_preprocessor(folder: Path, resolution: int) -> Crop:
    """The crop that a transformers folder describes; without a description, CLIP's at `resolution`.

    Old files give sizes as numbers, newer files as mappings.

    Raises:
        CheckpointError: the description has other steps than resizing the shorter side, a centre crop and normalising,
            or another resolution than the model's.
    """
    path, about = read_preprocessing(folder)
    if not about:
        return Crop(resolution, floor=True)
    size = about.get("size", resolution)
    shorter = size.get("shortest_edge") if isinstance(size, Mapping) else size
    cropped = about.get("crop_size", resolution)
    side = cropped.get("height") if isinstance(cropped, Mapping) else cropped
    steps = [key for key in ("do_resize", "do_center_crop", "do_rescale", "do_normalize") if about.get(key) is False]
    if not isinstance(shorter, int) or steps:
        what = f"without {', '.join(steps)}" if steps else f"size {size}"
        raise CheckpointError(f"{path}: {what}; expected the shorter side, a centre crop and normalising, as CLIP")
    if side != resolution:
        raise CheckpointError(f"{path}: crops to {side} pixels, the model reads {resolution}")
    crop = Crop(resolution, shorter=shorter, resample=about.get("resample", BICUBIC), floor=True)
    mean, std = tuple(about.get("image_mean") or crop.mean), tuple(about.get("image_std") or crop.std)
    return Crop(resolution, mean, std, shorter, crop.resample, floor=True)


def on_grid(states: Tensor) -> Tensor:
    """[B, grid^2 or 1 + grid^2, C] -> [B, grid, grid, C], without the class token before the patches."""
    count = states.shape[1]
    grid = isqrt(count)
    assert count - grid * grid in (0, 1), f"{count} positions are no square grid, with or without a class token"
    return states[:, count - grid * grid :].unflatten(1, (grid, grid))
