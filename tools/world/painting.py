"""A canvas of palette numbers, three samples per pixel each way: drawings are pasted, light and fog come last.

Everything is whole numbers, so that an image has the same pixels on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from world.catalogue import Colour, world
from world.draws import Draws
from world.shapes import Drawing

# In thousandths: left, bottom, width, height of what is painted; left, top, right, bottom of where.
Box = tuple[int, int, int, int]
Frame = tuple[int, int, int, int]

# Samples per pixel and side; their mean is the pixel.
SAMPLES = 3
# Coordinates on a canvas are thousandths of its side.
UNITS = 1000
# The unit of fog and light is a 256th.
FULL = 256
# How far colours may stray from one image to the next, per channel.
STRAY = 12


class Light(NamedTuple):
    """What the air does to colours: `tint` multiplies (256ths per channel), `fog` is what distance fades into."""

    tint: Colour
    fog: Colour
    lamps: bool


class Canvas:
    """A square image that is being painted.

    size   of the finished image in pixels
    index  palette numbers, uint8 [3 size, 3 size]
    clip   left, top, right, bottom in samples: nothing is painted outside
    """

    def __init__(self, size: int, lamps: bool = False):
        self.size = size
        self.side = size * SAMPLES
        self.index = np.zeros((self.side, self.side), np.uint8)
        self.clip = (0, 0, self.side, self.side)
        self._lamps = lamps
        self._palette: dict[tuple[Colour, int, bool], int] = {}

    def colour(self, rgb: Colour, fog: int = 0, glows: bool = False) -> int:
        """The palette number of a colour that so much fog lies before; what glows is not darkened."""
        return self._palette.setdefault((rgb, fog, glows), len(self._palette))

    def samples(self, units: int) -> int:
        """Thousandths of the side in samples."""
        return units * self.side // UNITS

    def clip_to(self, left: int, top: int, right: int, bottom: int) -> None:
        """Paints only inside a frame from now on."""
        self.clip = (self.samples(left), self.samples(top), self.samples(right), self.samples(bottom))

    @contextmanager
    def clipped(self, left: int, top: int, right: int, bottom: int) -> Iterator[None]:
        """Paints only inside a frame until the block ends."""
        before = self.clip
        self.clip_to(left, top, right, bottom)
        yield
        self.clip = before

    def bands(self, top: int, bottom: int, numbers: Sequence[int]) -> None:
        """Fills from `top` to `bottom` (thousandths) with bands of palette numbers, within the clip."""
        first, last = self.samples(top), self.samples(bottom)
        left, clip_top, right, clip_bottom = self.clip
        start, stop = max(first, clip_top), min(last, clip_bottom)
        if start < stop:
            rows = np.arange(start - first, stop - first)
            band = np.frombuffer(bytes(numbers), np.uint8).take(rows * len(numbers) // (last - first))
            self.index[start:stop, left:right] = band[:, None]

    def paste(
        self,
        drawing: Drawing,
        box: Box,
        colours: Mapping[str, Colour],
        fog: int = 0,
        mirror: bool = False,
        glows: bool = False,
    ) -> None:
        """Paints a drawing into a box.

        Materials that are not in `colours` have their own colour (see colours.yaml).
        """
        side = self.side
        left, bottom = box[0] * side // UNITS, box[1] * side // UNITS
        width, height = max(1, box[2] * side // UNITS), max(1, box[3] * side // UNITS)
        top = bottom - height
        x0, x1 = max(left, self.clip[0]), min(left + width, self.clip[2])
        y0, y1 = max(top, self.clip[1]), min(bottom, self.clip[3])
        if x0 >= x1 or y0 >= y1:
            return
        source_height, source_width = drawing.materials.shape
        rows = _nearest(height, source_height)[y0 - top : y1 - top]
        columns = _nearest(width, source_width)[x0 - left : x1 - left]
        if mirror:
            columns = source_width - 1 - columns
        found = drawing.materials.take(rows, axis=0, mode="clip").take(columns, axis=1, mode="clip")
        table = self._numbers(drawing, colours, fog, glows)
        change = np.frombuffer(bytearray(found.tobytes().translate(table)), np.uint8).reshape(found.shape)
        # Where something is found, `below + (painted - below)` modulo 256: ten times faster than a masked copy.
        below = self.index[y0:y1, x0:x1]
        change -= below
        change *= (found != 0).view(np.uint8)
        below += change

    def line(self, start: tuple[int, int], end: tuple[int, int], number: int) -> None:
        """A hair line between two points (thousandths)."""
        (x0, y0), (x1, y1) = ((self.samples(x), self.samples(y)) for x, y in (start, end))
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        along = np.arange(steps + 1)
        x, y = x0 + (x1 - x0) * along // steps, y0 + (y1 - y0) * along // steps
        inside = (x >= 0) & (x < self.side) & (y >= 0) & (y < self.side)
        self.index[y[inside], x[inside]] = number

    def finish(self, light: Light) -> NDArray[np.uint8]:
        """The image, uint8 [size, size, 3]."""
        assert len(self._palette) <= 256, "more than 256 colours in one image"
        colours = np.array([rgb for rgb, _, _ in self._palette], np.int64)
        fog = np.array([[fog] for _, fog, _ in self._palette], np.int64)
        glows = np.array([glows for _, _, glows in self._palette])[:, None]
        lit: NDArray[np.int64] = np.where(glows, colours, colours * np.array(light.tint, np.int64) // FULL)
        seen: NDArray[np.int64] = (lit * (FULL - fog) + np.array(light.fog, np.int64) * fog) // FULL
        # Three channels in one number, 20 bits apart: nine samples are summed without touching each other.
        packed = (seen[:, 0] | seen[:, 1] << 20 | seen[:, 2] << 40).take(self.index, mode="clip")
        total = packed[0::SAMPLES] + packed[1::SAMPLES] + packed[2::SAMPLES]
        total = total[:, 0::SAMPLES] + total[:, 1::SAMPLES] + total[:, 2::SAMPLES]
        image = np.empty((self.size, self.size, 3), np.uint8)
        for channel in range(3):
            image[:, :, channel] = ((total >> (20 * channel)) & 0xFFFFF) // SAMPLES**2
        return image

    def _numbers(self, drawing: Drawing, colours: Mapping[str, Colour], fog: int, glows: bool) -> bytearray:
        """Material number -> palette number."""
        numbers = bytearray(256)
        own = world().colours
        for material, position in drawing.used:
            lamp = material == "window" and self._lamps
            rgb = own.lit if lamp else colours.get(material) or own.materials[material]
            numbers[position] = self.colour(rgb, fog, glows or lamp)
        return numbers


@cache
def _nearest(length: int, source: int) -> NDArray[np.int64]:
    """For each of `length` samples the nearest of `source` pixels."""
    return (2 * np.arange(length) + 1) * source // (2 * length)


# --- colours --------------------------------------------------------------------------------------------------------


def mixed(one: Colour, other: Colour, share: int) -> Colour:
    """Two colours with so many 256ths of the other."""
    (r, g, b), (red, green, blue), rest = one, other, FULL - share
    return (r * rest + red * share) // FULL, (g * rest + green * share) // FULL, (b * rest + blue * share) // FULL


def dimmed(colour: Colour, share: int) -> Colour:
    """A colour at so many 256ths of its brightness."""
    red, green, blue = colour
    return red * share // FULL, green * share // FULL, blue * share // FULL


def shades_of(rgb: Colour, colour: str | None = None) -> dict[str, Colour]:
    """The colours of materials of a thing of one colour: itself, darker, lighter, its outline, and its patches."""
    edge = dimmed(rgb, 120)
    patch = (244, 242, 236)
    if colour == "black":
        edge = (92, 92, 100)
    if colour in ("white", None):
        edge, patch = (120, 124, 132), (96, 70, 52)
    light = mixed(rgb, (255, 255, 255), 70)
    return {"main": rgb, "dark": dimmed(rgb, 200), "light": light, "outline": edge, "patch": patch}


def stray(rgb: Colour, draws: Draws, most: int = STRAY) -> Colour:
    """A colour somewhat off."""
    red, green, blue = (max(0, min(255, channel + draws.between(-most, most))) for channel in rgb)
    return red, green, blue
