"""Image towers that a test can compute by hand: a cell's states are the mean red, green and blue of its pixels."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.encoders.parts.images.vision import ImageTower
from lexvl_anserini.encoders.parts.sparsify import keep_top
from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.encoders.parts.towers import Composition, Head, pool_max
from lexvl_anserini.ground.records import Vocabulary

COLOURS = ("red", "green", "blue")


def colour_tower(grid: int, class_token: bool = False, pixels: Pixels | None = None) -> ImageTower:
    """The weight of a colour is its largest mean over the cells of a grid, 0..1; a class token has all colours."""

    def states(images: Tensor) -> Tensor:  # [B, 3, R, R]
        cells = nn.functional.adaptive_avg_pool2d(images, grid).flatten(2).transpose(1, 2)  # [B, grid^2, 3]
        return torch.cat([torch.ones(len(cells), 1, 3), cells], dim=1) if class_token else cells

    composition = Composition(states, Head(nn.Identity(), torch.eye(3)), torch.relu, pool_max, keep_top(None))
    columns = TokenColumns(Vocabulary(COLOURS, "colours"), np.arange(3))
    read = pixels or Pixels(grid * 4, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    return ImageTower(composition, read, columns)


def painted(width: int, height: int, **boxes: tuple[int, int, int, int]) -> Any:
    """A black image with boxes (left, top, right, bottom), each in the colour of its name."""
    import PIL.Image

    image = PIL.Image.new("RGB", (width, height))
    for colour, box in boxes.items():
        image.paste(tuple(255 * (colour == name) for name in COLOURS), box)
    return image
