"""Where terms are in pictures: a small grid for each of a picture's heaviest terms, so that a page needs no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.doors.serving.publishing.data_files import as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lexvl_anserini.encoders.parts.images.vision import ImageTower

# Steps of a cell between the least and the greatest value of its grid, and of these values themselves.
STEPS = 15
ENDS = 255


def grids_of(tower: ImageTower, picture: str, dimensions: Sequence[int]) -> dict[str, Any]:
    """The activations of some terms in each cell of a picture.

    grid     rows and columns
    region   left, top, right, bottom of the grid as shares of width and height
    columns  the dimensions
    cells    for each of them the least and the greatest activation, as shares of the greatest of all in 255 steps, then
             two cells a byte, the first in the lower half: steps between the two ends
    """
    import torch

    from lexvl_anserini.encoders.parts.images.grounding import patch_logits

    image = open_image(picture)
    left, top, right, bottom = tower.pixels.region(image.size)
    wide, high = image.size
    logits = torch.from_numpy(patch_logits(tower, [image], list(dimensions))[0])
    values = np.maximum(tower.composition.activation(logits).numpy(), 0)  # [rows, columns, terms]
    rows, columns, terms = values.shape
    return {
        "grid": [rows, columns],
        "region": [round(share, 4) for share in (left / wide, top / high, right / wide, bottom / high)],
        "columns": list(dimensions),
        "cells": as_text(packed(values.reshape(rows * columns, terms).T)),
    }


def packed(values: np.ndarray) -> np.ndarray:
    """Grids [terms, cells] of values >= 0 as uint8, see `grids_of`."""
    greatest = float(values.max(initial=0)) or 1.0
    low = np.floor(values.min(axis=1) / greatest * ENDS)
    high = np.ceil(values.max(axis=1) / greatest * ENDS)
    span = np.maximum(high - low, 1)
    steps = np.rint((values / greatest * ENDS - low[:, None]) / span[:, None] * STEPS).astype(np.uint8)
    if steps.shape[1] % 2:
        steps = np.pad(steps, ((0, 0), (0, 1)))
    halves = steps[:, ::2] | steps[:, 1::2] << 4
    return np.column_stack([low.astype(np.uint8), high.astype(np.uint8), halves])
