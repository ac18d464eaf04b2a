"""RandAugment (arXiv 1909.13719): each image of a batch passes operations of Pillow that are drawn for it.

The operations, their values at the magnitudes 0 and 30, and two operations of magnitude 9 are those of LexLIP's code,
which has them of ViLT's. There they change the whole image, here its crop; a shift is in pixels of a crop of 224.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import NamedTuple

import numpy as np
from PIL import ImageEnhance, ImageOps
from PIL.Image import Image, Transform, fromarray

from lexvl_plugins.train.recipe import RandAugment

LARGEST, SIDE = 30, 224


class Operation(NamedTuple):
    """An operation, and its value at the magnitudes 0 and 30; a signed one has either sign."""

    apply: Callable[[Image, float], Image]
    least: float
    most: float
    signed: bool = False


def move(image: Image, *rows: float) -> Image:
    """The image under an affine map, two rows of three numbers; what it does not cover is black."""
    return image.transform(image.size, Transform.AFFINE, rows)


def add_and_invert(image: Image, value: float) -> Image:
    """Adds to all pixels, up to 255, and inverts those from 128 on."""
    return ImageOps.solarize(image.point([min(255, level + int(value)) for level in range(256)] * 3), 128)


OPERATIONS: Mapping[str, Operation] = {
    "auto_contrast": Operation(lambda image, _: ImageOps.autocontrast(image), 0, 1),
    "equalise": Operation(lambda image, _: ImageOps.equalize(image), 0, 1),
    "rotate": Operation(lambda image, degrees: image.rotate(degrees), 0, 30, signed=True),
    "posterise": Operation(lambda image, bits: ImageOps.posterize(image, max(1, int(bits))), 0, 4),
    "solarise": Operation(lambda image, level: ImageOps.solarize(image, ceil(level)), 0, 256),
    "solarise_add": Operation(add_and_invert, 0, 110),
    "colour": Operation(lambda image, factor: ImageEnhance.Color(image).enhance(factor), 0.1, 1.9),
    "contrast": Operation(lambda image, factor: ImageEnhance.Contrast(image).enhance(factor), 0.1, 1.9),
    "brightness": Operation(lambda image, factor: ImageEnhance.Brightness(image).enhance(factor), 0.1, 1.9),
    "sharpness": Operation(lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor), 0.1, 1.9),
    "shear_x": Operation(lambda image, slope: move(image, 1, slope, 0, 0, 1, 0), 0, 0.3, signed=True),
    "shear_y": Operation(lambda image, slope: move(image, 1, 0, 0, slope, 1, 0), 0, 0.3, signed=True),
    "shift_x": Operation(lambda image, v: move(image, 1, 0, v * image.width / SIDE, 0, 1, 0), 0, 100, signed=True),
    "shift_y": Operation(lambda image, v: move(image, 1, 0, 0, 0, 1, v * image.height / SIDE), 0, 100, signed=True),
}


def draw_operations(settings: RandAugment, draws: np.random.Generator, size: int) -> list[list[tuple[str, float]]]:
    """For each image of a batch the names of its operations, of which one may come twice, with their values."""
    names = np.array(list(OPERATIONS))[draws.integers(len(OPERATIONS), size=(size, settings.operations))]
    signs = draws.choice((-1.0, 1.0), size=names.shape)
    drawn = []
    for row, row_signs in zip(names.tolist(), signs.tolist(), strict=True):
        operations = []
        for name, sign in zip(row, row_signs, strict=True):
            _, least, most, signed = OPERATIONS[name]
            value = least + (most - least) * settings.magnitude / LARGEST
            operations.append((name, value * sign if signed else value))
        drawn.append(operations)
    return drawn


def distort(
    crops: np.ndarray, settings: RandAugment, draws: np.random.Generator, rows: slice = slice(None), size: int = 0
) -> np.ndarray:
    """Crops uint8 [B, R, R, 3] after their operations; some `rows` of a batch of `size` have those of all."""
    drawn = draw_operations(settings, draws, size or len(crops))[rows]
    changed = []
    for crop, operations in zip(crops, drawn, strict=True):
        image = fromarray(crop)
        for name, value in operations:
            image = OPERATIONS[name].apply(image, value)
        changed.append(np.asarray(image))
    return np.stack(changed)
