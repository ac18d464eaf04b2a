"""Draws on the images of a contact sheet which regions have the terms of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lexvl_anserini.ground.errors import UsageError

from .strips import IMAGE, Cell, Strip

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.encoders.parts.images.vision import ImageTower

# A map is drawn on an image of at most this side in pixels: more than a sheet shows.
SIDE = 2 * IMAGE


def with_maps(strips: Sequence[Strip], model: Encoder) -> list[Strip]:
    """Strips whose hits are in colour where the terms that they share with the query are, and pale elsewhere.

    Args:
        strips: queries and their hits.
        model: the encoder of the hits.

    Raises:
        UsageError: the encoder has no grid cells of images, or the hits are texts.
    """
    from lexvl_anserini.encoders.parts.images.grounding import image_side

    tower = image_side(model)
    if tower is not model.document:
        raise UsageError("the documents of this index are texts; maps are drawn over images")
    return [strip._replace(cells=tuple(with_map(cell, tower) for cell in strip.cells)) for strip in strips]


def with_map(cell: Cell, tower: ImageTower) -> Cell:
    """A hit with the map of its shared terms; a hit that shares none is pale."""
    from lexvl_anserini.encoders.parts.images.grounding import contributions, overlay

    if cell.item.image is None:
        return cell
    weights = {term.term: term.weight for term in cell.terms}
    grid = contributions(tower, cell.item.image, weights) if weights else np.zeros((1, 1))
    small = cell.item.image.copy()
    small.thumbnail((SIDE, SIDE))
    return cell._replace(item=cell.item._replace(image=overlay(small, tower.pixels.region(small.size), grid)))
