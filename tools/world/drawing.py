"""The demo world drawn: an image of a scene, the same pixels on every machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from world.backgrounds import paint_land, paint_props, paint_room
from world.catalogue import Colour, world
from world.composing import compose, hand_of
from world.draws import Draws
from world.painting import UNITS, Canvas, shades_of, stray
from world.placing import Placed
from world.scenes import SEED, Scene
from world.shapes import rasterise, slanted
from world.skies import fog_of, light_of, paint_fall

# Raised whenever a pixel or the size of a split changes, so that cached images are drawn again.
VERSION = 3


def draw(scene: Scene, size: int = 64) -> NDArray[np.uint8]:
    """An image of the scene.

    Args:
        scene: what it shows; positions, shades and scenery follow from the scene's split and number.
        size: of a side, in pixels.

    Returns:
        RGB, uint8 [size, size, 3].
    """
    draws = Draws(SEED, "drawing", scene.split, scene.number)
    place = world().places[scene.place]
    indoors = place.indoors
    light = light_of(scene, indoors)
    canvas = Canvas(size, light.lamps)
    horizon = draws.between(*place.horizon)
    placed = compose(scene, draws, horizon)
    behind = [one for one in placed if one.far]
    if indoors:
        paint_room(canvas, scene, place, horizon, draws)
    else:
        paint_land(canvas, scene, place, horizon, draws)
    looks: dict[str, Mapping[str, Colour]] = {}
    fogs = fog_of(scene, indoors)
    for one in (*behind, *(one for one in placed if not one.far)):
        _paint_thing(canvas, one, draws, fogs[1 if one.far else 2], looks)
        if scene.relation == "flying" and one.kind == "kite":
            _paint_string(canvas, one, next(other for other in placed if other.role == "subject"))
    if not indoors:
        paint_props(canvas, scene, place, horizon, draws, front=True)
        paint_fall(canvas, scene, draws, (0, 0, UNITS, UNITS))
    return canvas.finish(light)


def _paint_thing(canvas: Canvas, one: Placed, draws: Draws, fog: int, looks: dict[str, Mapping[str, Colour]]) -> None:
    """Things of one group are alike in colour; people differ in hair, skin and trousers."""
    own = world().colours
    if one.role == "prop":
        colours: Mapping[str, Colour] = looks[one.kind]
    else:
        rgb = stray(draws.choice(own.hues[one.colour].shades), draws, 8) if one.colour else (246, 246, 242)
        colours = looks.setdefault(one.kind, shades_of(rgb, one.colour))
    if one.kind in world().people:
        skin, hair, trousers = draws.choice(own.skin), draws.choice(own.hair), draws.choice(own.trousers)
        colours = {**colours, "skin": skin, "hair": hair, "trousers": trousers}
    drawing = slanted(one.drawing, one.lean, one.tilt)
    plain = rasterise(one.drawing)
    width = one.width * drawing.width // plain.width
    height = one.height * drawing.height // plain.height
    canvas.paste(drawing, (one.x - width // 2, one.bottom, width, height), colours, fog, one.mirror)


def _paint_string(canvas: Canvas, kite: Placed, holder: Placed) -> None:
    canvas.line(hand_of(holder, "flying"), (kite.x, kite.bottom - kite.height // 3), canvas.colour((60, 60, 70)))
