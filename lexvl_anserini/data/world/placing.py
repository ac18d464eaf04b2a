"""Things of one kind side by side: their drawings, sizes and boxes, in thousandths of the picture's side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from lexvl_anserini.data.world.creatures import CREATURES
from lexvl_anserini.data.world.draws import Draws
from lexvl_anserini.data.world.figures import POSES, person
from lexvl_anserini.data.world.household import HOUSEHOLD
from lexvl_anserini.data.world.shapes import rasterise
from lexvl_anserini.data.world.things import THINGS
from lexvl_anserini.data.world.world import KINDS, PEOPLE, PLACES, Scene, Thing

# Left and right ends, thousandths.
Span = tuple[int, int]

DRAWINGS: Mapping[str, str] = {**CREATURES, **THINGS, **HOUSEHOLD}

# Tenths of a thousandth of the picture per unit of a drawing, for a medium thing near by.
UNIT: Mapping[str, int] = {
    "boat": 38, "lighthouse": 39, "buoy": 30, "car": 42, "bus": 42, "truck": 41, "train": 38, "bicycle": 38,
    "plane": 32, "balloon": 32, "kite": 30, "bird": 28, "duck": 34, "fish": 36, "dog": 40, "cat": 35, "horse": 40,
    "cow": 41, "sheep": 40, "rabbit": 34, "man": 43, "woman": 43, "child": 42, "house": 40, "tree": 40, "flower": 31,
    "bench": 37, "tent": 39, "umbrella": 34, "ball": 36, "snowman": 35, "cup": 35, "bottle": 31, "book": 32,
    "lamp": 34, "clock": 29, "teddy": 32, "chair": 33, "table": 37, "bowl": 38,
}  # fmt: skip
SIZE_PERCENT: Mapping[str, int] = {"small": 72, "medium": 100, "large": 134}
COUNT_PERCENT: Mapping[int, int] = {1: 100, 2: 88, 3: 78, 4: 70}
# Nothing is so small that it cannot be made out (thousandths high).
LEAST = 110
# What stands upright however the picture is held.
RIGID = frozenset({"house", "lighthouse", "table", "chair", "bench", "bus", "truck", "train", "car", "clock", "bowl"})
FLYING = frozenset({"bird", "plane", "balloon", "kite", "fish"})
# How far a second row is above the first, and how much higher than its neighbours a thing may be: per cent of its
# height, in the air and on the ground.
AIR = (90, 50)
GROUND = (52, 10)


class Placed(NamedTuple):
    """One drawing in the picture.

    role     "subject", "landmark", "backdrop", or "prop" for what belongs to one of them
    kind     of the thing
    drawing  its text
    colour   of the thing
    x        of its centre, `bottom` of its lower edge; `width`, `height`: thousandths of the picture's side
    far      in the background
    lean, tilt  see `shapes.slanted`
    """

    role: str
    kind: str
    drawing: str
    colour: str | None
    x: int
    bottom: int
    width: int
    height: int
    far: bool = False
    mirror: bool = False
    lean: int = 0
    tilt: int = 0


class Stage(NamedTuple):
    """A scene to compose, its choices, and where the ground begins (thousandths from the top)."""

    scene: Scene
    draws: Draws
    horizon: int

    @property
    def ground(self) -> str:
        """The class of the place: "ground", "water" or "home"."""
        return PLACES[self.scene.place].ground

    def floor(self) -> int:
        """Somewhere near by to stand on; drawn anew at each call."""
        return self.draws.between(800, 890) if self.ground == "water" else self.draws.between(880, 965)


# --- drawings -------------------------------------------------------------------------------------------------------


@cache
def looks(kind: str, pose: str | None) -> tuple[str, ...]:
    """The drawings of a kind in a pose; of any pose where it has no drawings of its own."""
    if kind in PEOPLE:
        return (person(kind, pose if pose in POSES else "standing"),)
    for name in (f"{kind} {pose}", kind):
        if found := tuple(text for key, text in DRAWINGS.items() if key.split("/")[0] == name):
            return found
    return (next(text for key, text in DRAWINGS.items() if key.startswith(kind + " ")),)


def any_pose(stage: Stage, kind: str) -> str | None:
    """A pose for what is not the subject."""
    poses = KINDS[kind].poses
    fitting = poses.get(stage.ground) or next(iter(poses.values()), ())
    calm = tuple(pose for pose in fitting if pose not in ("running", "driving", "moving"))
    return stage.draws.choice(calm or fitting) if fitting else None


def _height(stage: Stage, thing: Thing, text: str, percent: int = 100) -> int:
    units = rasterise(text).height * UNIT[thing.kind] // 10
    units = units * SIZE_PERCENT[thing.size] * COUNT_PERCENT[thing.count] * percent // 1_000_000
    return max(LEAST, units * stage.draws.between(92, 108) // 100)


def width_of(text: str, height: int) -> int:
    """Of a drawing that is so high."""
    drawing = rasterise(text)
    return height * drawing.width // drawing.height


def _slant(stage: Stage, kind: str, airborne: bool) -> tuple[int, int]:
    if kind in RIGID:
        return 0, 0
    lean = stage.draws.between(-2, 2) * 4
    return (lean, -lean) if airborne and kind != "balloon" else (lean, 0)


# --- groups ---------------------------------------------------------------------------------------------------------


def place(
    stage: Stage,
    role: str,
    thing: Thing,
    pose: str | None,
    span: Span,
    bottom: int,
    highest: int = 760,
    percent: int = 100,
    airborne: bool = False,
    far: bool = False,
) -> list[Placed]:
    """The `count` things of one kind side by side (in two rows where one is too long) within a span.

    Args:
        span: left and right ends.
        bottom: of the front row.
        highest: the greatest height of one.
        percent: of the usual size.
    """
    draws, count = stage.draws, thing.count
    texts = [draws.choice(looks(thing.kind, pose)) for _ in range(count)]
    height = min(highest, _height(stage, thing, texts[0], percent))
    width = width_of(texts[0], height)
    room = span[1] - span[0]
    rows = 2 if count > 2 and width * count * 9 // 10 > room else 1
    columns = -(-count // rows)
    step = width * draws.between(84, 112) // 100
    total = step * (columns - 1) + width
    if total > room:
        height, width, step = (value * room // total for value in (height, width, step))
        total = room
    # All rows, and the highest of each, keep below the picture's upper edge.
    rise, sway = AIR if airborne else GROUND
    needed = height * (100 + rise * (rows - 1) + sway) // 100
    if needed > bottom:
        height, width, step, total = (value * bottom // needed for value in (height, width, step, total))
    left = span[0] + draws.between(0, room - total)
    mirror = draws.chance(50)
    placed = []
    for number, text in enumerate(texts):
        row, column = divmod(count - 1 - number, columns)
        x = left + width // 2 + column * step + (step // 2 if row and count % 2 else 0)
        y = bottom - height * (row * rise + draws.below(sway)) // 100
        tall = height * rasterise(text).height // rasterise(texts[0]).height
        lean, tilt = _slant(stage, thing.kind, airborne)
        turned = mirror if thing.kind in ("train", "bus", "car") else mirror != draws.chance(25)
        placed.append(
            Placed(role, thing.kind, text, thing.colour, x, y, width_of(text, tall), tall, far, turned, lean, tilt)
        )
    return sorted(placed, key=lambda one: one.bottom)


def in_the_air(stage: Stage) -> bool:
    """Whether the subject flies over the place."""
    scene = stage.scene
    return scene.subject.kind in PLACES[scene.place].air and scene.relation != "on"


def place_subject(stage: Stage, span: Span, bottom: int, highest: int = 760, percent: int = 100) -> list[Placed]:
    """The scene's subject in its pose."""
    subject = stage.scene.subject
    return place(stage, "subject", subject, stage.scene.pose, span, bottom, highest, percent, subject.kind in FLYING)


def place_landmark(stage: Stage, span: Span, bottom: int, highest: int = 760, percent: int = 100) -> list[Placed]:
    """The scene's landmark in any pose."""
    landmark = stage.scene.landmark
    assert landmark
    return place(stage, "landmark", landmark, any_pose(stage, landmark.kind), span, bottom, highest, percent)
