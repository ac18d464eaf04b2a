"""Contact sheets drawn: one strip per query, its first hits side by side, and under each the terms of its score.

All lengths are pixels; the origin is the upper left corner. Letters are DejaVu Sans from the file that comes with
matplotlib, and neither the machine's fonts nor the user's settings count: equal strips give equal bytes. It has the
Latin, Greek, Cyrillic and some more scripts; what it lacks is drawn as an empty box.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.explain import SharedTerm
from lexvl_anserini.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.font_manager import FontProperties
    from PIL.Image import Image

log = logging.getLogger(__name__)

DPI = 100
MARGIN, GAP = 24, 14
PICTURE = 256
# The column of the query, left of its hits.
ASKED = 202
# Heights: the line with name and score, one term, one line of the item's own terms, the space between strips.
NAME, TERM, OWN, SPACE = 40, 29, 24, 36
OWN_LINES = 2
# Lines of a text on its card.
CARD_LINES = 7
# Right of the longest bar there is room for its product.
NUMBER = 78
LEGEND = (
    "green: relevant    bars: query weight × impact; all terms' products sum to the score    has: its heaviest terms"
)
NO_HIT = "no hit in the run"

# A sheet of drawings looks the same with so many colours and takes a third of the bytes. Rare colours must count as
# much as common ones when they are chosen (a small purple kite is what was asked for); passes then bring them closer.
COLOURS, PASSES = 256, 5

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
    """One query and its first hits, best first.

    found  what is told of the first relevant hit, also of one that is not shown
    """

    query: Item
    cells: Sequence[Cell]
    found: str = ""


class Layout(NamedTuple):
    """Where things are on a sheet.

    strip  height of a strip with the space below it
    asked  height that a query may take
    """

    width: int
    height: int
    strip: int
    asked: int

    def top(self, number: int) -> int:
        """Upper edge of a strip, counted from 0."""
        return MARGIN + number * self.strip

    @staticmethod
    def left(rank: int) -> int:
        """Left edge of a hit, counted from 1."""
        return MARGIN + ASKED + GAP + (rank - 1) * (PICTURE + GAP)


def layout(strips: Sequence[Strip], terms: int) -> Layout:
    """The sheet of some strips with so many terms under each hit; it is as wide as its widest strip, and its legend."""
    widest = max(len(strip.cells) for strip in strips)
    width = max(Layout.left(widest) + PICTURE + MARGIN, round(text_width(LEGEND, SMALL)) + 2 * MARGIN + 1)
    asked = PICTURE + NAME + terms * TERM + OWN_LINES * OWN
    return Layout(width, MARGIN + len(strips) * (asked + SPACE) + SMALL, asked + SPACE, asked)


def draw_sheet(strips: Sequence[Strip], path: Path, terms: int) -> None:
    """Draws strips one below the other into a PNG.

    Args:
        strips: at least one.
        path: of the file.
        terms: shown under each hit.
    """
    import matplotlib

    drawn = BytesIO()
    with matplotlib.rc_context(matplotlib.rcParamsDefault), _missing_letters_told():
        _figure(strips, terms).savefig(drawn, format="png", dpi=DPI)
    with atomic_write(path) as out:
        out.write(of_few_colours(drawn.getvalue()))


def of_few_colours(png: bytes) -> bytes:
    """A PNG with a palette of its own colours, or of those next to them where there are too many."""
    import PIL.Image

    picture = PIL.Image.open(BytesIO(png)).convert("RGB")
    out = BytesIO()
    few = picture.quantize(COLOURS, PIL.Image.Quantize.MAXCOVERAGE, kmeans=PASSES, dither=PIL.Image.Dither.NONE)
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def _figure(strips: Sequence[Strip], terms: int) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sheet = layout(strips, terms)
    figure = Figure(figsize=(sheet.width / DPI, sheet.height / DPI), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, sheet.width), ylim=(sheet.height, 0))
    axes.set_axis_off()
    axes.set_autoscale_on(False)
    for number, strip in enumerate(strips):
        top = sheet.top(number)
        if number:
            axes.plot((MARGIN, sheet.width - MARGIN), (top - SPACE * 0.6,) * 2, color="#d8dee4", linewidth=1)
        _draw_query(axes, strip, top, sheet.asked)
        largest = max((term.product for cell in strip.cells for term in cell.terms), default=1)
        for rank, cell in enumerate(strip.cells, start=1):
            _draw_cell(axes, cell, rank, sheet.left(rank), top, terms, largest)
        if not strip.cells:
            _write(axes, sheet.left(1), top, NO_HIT, MEDIUM, PALE)
    _write(axes, MARGIN, sheet.height - SMALL - 14, LEGEND, SMALL, PALE)
    return figure


def _draw_query(axes: Axes, strip: Strip, top: int, height: int) -> None:
    query, below = strip.query, top
    if query.picture is not None:
        _draw_picture(axes, query.picture, MARGIN, top, ASKED)
        below += ASKED + 8
    notes = [fitted(note, ASKED, SMALL) for note in (query.name, strip.found) if note]
    room = top + height - below - len(notes) * OWN
    for line in wrapped(query.text, ASKED, LARGE, room // (LARGE + 8)):
        _write(axes, MARGIN, below, line, LARGE)
        below += LARGE + 8
    for note in notes:
        _write(axes, MARGIN, below + 4, note, SMALL, PALE)
        below += OWN


def _draw_cell(axes: Axes, cell: Cell, rank: int, left: int, top: int, terms: int, largest: int) -> None:
    from matplotlib.patches import Rectangle

    if cell.item.picture is not None:
        _draw_picture(axes, cell.item.picture, left, top, PICTURE)
    else:
        axes.add_patch(Rectangle((left, top), PICTURE, PICTURE, facecolor=CARD, edgecolor="none"))
        for number, line in enumerate(wrapped(cell.item.text, PICTURE - 32, LARGE, CARD_LINES)):
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
        length = (PICTURE - NUMBER) * term.product / largest
        axes.add_patch(Rectangle((left, below), length, TERM - 5, facecolor=BAR, linewidth=0))
        product = f"{term.product:,}"
        room = PICTURE - text_width(product, MEDIUM) - 24
        _write(axes, left + 6, below + 3, fitted(term.term, room, MEDIUM), MEDIUM)
        _write(axes, left + PICTURE - 4, below + 3, product, MEDIUM, PALE, right=True)
        below += TERM
    below = top + PICTURE + NAME + terms * TERM + 4
    has = "has " + ", ".join(cell.own) if cell.own else "has no terms"
    for line in wrapped(has, PICTURE, SMALL, OWN_LINES):
        _write(axes, left, below, line, SMALL, PALE)
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
        color=colour,
        fontproperties=_letters(size * 72 / DPI),
        ha="right" if right else "left",
        va="top",
        parse_math=False,
    )


@cache
def _letters(size: float) -> FontProperties:
    """The font's file that matplotlib brings along: the same letters on every machine."""
    import matplotlib
    from matplotlib.font_manager import FontProperties

    return FontProperties(fname=Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size=size)


@contextmanager
def _missing_letters_told() -> Iterator[None]:
    """Says once, instead of once a letter, that the font lacks some."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    lacking = [one for one in caught if "missing from" in str(one.message)]
    for other in caught:
        if other not in lacking:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    if lacking:
        log.warning("%d letters are not in DejaVu Sans; they are drawn as empty boxes", len(lacking))


def text_width(text: str, size: int) -> float:
    """How wide a line of text is."""
    from matplotlib.textpath import text_to_path

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters that the font lacks are told when they are drawn
        return float(text_to_path.get_text_width_height_descent(text, _letters(size), ismath=False)[0])


def wrapped(text: str, width: float, size: int, most: int) -> list[str]:
    """At most so many lines of a text, so wide each; an ellipsis ends a text that has more.

    A word that is wider than a line (or a script without spaces) goes on in the next.
    """
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if text_width(longer, size) <= width:
            lines[len(lines) - 1 :] = [longer]
            continue
        pieces = _pieces(word, width, size)
        lines += pieces
        if len(lines) > most:
            break
    if len(lines) > most:
        return [*lines[: most - 1], fitted(lines[most - 1] + "…", width, size)] if most > 0 else []
    return lines


def _pieces(word: str, width: float, size: int) -> list[str]:
    """A word in pieces that are so wide at most, of one letter at least."""
    pieces = [""]
    for letter in word:
        if pieces[-1] and text_width(pieces[-1] + letter, size) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces


def fitted(text: str, width: float, size: int) -> str:
    """The text, or its beginning and an ellipsis where it is wider."""
    kept = text
    while len(kept) > 1 and text_width(kept, size) > width:
        kept = kept.removesuffix("…")[:-1].rstrip(" ,") + "…"
    return kept
