"""The demo world drawn: a picture of a scene, the same pixels on every machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lexvl_anserini.data.world.backgrounds import paint_land, paint_props, paint_room, shades_of, stray
from lexvl_anserini.data.world.composing import Placed, compose
from lexvl_anserini.data.world.draws import Draws
from lexvl_anserini.data.world.figures import HAND
from lexvl_anserini.data.world.painting import UNITS, Canvas, Colour
from lexvl_anserini.data.world.settings import SETTINGS
from lexvl_anserini.data.world.shapes import rasterise, slanted
from lexvl_anserini.data.world.skies import fog_of, light_of, paint_fall
from lexvl_anserini.data.world.staging import SEED
from lexvl_anserini.data.world.world import PEOPLE, Scene

# The shades that things of one colour come in.
SHADES: Mapping[str, tuple[Colour, ...]] = {
    "red": ((208, 38, 40), (186, 26, 44), (224, 58, 44)),
    "orange": ((244, 140, 30), (250, 156, 56), (234, 122, 20)),
    "yellow": ((248, 214, 52), (252, 224, 92), (240, 202, 28)),
    "green": ((48, 152, 66), (30, 128, 62), (84, 170, 70)),
    "blue": ((40, 94, 208), (30, 74, 180), (66, 126, 226)),
    "purple": ((124, 58, 168), (104, 44, 146), (148, 84, 190)),
    "pink": ((246, 132, 180), (240, 108, 168), (250, 160, 196)),
    "brown": ((124, 78, 44), (104, 62, 34), (148, 98, 60)),
    "black": ((40, 38, 44), (30, 30, 36), (52, 50, 56)),
    "white": ((244, 244, 240), (236, 236, 234), (250, 248, 240)),
    "grey": ((140, 144, 150), (122, 126, 132), (158, 160, 166)),
}
SKIN: tuple[Colour, ...] = ((244, 204, 174), (224, 172, 136), (178, 124, 88), (122, 80, 56))
HAIR: tuple[Colour, ...] = ((44, 32, 28), (88, 54, 32), (150, 100, 48), (226, 190, 110), (150, 150, 150), (140, 60, 30))
TROUSERS: tuple[Colour, ...] = ((52, 66, 110), (60, 60, 68), (96, 78, 60), (40, 44, 52), (120, 120, 124))

# Changes whenever a pixel or the size of a split does, so that pictures drawn before are drawn again.
VERSION = 3


def draw(scene: Scene, size: int = 64) -> NDArray[np.uint8]:
    """A picture of the scene.

    Args:
        scene: what it shows; positions, shades and scenery follow from the scene's split and number.
        size: of a side, in pixels.

    Returns:
        RGB, uint8 [size, size, 3].
    """
    draws = Draws(SEED, "drawing", scene.split, scene.number)
    setting = SETTINGS[scene.place]
    indoors = bool(setting.walls)
    light = light_of(scene, indoors)
    canvas = Canvas(size, light.lamps)
    horizon = draws.between(*setting.horizon)
    placed = compose(scene, draws, horizon)
    behind = [one for one in placed if one.far]
    if indoors:
        paint_room(canvas, scene, setting, horizon, draws)
    else:
        paint_land(canvas, scene, setting, horizon, draws)
    looks: dict[str, Mapping[str, Colour]] = {}
    fogs = fog_of(scene, indoors)
    for one in (*behind, *(one for one in placed if not one.far)):
        _paint_thing(canvas, one, draws, fogs[1 if one.far else 2], looks)
        if scene.relation == "flying" and one.kind == "kite":
            _paint_string(canvas, one, next(other for other in placed if other.role == "subject"))
    if not indoors:
        paint_props(canvas, scene, setting, horizon, draws, front=True)
        paint_fall(canvas, scene, draws, (0, 0, UNITS, UNITS))
    return canvas.finish(light)


def _paint_thing(canvas: Canvas, one: Placed, draws: Draws, fog: int, looks: dict[str, Mapping[str, Colour]]) -> None:
    """Things of one group are alike in colour; people differ in hair, skin and trousers."""
    if one.role == "prop":
        colours: Mapping[str, Colour] = looks[one.kind]
    else:
        rgb = stray(draws.choice(SHADES[one.colour]), draws, 8) if one.colour else (246, 246, 242)
        colours = looks.setdefault(one.kind, shades_of(rgb, one.colour))
    if one.kind in PEOPLE:
        own = {"s": draws.choice(SKIN), "h": draws.choice(HAIR), "j": draws.choice(TROUSERS)}
        colours = {**colours, **own}
    drawing = slanted(one.drawing, one.lean, one.tilt)
    plain = rasterise(one.drawing)
    width = one.width * drawing.width // plain.width
    height = one.height * drawing.height // plain.height
    canvas.paste(drawing, (one.x - width // 2, one.bottom, width, height), colours, fog, one.mirror)


def _paint_string(canvas: Canvas, kite: Placed, holder: Placed) -> None:
    across, down = HAND["flying"]
    side = (across - 50) * holder.width // 100
    hand = (holder.x + (-side if holder.mirror else side), holder.bottom - holder.height * (100 - down) // 100)
    canvas.line(hand, (kite.x, kite.bottom - kite.height // 3), canvas.colour((60, 60, 70)))
