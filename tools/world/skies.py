"""Sky, light and weather of the demo world: what a time of day and a weather do to an image."""

from __future__ import annotations

from functools import cache

from world.catalogue import Colour, world
from world.draws import Draws
from world.painting import FULL, UNITS, Canvas, Frame, Light, dimmed, mixed
from world.scenes import Scene
from world.shapes import Drawing, rasterise

SKY_BANDS = 18
LAMPLIGHT: Colour = (232, 204, 160)


@cache
def sky_colours(weather: str, time: str) -> tuple[Colour, ...]:
    """From the top to the horizon."""
    air, hour = world().skies.weathers[weather], world().skies.times[time]
    top, bottom = hour.sky
    grey = dimmed(air.grey, hour.bright)
    if hour.glow:
        grey = mixed(grey, hour.glow, 60)
    low = air.cover * 3 // 4 if hour.glow and weather != "fog" else air.cover
    high, low_sky = mixed(top, grey, air.cover), mixed(bottom, grey, low)
    return tuple(mixed(high, low_sky, FULL * band // (SKY_BANDS - 1)) for band in range(SKY_BANDS))


def fog_of(scene: Scene, indoors: bool) -> tuple[int, int, int]:
    """Fog before the horizon, the background, and what is near (256ths); by night less of it, or nothing is seen."""
    if indoors:
        return 0, 0, 0
    far, back, near = world().skies.weathers[scene.weather].fog
    return (far, back * 3 // 4, near * 9 // 16) if scene.time == "night" else (far, back, near)


def light_of(scene: Scene, indoors: bool) -> Light:
    """What the scene's time and weather do to colours."""
    lamps = scene.time != "day" or scene.weather == "storm"
    if indoors:
        return Light(LAMPLIGHT if scene.time == "night" else (252, 252, 252), (230, 226, 216), scene.time == "night")
    dim, tint = world().skies.weathers[scene.weather].dim, world().skies.times[scene.time].tint
    red, green, blue = (channel * dim // FULL for channel in tint)
    fog = sky_colours(scene.weather, scene.time)[-1]
    return Light((red, green, blue), fog, lamps)


def scenery(name: str) -> Drawing:
    """A drawing of scenery.yaml."""
    return rasterise(world().scenery[name])


def paint_sky(canvas: Canvas, scene: Scene, draws: Draws, frame: Frame) -> None:
    """Sky with sun, moon, stars, clouds, rainbow in a frame; the rest stays as it is."""
    shades = sky_colours(scene.weather, scene.time)
    cover = world().skies.weathers[scene.weather].cover
    with canvas.clipped(*frame):
        canvas.bands(frame[1], frame[3], [canvas.colour(shade, glows=True) for shade in shades])
        if cover < 150 or (scene.weather == "cloudy" and draws.chance(40)):
            paint = _paint_night if scene.time == "night" else _paint_sun
            paint(canvas, scene, draws, frame)
        if scene.weather == "rainbow":
            _paint_rainbow(canvas, shades[-1], draws, frame)
        _paint_clouds(canvas, scene, shades[0], draws, frame)
        if scene.weather == "storm" and draws.chance(85):
            _paint_bolt(canvas, draws, frame)


def paint_fall(canvas: Canvas, scene: Scene, draws: Draws, frame: Frame) -> None:
    """Rain or snow that falls through a frame, in front of whatever is in it."""
    fall = world().skies.weathers[scene.weather].fall
    if fall is None:
        return
    bright = 256 if scene.time != "night" else 190
    long = draws.between(950, 1300)
    place = (-draws.below(long - 900), UNITS + draws.below(long - 900), long, long)
    colours = {"main": dimmed(fall.colour, bright)}
    with canvas.clipped(*frame):
        canvas.paste(scenery(fall.drawing), place, colours, mirror=draws.chance(50), glows=True)


def _paint_night(canvas: Canvas, scene: Scene, draws: Draws, frame: Frame) -> None:
    """Stars and a moon."""
    left, top, right, bottom = frame
    width, height = right - left, bottom - top
    lights = world().skies.lights
    field = (left - 60, top + 940, UNITS, UNITS)
    canvas.paste(scenery("stars"), field, lights["stars"], mirror=draws.chance(50), glows=True)
    across = max(height, width // 2) * draws.between(26, 38) // 100
    moon = scenery(draws.choice(("moon", "crescent", "crescent")))
    place = (
        left + draws.between(0, max(0, width - across)),
        top + across + height * draws.between(2, 20) // 100,
        across,
        across,
    )
    canvas.paste(moon, place, lights["moon"], mirror=draws.chance(50), glows=True)


def _paint_sun(canvas: Canvas, scene: Scene, draws: Draws, frame: Frame) -> None:
    """High by day, at the horizon at dawn and sunset."""
    left, top, right, bottom = frame
    width, height = right - left, bottom - top
    sun = world().skies.times[scene.time].sun
    assert sun
    halo, disc = sun
    across = max(height, width // 2) * draws.between(26, 36) // 100
    down = top + across + height * draws.between(0, 14) // 100
    if scene.time != "day":
        across = across * 13 // 10
        down = bottom + across * draws.between(5, 45) // 100
    place = (left + draws.between(0, max(0, width - across)), down, across, across)
    softened = mixed(halo, sky_colours(scene.weather, scene.time)[-1], 90)
    canvas.paste(scenery("sun"), place, {"light": softened, "main": disc}, glows=True)


def _paint_rainbow(canvas: Canvas, behind: Colour, draws: Draws, frame: Frame) -> None:
    left, top, right, bottom = frame
    width, height = right - left, bottom - top
    wide = width * draws.between(80, 110) // 100
    arc = (left + draws.between(0, width) - wide // 2, bottom + height // 12, wide, height * 92 // 100)
    colours = {material: mixed(rgb, behind, 70) for material, rgb in world().skies.lights["rainbow"].items()}
    canvas.paste(scenery("rainbow"), arc, colours, glows=True)


def _paint_clouds(canvas: Canvas, scene: Scene, high: Colour, draws: Draws, frame: Frame) -> None:
    left, top, right, bottom = frame
    width, height = right - left, bottom - top
    air, hour = world().skies.weathers[scene.weather], world().skies.times[scene.time]
    cloud = dimmed(air.cloud, hour.bright)
    if hour.glow:
        cloud = mixed(cloud, (250, 150, 120), 80)
    for _ in range(draws.between(*air.clouds)):
        tall = height * draws.between(14, 30) // 100
        long = tall * draws.between(220, 330) // 100
        shade = mixed(cloud, high, draws.below(50))
        place = (
            left + draws.between(-long // 2, width - long // 2),
            top + height * draws.between(8, 62) // 100,
            long,
            tall,
        )
        drawing = scenery(draws.choice(("cloud", "cloud/2")))
        colours = {"white": shade, "light": dimmed(shade, 232)}
        canvas.paste(drawing, place, colours, mirror=draws.chance(50), glows=True)


def _paint_bolt(canvas: Canvas, draws: Draws, frame: Frame) -> None:
    left, top, right, bottom = frame
    width, height = right - left, bottom - top
    tall = height * draws.between(50, 75) // 100
    place = (left + draws.between(0, width - tall // 3), bottom - height * draws.between(2, 14) // 100, tall // 2, tall)
    canvas.paste(scenery("bolt"), place, world().skies.lights["bolt"], glows=True)
