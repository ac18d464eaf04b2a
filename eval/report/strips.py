"""Draws contact sheets: one strip per query, its first hits side by side, and under each hit the terms of its score.

All lengths are pixels; the origin is the upper left corner. The font is DejaVu Sans from the file that comes with
matplotlib; the machine's fonts and the user's settings have no effect: equal strips give equal bytes. The font has the
Latin, Greek, Cyrillic and some more scripts; a character that it lacks is drawn as an empty box.
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

from lexvl_anserini.ground.files import atomic_write
from lexvl_anserini.searching.shared_terms import SharedTerm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.font_manager import FontProperties
    from PIL.Image import Image

log = logging.getLogger(__name__)

DPI = 100
MARGIN, GAP = 24, 14
IMAGE = 256
# Width of the query's column, left of its hits.
QUERY = 202
# Heights: the line with name and score, one term, one line of the item's own terms, the space between strips.
NAME, TERM, OWN, SPACE = 40, 29, 24, 36
OWN_LINES = 2
# Lines of a text on its card.
CARD_LINES = 7
# Width that is reserved for the product, right of the longest bar.
NUMBER = 78
JUDGED = "green: relevant    "
HAS = "has: its heaviest terms"
BARS = "bars: query weight × impact; all terms' products sum to the score    "
LEGEND = BARS + HAS
# With notes, in place of the items' own terms.
NOTED = "framed: matched words; below, the first of them"
# With maps, after the legend.
MAPPED = "    in colour: where the terms are"
NO_HIT = "no hit in the run"

# A sheet of drawings looks the same with this number of colours and takes a third of the bytes. The choice must give
# rare colours the same weight as common ones (a small purple kite may be the answer); passes then improve the choice.
COLOURS, PASSES = 256, 5
# A sheet with more colours has no drawings: a palette would turn its shades into steps. Drawings have some 10,000.
MOST_COLOURS = 1 << 15

# Font sizes.
LARGE, MEDIUM, SMALL = 24, 19, 17
INK, PALE, FRAME, BAR, CARD = "#1f2328", "#6e7781", "#1a7f37", "#cfe3fb", "#f3f4f6"


class Item(NamedTuple):
    """A query or a hit: an image, or a text if there is none."""

    name: str
    image: Image | None
    text: str


class Cell(NamedTuple):
    """One hit: its terms shared with the query, and its own terms or, in their place, a note."""

    item: Item
    score: float
    relevant: bool
    terms: Sequence[SharedTerm]
    own: Sequence[str]
    note: str = ""


class Strip(NamedTuple):
    """One query and its first hits; `rank_note` tells the rank of the first relevant hit, even if it is not shown."""

    query: Item
    cells: Sequence[Cell]
    rank_note: str = ""


class SheetLayout(NamedTuple):
    """The sizes and positions on a sheet: the height of a strip with the space below it, and of its content."""

    width: int
    height: int
    strip: int
    content: int

    def top(self, number: int) -> int:
        """Upper edge of a strip, counted from 0."""
        return MARGIN + number * self.strip

    @staticmethod
    def left(rank: int) -> int:
        """Left edge of a hit, counted from 1."""
        return MARGIN + QUERY + GAP + (rank - 1) * (IMAGE + GAP)


def compute_layout(strips: Sequence[Strip], terms: int, legend: str = LEGEND) -> SheetLayout:
    """The layout of strips with `terms` terms under each hit; at least as wide as the legend."""
    widest = max(len(strip.cells) for strip in strips)
    width = max(SheetLayout.left(widest) + IMAGE + MARGIN, round(measure_text(legend, SMALL)) + 2 * MARGIN + 1)
    content = IMAGE + NAME + terms * TERM + OWN_LINES * OWN
    return SheetLayout(width, MARGIN + len(strips) * (content + SPACE) + SMALL, content + SPACE, content)


def write_legend(strips: Sequence[Strip], maps: bool) -> str:
    """The last line of a sheet, which says what is drawn."""
    judged = any(strip.rank_note or any(cell.relevant for cell in strip.cells) for strip in strips)
    bars = any(cell.terms for strip in strips for cell in strip.cells)
    last = NOTED if any(cell.note for strip in strips for cell in strip.cells) else HAS
    return f"{JUDGED if judged else ''}{BARS if bars else ''}{last}{MAPPED if maps else ''}"


def draw_sheet(strips: Sequence[Strip], path: Path, terms: int, maps: bool = False) -> None:
    """Draws strips one below the other into a PNG file, which is not written again if it has the same bytes."""
    import matplotlib

    drawn = BytesIO()
    with matplotlib.rc_context(matplotlib.rcParamsDefault), _warn_once():
        _draw_figure(strips, terms, write_legend(strips, maps)).savefig(drawn, format="png", dpi=DPI)
    content = convert_colours(drawn.getvalue())
    if not (path.is_file() and path.read_bytes() == content):
        with atomic_write(path) as out:
            out.write(content)


def convert_colours(png: bytes) -> bytes:
    """A PNG with a palette of its own or the nearest colours; an image of far too many keeps them all."""
    import PIL.Image

    image = PIL.Image.open(BytesIO(png)).convert("RGB")
    if image.getcolors(MOST_COLOURS):
        image = image.quantize(COLOURS, PIL.Image.Quantize.MAXCOVERAGE, kmeans=PASSES, dither=PIL.Image.Dither.NONE)
    out = BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def _draw_figure(strips: Sequence[Strip], terms: int, legend: str) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sheet = compute_layout(strips, terms, legend)
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
        _draw_query(axes, strip, top, sheet.content)
        largest = max((term.product for cell in strip.cells for term in cell.terms), default=1)
        for rank, cell in enumerate(strip.cells, start=1):
            _draw_cell(axes, cell, rank, sheet.left(rank), top, terms, largest)
        if not strip.cells:
            _write(axes, sheet.left(1), top, NO_HIT, MEDIUM, PALE)
    _write(axes, MARGIN, sheet.height - SMALL - 14, legend, SMALL, PALE)
    return figure


def _draw_query(axes: Axes, strip: Strip, top: int, height: int) -> None:
    query, below = strip.query, top
    if query.image is not None:
        _draw_image(axes, query.image, MARGIN, top, QUERY)
        below += QUERY + 8
    notes = [fit_text(note, QUERY, SMALL) for note in (query.name, strip.rank_note) if note]
    room = top + height - below - len(notes) * OWN
    for line in wrap_text(query.text, QUERY, LARGE, room // (LARGE + 8)):
        _write(axes, MARGIN, below, line, LARGE)
        below += LARGE + 8
    for note in notes:
        _write(axes, MARGIN, below + 4, note, SMALL, PALE)
        below += OWN


def _draw_cell(axes: Axes, cell: Cell, rank: int, left: int, top: int, terms: int, largest: float) -> None:
    from matplotlib.patches import Rectangle

    if cell.item.image is not None:
        _draw_image(axes, cell.item.image, left, top, IMAGE)
    else:
        axes.add_patch(Rectangle((left, top), IMAGE, IMAGE, facecolor=CARD, edgecolor="none"))
        for number, line in enumerate(wrap_text(cell.item.text, IMAGE - 32, LARGE, CARD_LINES)):
            _write(axes, left + 16, top + 16 + number * (LARGE + 8), line, LARGE)
    if cell.relevant:
        inset, side = 3, IMAGE - 6
        axes.add_patch(Rectangle((left + inset, top + inset), side, side, fill=False, edgecolor=FRAME, linewidth=5))
    below = top + IMAGE + 7
    score = f"{cell.score:,.0f}" if cell.score == int(cell.score) else f"{cell.score:.4g}"
    _write(axes, left + IMAGE, below, score, SMALL, PALE, right=True)
    room = IMAGE - measure_text(score, SMALL) - 12
    name = f"{rank}  {cell.item.name}"
    _write(axes, left, below, fit_text(name, room, SMALL), SMALL, FRAME if cell.relevant else INK)
    below = top + IMAGE + NAME
    for term in cell.terms[:terms]:
        length = (IMAGE - NUMBER) * term.product / largest
        axes.add_patch(Rectangle((left, below), length, TERM - 5, facecolor=BAR, linewidth=0))
        product = f"{term.product:,}"
        room = IMAGE - measure_text(product, MEDIUM) - 24
        _write(axes, left + 6, below + 3, fit_text(term.term, room, MEDIUM), MEDIUM)
        _write(axes, left + IMAGE - 4, below + 3, product, MEDIUM, PALE, right=True)
        below += TERM
    below = top + IMAGE + NAME + terms * TERM + 4
    has = "has " + ", ".join(cell.own) if cell.own else "has no terms"
    for line in wrap_text(cell.note or has, IMAGE, SMALL, OWN_LINES):
        _write(axes, left, below, line, SMALL, PALE)
        below += OWN


def _draw_image(axes: Axes, image: Image, left: int, top: int, side: int) -> None:
    """Draws an image as large as fits into a square, in its middle; a small image keeps its pixels."""
    import PIL.Image

    scale = side / max(image.size)
    width, height = (max(1, round(length * scale)) for length in image.size)
    how = PIL.Image.Resampling.NEAREST if scale > 1 else PIL.Image.Resampling.LANCZOS
    scaled = image.convert("RGB").resize((width, height), how)
    left, top = left + (side - width) // 2, top + (side - height) // 2
    axes.imshow(scaled, extent=(left, left + width, top + height, top), aspect="auto", interpolation="nearest")


def _write(axes: Axes, x: float, y: float, text: str, size: int, colour: str = INK, right: bool = False) -> None:
    """Draws one line of text, its upper edge at `y`."""
    style: dict[str, Any] = {"color": colour, "fontproperties": _load_letters(size * 72 / DPI), "parse_math": False}
    axes.text(x, y, text, ha="right" if right else "left", va="top", **style)


@cache
def _load_letters(size: float) -> FontProperties:
    """The font from matplotlib's own file: the same letters on every machine."""
    import matplotlib
    from matplotlib.font_manager import FontProperties

    return FontProperties(fname=Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size=size)


@contextmanager
def _warn_once() -> Iterator[None]:
    """Logs once, instead of once per character, that the font lacks some."""
    lacking = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if "missing from" in str(warning.message):
            lacking += 1
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if lacking:
        log.warning("%d letters are not in DejaVu Sans; they are drawn as empty boxes", lacking)


def measure_text(text: str, size: int) -> float:
    """The width of a line of text."""
    from matplotlib.textpath import text_to_path

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # characters that the font lacks are reported when they are drawn
        return float(text_to_path.get_text_width_height_descent(text, _load_letters(size), ismath=False)[0])


def wrap_text(text: str, width: float, size: int, most: int) -> list[str]:
    """At most `most` lines of a text, each at most `width` wide; an ellipsis ends a text that has more.

    A word that is wider than a line (or a script without spaces) continues in the next.
    """
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if measure_text(longer, size) <= width:
            lines[len(lines) - 1 :] = [longer]
            continue
        lines += _split_word(word, width, size)
        if len(lines) > most:
            break
    if len(lines) > most:
        return [*lines[: most - 1], fit_text(lines[most - 1] + "…", width, size)] if most > 0 else []
    return lines


def _split_word(word: str, width: float, size: int) -> list[str]:
    """A word in pieces that are at most `width` wide, each of at least one letter."""
    pieces = [""]
    for letter in word:
        if pieces[-1] and measure_text(pieces[-1] + letter, size) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces


def fit_text(text: str, width: float, size: int) -> str:
    """The text, or its beginning and an ellipsis if it is wider than `width`."""
    shown = text
    while len(shown) > 1 and measure_text(shown, size) > width:
        shown = shown.removesuffix("…")[:-1].rstrip(" ,") + "…"
    return shown
