"""Pages as tiles: an image is enlarged or reduced, cut into squares, and followed by the whole of it in one square.

The numbers are those of Idefics3's image processor in transformers, as ModernVBERT and V-SPLADE use it. Loads no model
library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.encoders.parts.images.pixels import Box, Pixels, read_preprocessing
from lexvl_anserini.ground.errors import CheckpointError

# Pillow's numbers of its filters, as preprocessor_config.json writes them.
LANCZOS, FILTERS = 1, range(6)

# The longest side in pixels that the image processor makes.
LONGEST = 4096

HALF = (0.5, 0.5, 0.5)

# Width and height.
Size = tuple[int, int]


class Page(NamedTuple):
    """An image in squares.

    tiles    uint8 [T, R, R, 3]: rows * columns tiles, row by row, then the whole image; if rows is 0 the image alone
    rows     of tiles
    columns  of tiles
    """

    tiles: np.ndarray
    rows: int
    columns: int


@dataclass(frozen=True)
class Tiles(Pixels):
    """How an image becomes tiles.

    Its longer side is resized to `longest`, whatever it was; then both sides to the next multiples of `resolution`.

    resolution  side R of a tile in pixels
    longest     the longer side
    resample    Pillow's number of the filter
    """

    mean: tuple[float, float, float] = HALF
    std: tuple[float, float, float] = HALF
    longest: int = 2048
    resample: int = LANCZOS

    def page(self, image: Any) -> Page:
        """The tiles of an RGB PIL image."""
        side = self.resolution
        resized = self.resized(image.size)
        wide, high = self.enlarged(resized)
        # Two steps, as in the reference: one would give other pixels.
        canvas = image.resize(resized, self.resample).resize((wide, high), self.resample)
        whole = np.asarray(canvas.resize((side, side), self.resample), dtype=np.uint8)[None]
        columns, rows = wide // side, high // side
        if rows * columns == 1:
            return Page(whole, 0, 0)
        tiles = np.asarray(canvas, dtype=np.uint8).reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        return Page(np.concatenate([tiles.reshape(rows * columns, side, side, 3), whole]), rows, columns)

    def resized(self, size: Size) -> Size:
        """The longer side becomes `longest`, the other an even number that keeps the shape, or 1."""
        width, height = size
        shape = width / height
        if width >= height:
            return self.longest, max(1, even(int(self.longest / shape)))
        return max(1, even(int(self.longest * shape))), self.longest

    def enlarged(self, size: Size) -> Size:
        """Multiples of the side of a tile: the longer side first, then the other from its shape."""
        width, height = size
        shape = width / height
        if width >= height:
            width = self.multiple(width)
            return width, self.multiple(int(width / shape))
        height = self.multiple(height)
        return self.multiple(int(height * shape)), height

    def multiple(self, length: int) -> int:
        """The next multiple of the side of a tile."""
        return ceil(length / self.resolution) * self.resolution

    def crop(self, image: Any) -> np.ndarray:
        """uint8 [T, R, R, 3] of an RGB PIL image: its tiles."""
        return self.page(image).tiles

    def region(self, size: Size) -> Box:
        """The whole image."""
        return 0.0, 0.0, float(size[0]), float(size[1])


def even(length: int) -> int:
    """The next even number."""
    return length + length % 2


def read_tiles(folder: Path, side: int) -> Tiles:
    """The tiles that a transformers folder describes; without a description, the published ones of `side` pixels.

    Raises:
        CheckpointError: the description has other steps than Idefics3's, or tiles of another side than the model's.
    """
    path, described = read_preprocessing(folder)
    plain = Tiles(side)
    steps = ("do_resize", "do_image_splitting", "do_rescale", "do_normalize")
    if without := [step for step in steps if described.get(step) is False]:
        raise CheckpointError(f"{path}: without {', '.join(without)}; expected the tiles of Idefics3's image processor")
    longest, tile = (
        edge_of(described.get(key), default) for key, default in (("size", plain.longest), ("max_image_size", side))
    )
    if tile != side or not isinstance(longest, int) or not side <= longest <= LONGEST:
        raise CheckpointError(
            f"{path}: tiles of {tile} pixels in images of {longest}; the model reads tiles of {side}, and images have "
            f"at most {LONGEST}"
        )
    mean, std, resample = (
        described.get(key, default)
        for key, default in (("image_mean", HALF), ("image_std", HALF), ("resample", LANCZOS))
    )
    if not (is_colour(mean) and is_colour(std) and all(std) and type(resample) is int and resample in FILTERS):
        raise CheckpointError(f"{path}: image_mean {mean!r:.80}, image_std {std!r:.80} or resample {resample!r:.80}")
    return Tiles(side, tuple(mean), tuple(std), longest, resample)


def is_colour(values: Any) -> bool:
    """True for three numbers."""
    return isinstance(values, list | tuple) and len(values) == 3 and all(isinstance(v, int | float) for v in values)


def edge_of(size: Any, default: int) -> Any:
    """The longest edge that a description names."""
    return size.get("longest_edge") if isinstance(size, Mapping) else default
