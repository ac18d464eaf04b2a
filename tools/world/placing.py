"""Things of one kind side by side: their drawings, sizes and boxes, in thousandths of the image's side."""

from __future__ import annotations

from typing import NamedTuple

from world.catalogue import ANY, Sketch, world
from world.draws import Draws
from world.scenes import Scene, Thing
from world.shapes import rasterise

# Left and right ends, thousandths.
Span = tuple[int, int]

# Nothing is so small that it cannot be made out (thousandths high).
LEAST = 110
# How far a second row is above the first, and how much higher than its neighbours a thing may be: per cent of its
# height, in the air and on the ground.
AIR = (90, 50)
GROUND = (52, 10)


class Placed(NamedTuple):
    """One drawing in the image.

    role     "subject", "landmark", "backdrop", or "prop" for what belongs to one of them
    kind     of the thing
    drawing  its text, see `sketches`
    colour   of the thing
    x        of its centre, `bottom` of its lower edge; `width`, `height`: thousandths of the image's side
    far      in the background
    lean, tilt  see `shapes.slanted`
    """

    role: str
    kind: str
    drawing: Sketch
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
        return world().places[self.scene.place].ground

    def floor(self) -> int:
        """Somewhere near by to stand on; drawn anew at each call."""
        return self.draws.between(800, 890) if self.ground == "water" else self.draws.between(880, 965)


# --- drawings -------------------------------------------------------------------------------------------------------


def looks(kind: str, pose: str | None) -> tuple[Sketch, ...]:
    """The drawings of a kind in a pose; of any pose where it has no drawings of its own."""
    if kind in world().people:
        return (person(kind, pose if pose in world().poses else "standing"),)
    drawings = world().kinds[kind].drawings
    return drawings.get(pose or ANY) or drawings.get(ANY) or next(iter(drawings.values()))[:1]


def person(kind: str, pose: str | None) -> Sketch:
    """The drawing of a person in a pose."""
    figure = world().kinds[kind].figure
    assert figure
    return figure._replace(pose=pose)


def any_pose(stage: Stage, kind: str) -> str | None:
    """A pose for what is not the subject."""
    poses = world().kinds[kind].poses
    fitting = poses.get(stage.ground) or next(iter(poses.values()), ())
    calm = tuple(pose for pose in fitting if pose not in ("running", "driving", "moving"))
    return stage.draws.choice(calm or fitting) if fitting else None


def _height(stage: Stage, thing: Thing, sketch: Sketch, percent: int = 100) -> int:
    words = world().words
    units = rasterise(sketch).height * world().kinds[thing.kind].scale // 10
    units = units * words.sizes[thing.size].percent * words.counts[thing.count].percent * percent // 1_000_000
    return max(LEAST, units * stage.draws.between(92, 108) // 100)


def width_of(sketch: Sketch, height: int) -> int:
    """Of a drawing that is so high."""
    drawing = rasterise(sketch)
    return height * drawing.width // drawing.height


def _slant(stage: Stage, kind: str, airborne: bool) -> tuple[int, int]:
    entry = world().kinds[kind]
    if entry.rigid:
        return 0, 0
    lean = stage.draws.between(-2, 2) * 4
    return (lean, -lean) if airborne and not entry.level else (lean, 0)


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
    sketches = [draws.choice(looks(thing.kind, pose)) for _ in range(count)]
    height = min(highest, _height(stage, thing, sketches[0], percent))
    width = width_of(sketches[0], height)
    room = span[1] - span[0]
    rows = 2 if count > 2 and width * count * 9 // 10 > room else 1
    columns = -(-count // rows)
    step = width * draws.between(84, 112) // 100
    total = step * (columns - 1) + width
    if total > room:
        height, width, step = (value * room // total for value in (height, width, step))
        total = room
    # All rows, and the highest of each, keep below the image's upper edge.
    rise, sway = AIR if airborne else GROUND
    needed = height * (100 + rise * (rows - 1) + sway) // 100
    if needed > bottom:
        height, width, step, total = (value * bottom // needed for value in (height, width, step, total))
    left = span[0] + draws.between(0, room - total)
    mirror = draws.chance(50)
    placed = []
    for number, sketch in enumerate(sketches):
        row, column = divmod(count - 1 - number, columns)
        x = left + width // 2 + column * step + (step // 2 if row and count % 2 else 0)
        y = bottom - height * (row * rise + draws.below(sway)) // 100
        tall = height * rasterise(sketch).height // rasterise(sketches[0]).height
        lean, tilt = _slant(stage, thing.kind, airborne)
        turned = mirror if world().kinds[thing.kind].aligned else mirror != draws.chance(25)
        placed.append(
            Placed(role, thing.kind, sketch, thing.colour, x, y, width_of(sketch, tall), tall, far, turned, lean, tilt)
        )
    return sorted(placed, key=lambda one: one.bottom)


def place_subject(stage: Stage, span: Span, bottom: int, highest: int = 760, percent: int = 100) -> list[Placed]:
    """The scene's subject in its pose."""
    subject = stage.scene.subject
    floats = world().kinds[subject.kind].floats
    return place(stage, "subject", subject, stage.scene.pose, span, bottom, highest, percent, floats)


def place_landmark(stage: Stage, span: Span, bottom: int, highest: int = 760, percent: int = 100) -> list[Placed]:
    """The scene's landmark in any pose."""
    landmark = stage.scene.landmark
    assert landmark
    return place(stage, "landmark", landmark, any_pose(stage, landmark.kind), span, bottom, highest, percent)
