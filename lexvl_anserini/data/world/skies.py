"""Sky, light and weather of the demo world: what a time of day and a weather do to a picture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from lexvl_anserini.data.world.draws import Draws
from lexvl_anserini.data.world.painting import FULL, Canvas, Colour, Light
from lexvl_anserini.data.world.scenery import SCENERY
from lexvl_anserini.data.world.shapes import rasterise
from lexvl_anserini.data.world.world import Scene

# time -> colours of a clear sky at its top and at the horizon
CLEAR_SKY: Mapping[str, tuple[Colour, Colour]] = {
    "dawn": ((150, 176, 224), (255, 222, 190)),
    "day": ((64, 140, 226), (190, 224, 246)),
    "sunset": ((92, 62, 132), (252, 138, 62)),
    "night": ((10, 14, 40), (34, 44, 88)),
}
SKY_BANDS = 18


class Air(NamedTuple):
    """A weather.

    grey    what an overcast sky looks like by day
    cover   how much of the sky is that (256ths)
    dim     how bright the land is (256ths)
    clouds  how many, from and to, and their grey
    fog     of the horizon, of the background, and of what is near (256ths)
    """

    grey: Colour
    cover: int
    dim: int
    clouds: tuple[int, int]
    cloud: Colour
    fog: tuple[int, int, int]


AIRS: Mapping[str, Air] = {
    "clear": Air((255, 255, 255), 0, 256, (0, 2), (252, 252, 252), (36, 14, 0)),
    "cloudy": Air((176, 184, 194), 190, 228, (6, 8), (214, 218, 224), (48, 20, 0)),
    "rain": Air((122, 130, 144), 214, 206, (4, 6), (98, 106, 120), (90, 44, 14)),
    "snow": Air((204, 208, 216), 214, 238, (2, 4), (228, 230, 236), (80, 40, 12)),
    "fog": Air((206, 208, 208), 236, 240, (0, 0), (220, 220, 220), (216, 176, 112)),
    "storm": Air((66, 70, 88), 226, 184, (7, 9), (42, 46, 60), (70, 34, 8)),
    "rainbow": Air((150, 174, 204), 100, 248, (2, 4), (240, 242, 246), (40, 16, 0)),
}
# time -> light on the land, and how bright grey air is (256ths)
SUNLIGHT: Mapping[str, tuple[Colour, int]] = {
    "dawn": ((244, 226, 230), 226),
    "day": ((256, 256, 256), 256),
    "sunset": ((250, 200, 172), 190),
    "night": ((138, 148, 200), 112),
}
LAMPLIGHT: Colour = (232, 204, 160)
SUNS: Mapping[str, tuple[Colour, Colour]] = {
    "day": ((255, 246, 176), (255, 238, 120)),
    "sunset": ((255, 190, 92), (250, 110, 50)),
    "dawn": ((255, 240, 206), (255, 226, 140)),
}


def mixed(one: Colour, other: Colour, share: int) -> Colour:
    """Two colours with so many 256ths of the other."""
    (r, g, b), (red, green, blue), rest = one, other, FULL - share
    return (r * rest + red * share) // FULL, (g * rest + green * share) // FULL, (b * rest + blue * share) // FULL


def dimmed(colour: Colour, share: int) -> Colour:
    """A colour at so many 256ths of its brightness."""
    red, green, blue = colour
    return red * share // FULL, green * share // FULL, blue * share // FULL


@cache
def sky_colours(weather: str, time: str) -> tuple[Colour, ...]:
    """From the top to the horizon."""
    air, (_, bright) = AIRS[weather], SUNLIGHT[time]
    top, bottom = CLEAR_SKY[time]
    grey = dimmed(air.grey, bright)
    if time == "sunset":
        grey = mixed(grey, (226, 120, 70), 60)
    if time == "dawn":
        grey = mixed(grey, (252, 206, 184), 60)
    low = air.cover * 3 // 4 if time in ("sunset", "dawn") and weather != "fog" else air.cover
    high, low_sky = mixed(top, grey, air.cover), mixed(bottom, grey, low)
    return tuple(mixed(high, low_sky, FULL * band // (SKY_BANDS - 1)) for band in range(SKY_BANDS))


def fog_of(scene: Scene, indoors: bool) -> tuple[int, int, int]:
    """Fog before the horizon, the background, and what is near (256ths); by night less of it, or nothing is seen."""
    if indoors:
        return 0, 0, 0
    far, back, near = AIRS[scene.weather].fog
    return (far, back * 3 // 4, near * 9 // 16) if scene.time == "night" else (far, back, near)


def light_of(scene: Scene, indoors: bool) -> Light:
    """What the scene's time and weather do to colours."""
    tint, _ = SUNLIGHT[scene.time]
    lamps = scene.time != "day" or scene.weather == "storm"
    if indoors:
        return Light(LAMPLIGHT if scene.time == "night" else (252, 252, 252), (230, 226, 216), scene.time == "night")
    air = AIRS[scene.weather]
    red, green, blue = (channel * air.dim // FULL for channel in tint)
    fog = sky_colours(scene.weather, scene.time)[-1]
    return Light((red, green, blue), fog, lamps)


def paint_sky(canvas: Canvas, scene: Scene, draws: Draws, box: tuple[int, int, int, int]) -> None:
    """Sky with sun, moon, stars, clouds, rainbow in a box (left, top, right, bottom); the rest is not touched."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    whole = canvas.clip
    canvas.clip_to(*box)
    shades = sky_colours(scene.weather, scene.time)
    high, low = shades[0], shades[-1]
    canvas.bands(top, bottom, [canvas.colour(shade, glows=True) for shade in shades])
    air = AIRS[scene.weather]
    if air.cover < 150 or (scene.weather == "cloudy" and draws.chance(40)):
        _paint_lights(canvas, scene, draws, box)
    if scene.weather == "rainbow":
        wide = width * draws.between(80, 110) // 100
        arc = (left + draws.between(0, width) - wide // 2, bottom + height // 12, wide, height * 92 // 100)
        softened = {material: mixed(rgb, low, 70) for material, rgb in _RAINBOW.items()}
        canvas.paste(rasterise(SCENERY["rainbow"]), arc, softened, glows=True)
    cloud = dimmed(air.cloud, SUNLIGHT[scene.time][1])
    if scene.time in ("sunset", "dawn"):
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
        drawing = rasterise(SCENERY[draws.choice(("cloud", "cloud/2"))])
        canvas.paste(drawing, place, {"w": shade, "l": dimmed(shade, 232)}, mirror=draws.chance(50), glows=True)
    if scene.weather == "storm" and draws.chance(85):
        tall = height * draws.between(50, 75) // 100
        place = (
            left + draws.between(0, width - tall // 3),
            bottom - height * draws.between(2, 14) // 100,
            tall // 2,
            tall,
        )
        canvas.paste(rasterise(SCENERY["bolt"]), place, {"Y": (255, 246, 170), "e": (255, 236, 140)}, glows=True)
    canvas.clip = whole


def paint_fall(canvas: Canvas, scene: Scene, draws: Draws, box: tuple[int, int, int, int]) -> None:
    """Rain or snow that falls through a box, before whatever is in it."""
    names = {"rain": ("rain", (196, 210, 230)), "storm": ("rain", (150, 164, 190)), "snow": ("flakes", (252, 252, 255))}
    if scene.weather not in names:
        return
    name, colour = names[scene.weather]
    whole = canvas.clip
    canvas.clip_to(*box)
    bright = 256 if scene.time != "night" else 190
    long = draws.between(950, 1300)
    place = (-draws.below(long - 900), 1000 + draws.below(long - 900), long, long)
    canvas.paste(rasterise(SCENERY[name]), place, {"c": dimmed(colour, bright)}, mirror=draws.chance(50), glows=True)
    canvas.clip = whole


def _paint_lights(canvas: Canvas, scene: Scene, draws: Draws, box: tuple[int, int, int, int]) -> None:
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    if scene.time == "night":
        stars = {"c": (236, 238, 250)}
        canvas.paste(
            rasterise(SCENERY["stars"]), (left - 60, top + 940, 1000, 1000), stars, mirror=draws.chance(50), glows=True
        )
        across = max(height, width // 2) * draws.between(26, 38) // 100
        moon = rasterise(SCENERY[draws.choice(("moon", "crescent", "crescent"))])
        colours = {"c": (248, 244, 214), "d": (214, 210, 186)}
        place = (
            left + draws.between(0, max(0, width - across)),
            top + across + height * draws.between(2, 20) // 100,
            across,
            across,
        )
        canvas.paste(moon, place, colours, mirror=draws.chance(50), glows=True)
        return
    halo, disc = SUNS[scene.time]
    across = max(height, width // 2) * draws.between(26, 36) // 100
    down = top + across + height * draws.between(0, 14) // 100
    if scene.time != "day":
        across = across * 13 // 10
        down = bottom + across * draws.between(5, 45) // 100
    place = (left + draws.between(0, max(0, width - across)), down, across, across)
    softened = mixed(halo, sky_colours(scene.weather, scene.time)[-1], 90)
    canvas.paste(rasterise(SCENERY["sun"]), place, {"l": softened, "c": disc}, glows=True)


_RAINBOW: Mapping[str, Colour] = {
    "r": (226, 60, 60),
    "o": (246, 150, 50),
    "Y": (250, 224, 80),
    "n": (90, 190, 90),
    "B": (80, 140, 230),
    "V": (140, 80, 190),
}
