"""Drawings rasterised with whole numbers only: the same pixels on every machine.

A pixel belongs to a shape if its centre does; whoever samples the drawing down smooths it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from world.catalogue import Sketch
from world.sketches import materials, plan

Mask = NDArray[np.bool_]
Points = list[tuple[int, int]]
Pixels = NDArray[np.uint8]

# The longer side of a drawing in pixels, at least: well above the size at which it is painted.
RESOLUTION = 240


class Drawing(NamedTuple):
    """A rasterised drawing.

    width, height  in units
    materials      the material number of each pixel, uint8 [H, W], 0 outside
    used           the materials in it, each with its number
    """

    width: int
    height: int
    materials: NDArray[np.uint8]
    used: tuple[tuple[str, int], ...]


@cache
def rasterise(sketch: Sketch) -> Drawing:
    """The pixels of a drawing; later shapes cover earlier ones.

    Raises:
        DataError: the text is not of the drawing language (see `sketches`).
    """
    width, height, outlined, shapes = plan(sketch)
    scale = max(1, RESOLUTION // max(width, height))
    names = materials()
    pixels = np.zeros((height * scale, width * scale), np.uint8)
    for shape, material, numbers in shapes:
        PAINTERS[shape](pixels, scale, names.index(material), numbers)
    if outlined:
        pixels[_border(pixels != 0, max(1, max(pixels.shape) // 90))] = names.index("outline")
    return Drawing(width, height, pixels, tuple((names[number], int(number)) for number in np.unique(pixels) if number))


@cache
def slanted(sketch: Sketch, lean: int, tilt: int) -> Drawing:
    """A drawing with its rows moved sideways (`lean`) and its columns upwards (`tilt`), in per cent of the distance."""
    drawing = rasterise(sketch)
    if not lean and not tilt:
        return drawing
    rows, columns = drawing.materials.shape
    pad_x, pad_y = abs(lean) * rows // 200 + 1, abs(tilt) * columns // 200 + 1
    source = np.pad(drawing.materials, ((pad_y, pad_y), (pad_x, pad_x)))
    y, x = np.indices(source.shape)
    from_x = x + (2 * y - source.shape[0]) * lean // 200
    from_y = y + (2 * x - source.shape[1]) * tilt // 200
    inside = (from_x >= 0) & (from_x < source.shape[1]) & (from_y >= 0) & (from_y < source.shape[0])
    out = np.where(inside, source[from_y * inside, from_x * inside], 0).astype(np.uint8)
    width = drawing.width * out.shape[1] // columns
    height = drawing.height * out.shape[0] // rows
    return Drawing(width, height, out, drawing.used)


def _centres(low: int, high: int, limit: int) -> NDArray[np.int64]:
    """Pixel centres between two bounds, doubled so that they are whole; bounds are doubled too."""
    return np.arange(max(0, low // 2 - 1), min(limit, high // 2 + 1), dtype=np.int64) * 2 + 1


def _put(pixels: Pixels, ys: NDArray[np.int64], xs: NDArray[np.int64], mask: Mask, material: int) -> None:
    if len(ys) and len(xs):
        pixels[ys[0] // 2 : ys[-1] // 2 + 1, xs[0] // 2 : xs[-1] // 2 + 1][mask] = material


def _window(pixels: Pixels, points: Points, margin: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    xs, ys = zip(*points, strict=True)
    return (
        _centres(min(ys) - margin, max(ys) + margin, pixels.shape[0]),
        _centres(min(xs) - margin, max(xs) + margin, pixels.shape[1]),
    )


def _scaled(numbers: Sequence[int], scale: int) -> Points:
    """Points as doubled pixels, from x and y in turn."""
    return [(2 * scale * x, 2 * scale * y) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]


def _poly(pixels: Pixels, scale: int, material: int, numbers: Sequence[int]) -> None:
    _fill(pixels, _scaled(numbers, scale), material)


def _box(pixels: Pixels, scale: int, material: int, numbers: Sequence[int]) -> None:
    (left, top), (right, bottom) = _scaled(numbers, scale)
    _fill(pixels, [(left, top), (right, top), (right, bottom), (left, bottom)], material)


def _fill(pixels: Pixels, points: Points, material: int) -> None:
    ys, xs = _window(pixels, points)
    y, x = ys[:, None], xs[None, :]
    inside = np.zeros((len(ys), len(xs)), bool)
    for (x1, y1), (x2, y2) in zip(points, points[1:] + points[:1], strict=True):
        if y1 == y2:
            continue
        if y1 > y2:
            x1, y1, x2, y2 = x2, y2, x1, y1
        inside ^= (y >= y1) & (y < y2) & ((x - x1) * (y2 - y1) < (y - y1) * (x2 - x1))
    _put(pixels, ys, xs, inside, material)


def _oval(pixels: Pixels, scale: int, material: int, numbers: Sequence[int]) -> None:
    (cx, cy), (rx, ry) = _scaled(numbers, scale)
    ys, xs = _window(pixels, [(cx - rx, cy - ry), (cx + rx, cy + ry)])
    _put(pixels, ys, xs, _in_oval(ys, xs, cx, cy, rx, ry), material)


def _ring(pixels: Pixels, scale: int, material: int, numbers: Sequence[int]) -> None:
    (cx, cy), (rx, ry) = _scaled(numbers[:4], scale)
    width = 2 * scale * numbers[4]
    ys, xs = _window(pixels, [(cx - rx, cy - ry), (cx + rx, cy + ry)])
    outer, inner = _in_oval(ys, xs, cx, cy, rx, ry), _in_oval(ys, xs, cx, cy, rx - width, ry - width)
    _put(pixels, ys, xs, outer & ~inner, material)


def _in_oval(ys: NDArray[np.int64], xs: NDArray[np.int64], cx: int, cy: int, rx: int, ry: int) -> Mask:
    y, x = ys[:, None], xs[None, :]
    inside: Mask = ((x - cx) * ry) ** 2 + ((y - cy) * rx) ** 2 <= (rx * ry) ** 2
    return inside


def _line(pixels: Pixels, scale: int, material: int, numbers: Sequence[int]) -> None:
    radius, points = scale * numbers[0], _scaled(numbers[1:], scale)
    for (ax, ay), (bx, by) in zip(points, points[1:], strict=False):
        ys, xs = _window(pixels, [(ax, ay), (bx, by)], radius)
        y, x = ys[:, None], xs[None, :]
        length = (bx - ax) ** 2 + (by - ay) ** 2
        along = (x - ax) * (bx - ax) + (y - ay) * (by - ay)
        to_a, to_b = (x - ax) ** 2 + (y - ay) ** 2, (x - bx) ** 2 + (y - by) ** 2
        beside = (along >= 0) & (along <= length) & (to_a * length - along**2 <= radius**2 * length)
        _put(pixels, ys, xs, beside | (to_a <= radius**2) | (to_b <= radius**2), material)


PAINTERS: Mapping[str, Callable[[Pixels, int, int, Sequence[int]], None]] = {
    "poly": _poly,
    "box": _box,
    "oval": _oval,
    "ring": _ring,
    "line": _line,
}


def _border(mask: Mask, width: int) -> Mask:
    """Pixels of the mask less than `width` from its outside (the drawing's own edge is no outside)."""
    padded = np.pad(mask, width, constant_values=True)
    inner = mask.copy()
    rows, columns = mask.shape
    for dy, dx in ((width, 0), (-width, 0), (0, width), (0, -width)):
        inner &= padded[width + dy : width + dy + rows, width + dx : width + dx + columns]
    return mask & ~inner
