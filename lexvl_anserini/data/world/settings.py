"""The 16 places of the demo world as backgrounds: colours of the ground, and what stands around."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lexvl_anserini.data.world.painting import Colour

Range = tuple[int, int]


class Prop(NamedTuple):
    """Scenery of one sort.

    names    of drawings in SCENERY, one of which is chosen each time
    where    "horizon": on it; "strip": across the picture at `height` above `bottom`; "back": standing on the far
             ground; "side": near, at the left or right edge; "top": hanging from the top
    many     how many, from and to
    height   from and to, thousandths of the picture
    bottom   of a strip, from and to, per cent of the way from the horizon to the lower edge
    colour   what its materials c, d, l become; None: grey
    percent  chance that it is there at all
    front    painted over the things
    """

    names: tuple[str, ...]
    where: str
    many: Range = (1, 1)
    height: Range = (100, 200)
    bottom: Range = (0, 0)
    colour: Colour | None = None
    percent: int = 100
    front: bool = False


class Setting(NamedTuple):
    """Where the ground begins (thousandths), its colours far and near, the textures on it, and the scenery.

    Indoors `walls` are the colours a wall may have, with its pattern; the ground is the floor.
    """

    horizon: Range
    far: Colour
    near: Colour
    textures: tuple[str, ...]
    props: tuple[Prop, ...]
    walls: tuple[Colour, ...] = ()
    pattern: str = ""


SETTINGS: Mapping[str, Setting] = {
    "sea": Setting(
        (360, 460), (44, 112, 176), (18, 58, 122), ("waves", "waves"),
        (Prop(("foam",), "strip", (2, 3), (18, 34), (15, 95), percent=80),),
    ),
    "lake": Setting(
        (380, 460), (150, 200, 214), (72, 138, 172), ("waves",),
        (
            Prop(("hills", "hills/2"), "horizon", (1, 1), (90, 150), colour=(74, 128, 76)),
            Prop(("bush",), "horizon", (4, 7), (40, 80)),
            Prop(("ripple",), "strip", (2, 4), (14, 20), (20, 80), colour=(186, 222, 230)),
            Prop(("lily",), "back", (1, 4), (30, 48)),
            Prop(("reeds",), "side", (2, 4), (200, 320), front=True),
        ),
    ),
    "harbour": Setting(
        (370, 440), (92, 140, 150), (44, 88, 104), ("waves",),
        (
            Prop(("warehouse",), "horizon", (3, 4), (110, 150)),
            Prop(("crane",), "horizon", (1, 2), (230, 320)),
            Prop(("quay",), "strip", (1, 1), (110, 140), (101, 104), front=True),
        ),
    ),
    "beach": Setting(
        (330, 400), (238, 216, 166), (226, 192, 130), ("specks",),
        (
            Prop(("surf",), "strip", (1, 1), (110, 150), (22, 24)),
            Prop(("palm",), "back", (1, 2), (300, 420), percent=75),
            Prop(("shell",), "side", (1, 3), (30, 50)),
        ),
    ),
    "field": Setting(
        (400, 500), (142, 190, 84), (92, 152, 52), ("grass", "grass"),
        (
            Prop(("hills", "hills/2"), "horizon", (1, 1), (70, 130), colour=(124, 168, 84)),
            Prop(("crop",), "strip", (1, 1), (60, 110), (18, 30), percent=70),
        ),
    ),
    "farm": Setting(
        (390, 470), (158, 168, 92), (140, 124, 70), ("grass", "specks"),
        (
            Prop(("silo", "barn"), "horizon", (1, 2), (200, 260)),
            Prop(("hay",), "back", (1, 3), (80, 120)),
            Prop(("fence",), "strip", (1, 1), (110, 140), (24, 34)),
        ),
    ),
    "forest": Setting(
        (430, 520), (84, 104, 56), (58, 72, 36), ("grass", "specks"),
        (
            Prop(("canopy",), "top", (1, 1), (150, 260)),
            Prop(("trunk",), "back", (6, 9), (480, 620)),
            Prop(("fern",), "side", (2, 4), (90, 160), front=True),
        ),
    ),
    "mountain": Setting(
        (460, 540), (140, 150, 116), (104, 116, 84), ("specks", "grass"),
        (
            Prop(("peaks", "peaks/2"), "horizon", (1, 1), (330, 430), colour=(128, 132, 148)),
            Prop(("fir",), "horizon", (3, 6), (90, 150)),
        ),
    ),
    "desert": Setting(
        (420, 500), (238, 200, 130), (216, 162, 92), ("specks",),
        (
            Prop(("dunes",), "horizon", (1, 1), (90, 150), colour=(226, 178, 106)),
            Prop(("dunes",), "strip", (1, 1), (90, 140), (24, 40), colour=(232, 186, 112)),
            Prop(("cactus",), "back", (1, 3), (190, 290)),
        ),
    ),
    "park": Setting(
        (380, 460), (120, 190, 96), (84, 156, 68), ("grass",),
        (
            Prop(("bush",), "horizon", (5, 7), (90, 150)),
            Prop(("path",), "ground", (1, 1)),
            Prop(("fountain",), "back", (1, 1), (150, 200), percent=60),
        ),
    ),
    "street": Setting(
        (470, 540), (170, 168, 164), (146, 144, 142), (),
        (
            Prop(("skyline",), "horizon", (1, 1), (320, 440), colour=(176, 142, 122)),
            Prop(("road",), "strip", (1, 1), (330, 380), (92, 100)),
        ),
    ),
    "garden": Setting(
        (420, 480), (116, 178, 84), (84, 146, 60), ("grass",),
        (
            Prop(("bush",), "horizon", (3, 5), (110, 170)),
            Prop(("pickets",), "strip", (1, 1), (120, 160), (6, 12)),
            Prop(("beds",), "strip", (1, 1), (60, 80), (16, 22)),
        ),
    ),
    "snow": Setting(
        (420, 520), (238, 243, 250), (214, 226, 244), ("specks",),
        (
            Prop(("hills", "hills/2"), "horizon", (1, 1), (90, 160), colour=(228, 236, 246)),
            Prop(("snowy fir",), "back", (3, 5), (180, 280)),
        ),
    ),
    "kitchen": Setting(
        (630, 690), (206, 196, 180), (180, 168, 150), ("checks",),
        (
            Prop(("cupboard",), "wall", (1, 2), (120, 150)),
            Prop(("counter",), "floor", (1, 1), (240, 290)),
            Prop(("fridge",), "floor", (1, 1), (440, 520), percent=65),
        ),
        ((226, 236, 238), (244, 240, 222), (222, 236, 220), (240, 226, 216)),
        "tiles",
    ),
    "living room": Setting(
        (640, 700), (168, 122, 80), (140, 98, 62), ("boards",),
        (
            Prop(("picture",), "wall", (1, 2), (120, 170)),
            Prop(("sofa",), "floor", (1, 1), (250, 310), colour=(112, 92, 104)),
            Prop(("shelf",), "floor", (1, 1), (430, 500), percent=60),
            Prop(("rug",), "rug", (1, 1), (150, 190), colour=(176, 96, 84)),
        ),
        ((206, 196, 168), (190, 204, 190), (212, 190, 176), (186, 196, 210)),
        "stripes",
    ),
    "bedroom": Setting(
        (640, 700), (190, 178, 170), (164, 150, 146), ("specks",),
        (
            Prop(("picture",), "wall", (1, 1), (110, 140), percent=50),
            Prop(("bed",), "floor", (1, 1), (310, 380), colour=(104, 132, 186)),
            Prop(("rug",), "rug", (1, 1), (130, 170), colour=(150, 170, 190), percent=60),
        ),
        ((224, 212, 232), (206, 220, 238), (240, 220, 222), (222, 230, 214)),
        "dots",
    ),
}  # fmt: skip
