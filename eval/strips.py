"""Contact sheets drawn: one strip per query, its first hits side by side, and under each the terms of its score.

All lengths are pixels; the origin is the upper left corner. The only font is the one that matplotlib brings along.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lexvl_anserini.explain import SharedTerm
from lexvl_anserini.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL.Image import Image

DPI = 100
MARGIN, GAP = 24, 14
PICTURE = 256
# The column of the query, left of its hits.
ASKED = 202
# Heights: the line with name and score, one term, one line of the item's own terms, the space between strips.
NAME, TERM, OWN, SPACE = 40, 29, 24, 36
OWN_LINES = 2
LEGEND = (
    "green: relevant    bars: query weight × impact; all terms' products sum to the score    has: its heaviest terms"
)

# Sizes of letters.
LARGE, MEDIUM, SMALL = 24, 19, 17
INK, PALE, FRAME, BAR, CARD = "#1f2328", "#6e7781", "#1a7f37", "#cfe3fb", "#f3f4f6"


class Item(NamedTuple):
    """What is asked or found: a picture, or a text where there is none."""

    name: str
    picture: Image | None
    text: str


class Cell(NamedTuple):
    """One hit.

    right  whether it is relevant
    terms  what it shares with the query, largest product first
    own    its own terms, heaviest first
    """

    item: Item
    score: float
    right: bool
    terms: Sequence[SharedTerm]
    own: Sequence[str]


class Strip(NamedTuple):
    """One query and its first hits, best first."""

    query: Item
    cells: Sequence[Cell]


def draw_sheet(strips: Sequence[Strip], path: Path, terms: int) -> None:
    """Draws strips one below the other into a PNG.

    Args:
        strips: at least one.
        path: of the file.
        terms: shown under each hit.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    widest = max(len(strip.cells) for strip in strips)
    width = 2 * MARGIN + ASKED + widest * (PICTURE + GAP)
    tall = PICTURE + NAME + terms * TERM + OWN_LINES * OWN + SPACE
    height = MARGIN + len(strips) * tall + SMALL
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.set_autoscale_on(False)
    for number, strip in enumerate(strips):
        top = MARGIN + number * tall
        if number:
            axes.plot((MARGIN, width - MARGIN), (top - SPACE * 0.6,) * 2, color="#d8dee4", linewidth=1)
        _draw_query(axes, strip.query, top)
        largest = max((term.product for cell in strip.cells for term in cell.terms), default=1)
        for rank, cell in enumerate(strip.cells, start=1):
            _draw_cell(axes, cell, rank, MARGIN + ASKED + GAP + (rank - 1) * (PICTURE + GAP), top, terms, largest)
    _write(axes, MARGIN, height - SMALL - 14, fitted(LEGEND, width - 2 * MARGIN, SMALL), SMALL, PALE)
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    with atomic_write(path) as out:
        out.write(drawn.getvalue())


def _draw_query(axes: Axes, query: Item, top: int) -> None:
    below = top
    if query.picture is not None:
        _draw_picture(axes, query.picture, MARGIN, top, ASKED)
        below += ASKED + 8
    for line in wrapped(query.text, ASKED, LARGE):
        _write(axes, MARGIN, below, line, LARGE)
        below += LARGE + 8
    _write(axes, MARGIN, below + 4, fitted(query.name, ASKED, SMALL), SMALL, PALE)


def _draw_cell(axes: Axes, cell: Cell, rank: int, left: int, top: int, terms: int, largest: int) -> None:
    from matplotlib.patches import Rectangle

    if cell.item.picture is not None:
        _draw_picture(axes, cell.item.picture, left, top, PICTURE)
    else:
        axes.add_patch(Rectangle((left, top), PICTURE, PICTURE, facecolor=CARD, edgecolor="none"))
        for number, line in enumerate(wrapped(cell.item.text, PICTURE - 32, LARGE)[:7]):
            _write(axes, left + 16, top + 16 + number * (LARGE + 8), line, LARGE)
    if cell.right:
        inset = 3
        side = PICTURE - 2 * inset
        axes.add_patch(Rectangle((left + inset, top + inset), side, side, fill=False, edgecolor=FRAME, linewidth=5))
    below = top + PICTURE + 7
    score = f"{cell.score:,.0f}" if cell.score == int(cell.score) else f"{cell.score:.4g}"
    _write(axes, left + PICTURE, below, score, SMALL, PALE, right=True)
    room = PICTURE - text_width(score, SMALL) - 12
    name = f"{rank}  {cell.item.name}"
    _write(axes, left, below, fitted(name, room, SMALL), SMALL, FRAME if cell.right else INK)
    below = top + PICTURE + NAME
    for term in cell.terms[:terms]:
        axes.add_patch(Rectangle((left, below), PICTURE * term.product / largest, TERM - 5, facecolor=BAR, linewidth=0))
        product = f"{term.product:,}"
        room = PICTURE - text_width(product, MEDIUM) - 24
        _write(axes, left + 6, below + 3, fitted(term.term, room, MEDIUM), MEDIUM)
        _write(axes, left + PICTURE - 4, below + 3, product, MEDIUM, PALE, right=True)
        below += TERM
    below = top + PICTURE + NAME + terms * TERM + 4
    for line in wrapped("has " + ", ".join(cell.own), PICTURE, SMALL)[:OWN_LINES]:
        _write(axes, left, below, line.removesuffix(","), SMALL, PALE)
        below += OWN


def _draw_picture(axes: Axes, picture: Image, left: int, top: int, side: int) -> None:
    """A picture squeezed into a square; small ones keep their pixels."""
    import PIL.Image

    small = max(picture.size) < side
    how = PIL.Image.Resampling.NEAREST if small else PIL.Image.Resampling.LANCZOS
    scaled = picture.convert("RGB").resize((side, side), how)
    axes.imshow(scaled, extent=(left, left + side, top + side, top), aspect="auto", interpolation="nearest")


def _write(axes: Axes, x: float, y: float, text: str, size: int, colour: str = INK, right: bool = False) -> None:
    """One line of text, its upper edge at `y`."""
    axes.text(
        x,
        y,
        text,
        fontsize=size * 72 / DPI,
        color=colour,
        family="DejaVu Sans",
        ha="right" if right else "left",
        va="top",
        parse_math=False,
    )


def text_width(text: str, size: int) -> float:
    """How wide a line of text is."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    properties = FontProperties("DejaVu Sans", size=size)
    return float(text_to_path.get_text_width_height_descent(text, properties, ismath=False)[0])


def wrapped(text: str, width: float, size: int) -> list[str]:
    """The lines of a text that may be so wide; a word that is wider alone is cut."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(fitted(word, width, size))
    return lines


def fitted(text: str, width: float, size: int) -> str:
    """The text, or its beginning and an ellipsis where it is wider."""
    kept = text
    while len(kept) > 1 and text_width(kept, size) > width:
        kept = kept.removesuffix("…")[:-1] + "…"
    return kept
