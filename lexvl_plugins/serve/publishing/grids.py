"""Where terms are in pictures: a small grid for each of a picture's heaviest terms, so that a page needs no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexvl_anserini.data.pictures.images import open_image
from lexvl_plugins.serve.publishing.data_files import as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lexvl_anserini.encoders.parts.images.vision import ImageTower

# Steps of a cell between the least and the greatest value of its grid, and of these values themselves.
STEPS = 7
ENDS = 255


class Grids(NamedTuple):
    """The activations of some terms in each cell of a picture.

    grid     rows and columns
    region   left, top, right, bottom of the grid as shares of width and height
    columns  the dimensions of the terms
    cells    uint8 [terms, 2 + rows x columns], see `stepped`
    """

    grid: list[int]
    region: list[float]
    columns: list[int]
    cells: np.ndarray


def grids_of(tower: ImageTower, picture: str, dimensions: Sequence[int]) -> Grids:
    """The grids of some terms in a picture."""
    from lexvl_anserini.encoders.parts.images.grounding import patch_activations

    image = open_image(picture)
    left, top, right, bottom = tower.pixels.region(image.size)
    wide, high = image.size
    values = np.maximum(patch_activations(tower, [image], list(dimensions))[0], 0)  # [rows, columns, terms]
    rows, columns, terms = values.shape
    region = [round(share, 4) for share in (left / wide, top / high, right / wide, bottom / high)]
    return Grids([rows, columns], region, list(dimensions), stepped(values.reshape(rows * columns, terms).T))


def stepped(values: np.ndarray) -> np.ndarray:
    """Grids [terms, cells] of values >= 0 as uint8 [terms, 2 + cells].

    The least and the greatest value of a term, as shares of the greatest of all terms in 255 steps; then the cells, in
    7 steps from one to the other.
    """
    greatest = float(values.max(initial=0)) or 1.0
    low = np.floor(values.min(axis=1) / greatest * ENDS)
    high = np.ceil(values.max(axis=1) / greatest * ENDS)
    span = np.maximum(high - low, 1)
    steps = np.rint((values / greatest * ENDS - low[:, None]) / span[:, None] * STEPS)
    return np.column_stack([low, high, steps]).astype(np.uint8)


def as_part(grids: Sequence[Grids | None]) -> dict[str, Any]:
    """The grids of some documents as a data file: what the cells are of, and all cells in their order."""
    cells = [picture.cells.ravel() for picture in grids if picture is not None]
    return {
        "of": [
            picture and {"grid": picture.grid, "region": picture.region, "columns": picture.columns}
            for picture in grids
        ],
        "cells": as_text(np.concatenate(cells)),
    }
