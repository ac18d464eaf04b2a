"""Images as squares of numbers: which part of an image is read, and how it is normalised. Loads no model library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.data.pictures.images import read_images
from lexvl_anserini.ground.errors import FAIL, CheckpointError, OnError
from lexvl_anserini.ground.files import read_json

if TYPE_CHECKING:
    from torch import Tensor


# CLIP's channel statistics, which VDR keeps.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

# Pillow's numbers, as preprocessor_config.json writes them.
BILINEAR, BICUBIC = 2, 3

# The largest number of pixels of a resized image: 96 MiB.
MOST_PIXELS = 1 << 25

# A region of an image in its pixels, which may be fractions: left, top, right, bottom.
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Pixels:
    """How an image becomes a square: shorter side resized bicubically, centre cropped, normalised."""

    resolution: int
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    def crop(self, image: Any) -> np.ndarray:
        """uint8 [R, R, 3] of an RGB PIL image, rounded as torchvision does."""
        return centre_crop(image, self.resolution, self.resolution)

    def region(self, size: tuple[int, int]) -> Box:
        """Which part of an image of `size` (width, height) the crop shows; it may exceed the image."""
        return crop_region(size, self.resolution, self.resolution)

    def normalise(self, crops: Tensor) -> Tensor:
        """uint8 [B, R, R, 3] -> float32 [B, 3, R, R]."""
        import torch

        pixels = crops.permute(0, 3, 1, 2).float() / 255.0
        mean, std = (torch.tensor(v, device=crops.device).view(1, 3, 1, 1) for v in (self.mean, self.std))
        return (pixels - mean) / std


def centre_crop(image: Any, side: int, shorter: int, resample: int = BICUBIC, floor: bool = False) -> np.ndarray:
    """uint8 [side, side, 3] from the middle of an RGB PIL image whose shorter side was resized to `shorter`.

    The long side is rounded down, as libraries do. A resized image that is smaller than the crop gets a black border.
    Of an image so long that resizing it would fill the memory, only the crop is computed, as Pillow rounds it.
    With `floor` the offset of the crop is rounded down, as transformers does; else half to even, as torchvision does.
    """
    size = fit_pixels(image.size, shorter)
    if size[0] * size[1] > MOST_PIXELS and shorter >= side:
        left, top, right, bottom = crop_region(image.size, side, shorter, floor)
        box = (left, top, min(right, image.width), min(bottom, image.height))
        return np.asarray(image.resize((side, side), resample, box=box), dtype=np.uint8)
    image = image if image.size == size else image.resize(size, resample)
    left, top = (compute_offset(length, side, floor) for length in size)
    return np.asarray(image.crop((left, top, left + side, top + side)), dtype=np.uint8)


def crop_region(size: tuple[int, int], side: int, shorter: int, floor: bool = False) -> Box:
    """Which part of an image `centre_crop` shows."""
    (width, height), (wide, high) = size, fit_pixels(size, shorter)
    left, top = compute_offset(wide, side, floor), compute_offset(high, side, floor)
    across, down = width / wide, height / high
    return left * across, top * down, (left + side) * across, (top + side) * down


def fit_pixels(size: tuple[int, int], shorter: int) -> tuple[int, int]:
    """Width and height with the shorter side resized to `shorter`."""
    width, height = size
    if width <= height:
        return shorter, max(shorter, int(shorter * height / width))
    return max(shorter, int(shorter * width / height)), shorter


def compute_offset(length: int, side: int, floor: bool) -> int:
    """The first pixel of a centre crop of `side` in `length`."""
    return (length - side) // 2 if floor else round((length - side) / 2)


def read_crop_batches(
    pixels: Pixels, images: Sequence[Any], batch_size: int, on_error: OnError = FAIL
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions of the images of each batch, int64 [B], in order, and their crops, uint8 [B, R, R, 3]."""
    crops = read_images(images, on_error=on_error, prepare=pixels.crop)
    while piece := list(islice(crops, batch_size)):
        positions = np.array([image.position for image in piece], dtype=np.int64)
        yield positions, np.stack([image.value for image in piece])


# ImageNet's channel statistics.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# DeCLIP's and FDT's evaluation resizes the shorter side to this many sides of the centre crop.
SHORTER = 256 / 224


@dataclass(frozen=True)
class Crop(Pixels):
    """`Pixels` with all choices of `centre_crop` as fields; `shorter` None resizes to the side of the crop."""

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
    """Images resized to a square without cropping, whatever their shape (BLIP, ALBEF)."""

    resample: int = BICUBIC

    def crop(self, image: Any) -> np.ndarray:
        """uint8 [R, R, 3] of an RGB PIL image."""
        size = (self.resolution, self.resolution)
        return np.asarray(image if image.size == size else image.resize(size, self.resample), dtype=np.uint8)

    def region(self, size: tuple[int, int]) -> Box:
        """The whole image."""
        return 0.0, 0.0, float(size[0]), float(size[1])


def make_crop(side: int) -> Crop:
    """The evaluation crop of DeCLIP and FDT ("ONECROP"): bilinear, ImageNet's statistics."""
    return Crop(side, IMAGENET_MEAN, IMAGENET_STD, round(side * SHORTER), BILINEAR)


def read_preprocessing(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The file in which a transformers folder describes its images, and that description; empty where there is none.

    Up to transformers 4.x it has a file of its own; from 5.0 on it may be a part of another description.
    """
    preprocessor, common = folder / "preprocessor_config.json", folder / "processor_config.json"
    if preprocessor.is_file():
        return preprocessor, read_json(preprocessor, "image preprocessing", CheckpointError)
    if common.is_file():
        return common, read_json(common, "preprocessing", CheckpointError).get("image_processor") or {}
    return preprocessor, {}


def describe_squares(resolution: int, preprocessing: Mapping[str, Any]) -> Squares:
    """Squares with the filter and the statistics of a description."""
    mean, std = preprocessing.get("image_mean") or CLIP_MEAN, preprocessing.get("image_std") or CLIP_STD
    return Squares(resolution, tuple(mean), tuple(std), preprocessing.get("resample", BICUBIC))


def read_preprocessor(folder: Path, resolution: int) -> Crop:
    """The crop that a transformers folder describes, by numbers or mappings; without one, CLIP's at `resolution`."""
    path, preprocessing = read_preprocessing(folder)
    if not preprocessing:
        return Crop(resolution, floor=True)
    size = preprocessing.get("size", resolution)
    shorter = size.get("shortest_edge") if isinstance(size, Mapping) else size
    cropped = preprocessing.get("crop_size", resolution)
    side = cropped.get("height") if isinstance(cropped, Mapping) else cropped
    needed = ("do_resize", "do_center_crop", "do_rescale", "do_normalize")
    steps = [key for key in needed if preprocessing.get(key) is False]
    if not isinstance(shorter, int) or steps:
        what = f"without {', '.join(steps)}" if steps else f"size {size}"
        raise CheckpointError(f"{path}: {what}; expected the shorter side, a centre crop and normalising, as CLIP")
    if side != resolution:
        raise CheckpointError(f"{path}: crops to {side} pixels, the model reads {resolution}")
    squares = describe_squares(resolution, preprocessing)
    return Crop(resolution, squares.mean, squares.std, shorter, squares.resample, floor=True)


def place_on_grid(states: Tensor) -> Tensor:
    """[B, grid^2 or 1 + grid^2, C] -> [B, grid, grid, C], without the class token before the patches."""
    count = states.shape[1]
    grid = isqrt(count)
    assert count - grid * grid in (0, 1), f"{count} positions are no square grid, with or without a class token"
    return states[:, count - grid * grid :].unflatten(1, (grid, grid))
