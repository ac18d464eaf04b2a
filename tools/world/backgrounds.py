"""The places of the demo world painted: land under its sky, or a room with its window."""

from __future__ import annotations

from world.catalogue import Prop, Setting, world
from world.draws import Draws
from world.painting import FULL, UNITS, Box, Canvas, dimmed, mixed, shades_of, stray
from world.scenes import Scene
from world.skies import fog_of, paint_fall, paint_sky, scenery

GROUND_BANDS = 8
# Textures drawn in perspective.
FLOORS = frozenset({"checks", "boards"})


def paint_land(canvas: Canvas, scene: Scene, place: Setting, horizon: int, draws: Draws) -> None:
    """Sky, what is on the horizon, the ground, and what is on it behind the things."""
    paint_sky(canvas, scene, draws, (0, 0, UNITS, horizon + 6))
    paint_props(canvas, scene, place, horizon, draws, front=False, wheres=("horizon",))
    _paint_ground(canvas, place, horizon, draws, scene)
    paint_props(canvas, scene, place, horizon, draws, front=False, wheres=("ground", "strip", "back", "top", "side"))


def _paint_ground(canvas: Canvas, place: Setting, horizon: int, draws: Draws, scene: Scene) -> None:
    far, near = (stray(colour, draws) for colour in (place.far, place.near))
    if scene.weather == "snow" and not place.indoors:
        far, near = (mixed(colour, (236, 240, 248), 130) for colour in (far, near))
    fog_far, _, fog_near = fog_of(scene, place.indoors)
    numbers = [
        canvas.colour(
            mixed(far, near, FULL * band // (GROUND_BANDS - 1)),
            fog_far - (fog_far - fog_near) * min(GROUND_BANDS - 1, band * 2) // (GROUND_BANDS - 1),
        )
        for band in range(GROUND_BANDS)
    ]
    canvas.bands(horizon, UNITS, numbers)
    middle = mixed(far, near, 128)
    darker = draws.chance(50)
    for texture in place.textures:
        tall, shift = UNITS - horizon, draws.below(200)
        box = (-shift, UNITS + shift, UNITS + 200, tall + 200)
        if texture in FLOORS:
            box = (-shift // 2, UNITS, UNITS + 100, tall)
        shade = dimmed(middle, 222) if darker else mixed(middle, (255, 255, 255), 50)
        colours = {"main": shade, "dark": dimmed(middle, 218)}
        with canvas.clipped(0, horizon, UNITS, UNITS):
            canvas.paste(scenery(texture), box, colours, fog_near, draws.chance(50))
        darker = not darker


def paint_room(canvas: Canvas, scene: Scene, place: Setting, horizon: int, draws: Draws) -> None:
    """Wall, floor, window with what can be seen of the weather, and furniture."""
    wall = stray(draws.choice(place.walls), draws)
    canvas.bands(0, horizon, [canvas.colour(dimmed(wall, 256 - 2 * band)) for band in range(5, -1, -1)])
    with canvas.clipped(0, 0, UNITS, horizon):
        box = (-draws.below(100), draws.between(1000, 1100), 1100, 1100)
        canvas.paste(scenery(place.pattern), box, {"dark": dimmed(wall, 238)})
    _paint_ground(canvas, place, horizon, draws, scene)
    canvas.bands(horizon - 14, horizon + 4, [canvas.colour(dimmed(wall, 170))])
    window = _paint_window(canvas, scene, draws)
    for prop in place.props:
        if draws.chance(prop.percent):
            _paint_furniture(canvas, prop, horizon, window, draws)


def _paint_window(canvas: Canvas, scene: Scene, draws: Draws) -> tuple[int, int]:
    """A window with curtains (not in the kitchen); returns its left end and its width."""
    wide = draws.between(300, 400)
    left = draws.between(30, 960 - wide)
    top, tall = draws.between(50, 110), draws.between(290, 350)
    paint_sky(canvas, scene, draws, (left + 8, top + 8, left + wide - 8, top + tall - 8))
    paint_fall(canvas, scene, draws, (left + 8, top + 8, left + wide - 8, top + tall - 8))
    canvas.paste(scenery("window"), (left, top + tall, wide, tall), {})
    if scene.place != "kitchen":
        tint = stray(draws.choice(world().colours.curtains), draws)
        for x, mirror in ((left - 50, False), (left + wide - 30, True)):
            canvas.paste(scenery("curtain"), (x, top + tall + 50, 80, tall + 70), shades_of(tint), mirror=mirror)
    return left, wide


def _paint_furniture(canvas: Canvas, prop: Prop, horizon: int, window: tuple[int, int], draws: Draws) -> None:
    left, wide = window
    colours = shades_of(stray(prop.colour, draws))
    for number in range(draws.between(*prop.many)):
        drawing = scenery(draws.choice(prop.drawings))
        tall = draws.between(*prop.height)
        long = tall * drawing.width // drawing.height
        x, bottom = draws.between(-long // 4, UNITS - long * 3 // 4), horizon + draws.between(10, 40)
        if prop.where == "rug":
            bottom = UNITS - draws.between(20, 90)
        if prop.where == "wall":
            # Beside the window, on its broader side first.
            rightward = (left + wide // 2 < 500) != bool(number)
            x = left + wide + draws.between(20, 90) if rightward else left - long - draws.between(20, 90)
            bottom = draws.between(200, 330)
        canvas.paste(drawing, (x, bottom, long, tall), colours, mirror=draws.chance(50))


def paint_props(
    canvas: Canvas,
    scene: Scene,
    place: Setting,
    horizon: int,
    draws: Draws,
    front: bool,
    wheres: tuple[str, ...] = ("strip", "side"),
) -> None:
    """The scenery outdoors that is (or is not) in front of the things, from the given parts of the land."""
    fog_far, fog_back, fog_near = fog_of(scene, indoors=False)
    for prop in place.props:
        if prop.front != front or prop.where not in wheres or not draws.chance(prop.percent):
            continue
        colours = shades_of(stray(prop.colour, draws))
        fog = fog_near if front else fog_far if prop.where == "horizon" else fog_back
        for _ in range(draws.between(*prop.many)):
            drawing = scenery(draws.choice(prop.drawings))
            box = _prop_box(prop, drawing.width, drawing.height, horizon, draws)
            canvas.paste(drawing, box, colours, fog, draws.chance(50))


def _prop_box(prop: Prop, width: int, height: int, horizon: int, draws: Draws) -> Box:
    tall = draws.between(*prop.height)
    long = tall * width // height
    across = UNITS + draws.below(200)
    match prop.where:
        case "ground":
            return draws.between(-300, 300), UNITS, 1000, UNITS - horizon
        case "top":
            return -draws.below(200), tall, across + 100, tall
        case "strip":
            bottom = horizon + (UNITS - horizon) * draws.between(*prop.bottom) // 100
            return -draws.below(across - 999), bottom, across, tall
        case "side":
            edge = draws.between(-long // 3, 130)
            return (edge if draws.chance(50) else UNITS - long - edge), draws.between(940, 1010), long, tall
        case "back":
            return draws.between(-long // 3, UNITS - long * 2 // 3), horizon + draws.between(30, 150), long, tall
        case _:
            wide = long if long < UNITS else across
            left = draws.between(-wide // 3, UNITS - wide * 2 // 3) if long < UNITS else -draws.below(across - 999)
            return left, horizon + draws.between(6, 14), wide, tall
