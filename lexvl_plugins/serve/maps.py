"""Where terms are in a document's picture: an encoder's grid over it, and boxes of the words that are read in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.families.bm25 import BM25Settings
from lexvl_anserini.ground.vocabulary import field_of, in_field
from lexvl_plugins.serve.documents import READ
from lexvl_plugins.serve.messages import HeatMap

if TYPE_CHECKING:
    from lexvl_anserini.encoders.parts.images.vision import ImageTower
    from lexvl_plugins.serve.opened import LiveIndex

# The map of a picture in which no place is more than another.
EVEN = HeatMap(grid=[[1.0]], region=[0.0, 0.0, 1.0, 1.0], boxes=[])


def heat_map_of(index: LiveIndex, doc_id: str, picture: str, weights: Mapping[str, float]) -> HeatMap:
    """The map of weighted terms in a document's picture.

    Args:
        picture: its reference.
        weights: of terms that the document has; in an index of several fields, terms of its fields.
    """
    if not index.manifest.fields:
        assert index.map_tower is not None
        return drawn_map(index.map_tower, picture, weights)
    heat, boxes = EVEN, list[list[float]]()
    for entry in index.manifest.encoder.fields:
        mark = in_field(entry.name, "")
        own = {t.removeprefix(mark): w for t, w in weights.items() if field_of(t, index.manifest.fields) == entry.name}
        if not own:
            continue
        if entry.kind == "text" and READ in index.corpus.documents[doc_id].metadata:
            from lexvl_plugins.pages.answering import frames_of

            frames = frames_of(picture, own, BM25Settings.of(entry.encoder.options))
            boxes += [list(frame) for frame in frames]
        elif entry == index.drawn_field and index.map_tower is not None:
            heat = drawn_map(index.map_tower, picture, own)
    return heat.model_copy(update={"boxes": boxes})


def drawn_map(tower: ImageTower, picture: str, weights: Mapping[str, float]) -> HeatMap:
    """Where weighted terms are in a picture."""
    from lexvl_anserini.encoders.parts.images.grounding import contributions

    image = open_image(picture)
    left, top, right, bottom = tower.pixels.region(image.size)
    grid = contributions(tower, image, weights) if weights else np.zeros((1, 1), np.float32)
    span = float(grid.max() - grid.min())
    shares = (grid - grid.min()) / span if span else np.zeros_like(grid)
    wide, high = image.size
    region = [round(share, 4) for share in (left / wide, top / high, right / wide, bottom / high)]
    return HeatMap(grid=np.round(shares.astype(float), 3).tolist(), region=region, boxes=[])
