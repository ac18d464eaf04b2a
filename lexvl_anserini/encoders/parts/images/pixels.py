"""Images as squares of numbers: which part of an image is read, and how it is normalised. Loads no model library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.data.pictures.images import FAIL, OnError, read_images

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
    """How an image becomes a square of numbers: shorter side resized bicubically, centre cropped, normalised.

    resolution  side of the square in pixels
    mean, std   per channel, of values in 0..1
    """

    resolution: int
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    def crop(self, image: Any) -> np.ndarray:
        """uint8 [R, R, 3] of an RGB PIL image.

        The long side is rounded down and the crop's offset half to even, as torchvision does.
        """
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

    Args:
        image: of any size.
        side: of the crop.
        shorter: side after resizing.
        resample: Pillow's number of the filter.
        floor: round the offset of the crop down, as transformers does; else half to even, as torchvision does.
    """
    size = resized(image.size, shorter)
    if size[0] * size[1] > MOST_PIXELS and shorter >= side:
        left, top, right, bottom = crop_region(image.size, side, shorter, floor)
        box = (left, top, min(right, image.width), min(bottom, image.height))
        return np.asarray(image.resize((side, side), resample, box=box), dtype=np.uint8)
    image = image if image.size == size else image.resize(size, resample)
    left, top = (offset(length, side, floor) for length in size)
    return np.asarray(image.crop((left, top, left + side, top + side)), dtype=np.uint8)


def crop_region(size: tuple[int, int], side: int, shorter: int, floor: bool = False) -> Box:
    """Which part of an image `centre_crop` shows.

    Args:
        size: width and height of the image.
        side, shorter, floor: as for `centre_crop`.
    """
    (width, height), (wide, high) = size, resized(size, shorter)
    left, top = offset(wide, side, floor), offset(high, side, floor)
    across, down = width / wide, height / high
    return left * across, top * down, (left + side) * across, (top + side) * down


def resized(size: tuple[int, int], shorter: int) -> tuple[int, int]:
    """Width and height with the shorter side resized to `shorter`."""
    width, height = size
    if width <= height:
        return shorter, max(shorter, int(shorter * height / width))
    return max(shorter, int(shorter * width / height)), shorter


def offset(length: int, side: int, floor: bool) -> int:
    """The first pixel of a centre crop of `side` in `length`."""
    return (length - side) // 2 if floor else round((length - side) / 2)


def crop_batches(
    pixels: Pixels, images: Sequence[Any], batch_size: int, on_error: OnError = FAIL
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions of the images of each batch, int64 [B], and their crops, uint8 [B, R, R, 3], in the order of `images`.

    Args:
        pixels: how an image is cropped; threads decode and crop beside the caller's work.
        images: paths, `archive.tar::member` or PIL images.
        batch_size: images per batch.
        on_error: policy for images that cannot be read; a skipped image is in no batch.
    """
    crops = read_images(images, on_error=on_error, prepare=pixels.crop)
    while piece := list(islice(crops, batch_size)):
        positions = np.array([image.position for image in piece], dtype=np.int64)
        yield positions, np.stack([image.value for image in piece])
