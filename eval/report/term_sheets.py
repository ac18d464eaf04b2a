"""Terms on paper: boxes, histograms and clouds (VDR, appendix D, figure 3), and sheets by which people judge terms.

Terms of documents are judged alone or beside a caption of the same picture (VDR, appendix H). There, a first group sees
no picture: it marks which of a picture's 5 heaviest terms it understands, and takes up to 5 words from a caption that
BLIP writes. A second group sees the picture and both sets of words, and says whether each set captures the key
concepts, and which set describes the picture better. Which set comes first is drawn for each picture, and only the
first sheet says whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.files import atomic_write

if TYPE_CHECKING:
    from ..analyses.terms import DocumentTerm, TermProfile

# Words of a set.
JUDGED = 5


class JudgedTerm(NamedTuple):
    """One of the first terms of a document, and whether a person understands it: empty until then."""

    document: str
    rank: int
    term: str
    weight: float
    understandable: str = ""


class JudgedWord(NamedTuple):
    """One word of a set: A or B, the model's terms or words of a caption, which have no weight."""

    document: str
    set: str
    side: str
    rank: int
    term: str
    weight: float
    understandable: str = ""


class PreferenceQuestion(NamedTuple):
    """The questions about one picture and its two sets of words; answers are empty until a person gives them."""

    document: str
    a: str
    b: str
    a_captures_the_key_concepts: str = ""
    b_captures_the_key_concepts: str = ""
    better: str = ""


def list_judged_terms(documents: Iterable[tuple[str, Sequence[DocumentTerm]]]) -> list[JudgedTerm]:
    """The first terms of some documents, for people to judge."""
    return [JudgedTerm(*term) for _, terms in documents for term in terms]


def list_judged_words(
    documents: Iterable[tuple[str, Sequence[DocumentTerm]]], captions: Mapping[str, Sequence[str]]
) -> tuple[list[JudgedWord], list[PreferenceQuestion]]:
    """The first terms of some documents beside the first words of their captions, and the questions of preference."""
    words: list[JudgedWord] = []
    preferences = []
    for document, terms in documents:
        if document not in captions:
            raise DataError(f"no caption for document {document!r}; the list has {len(captions):,}")
        of_caption = list(dict.fromkeys(captions[document]))[:JUDGED]
        if not of_caption:
            raise DataError(f"the caption of document {document!r} has no word but function words")
        if not terms:
            raise DataError(f"document {document!r} has no term; nothing can be preferred to its caption")
        sets = {"model": [(term.term, term.weight) for term in terms], "caption": [(w, np.nan) for w in of_caption]}
        order = ("model", "caption") if sha256(document.encode()).digest()[0] % 2 else ("caption", "model")
        for name, side in zip("AB", order, strict=True):
            words += [JudgedWord(document, name, side, rank, *word) for rank, word in enumerate(sets[side], start=1)]
        preferences.append(PreferenceQuestion(document, *(", ".join(word for word, _ in sets[side]) for side in order)))
    return words, preferences


DPI, BINS = 90, 40

# Inches: of a panel, of a box, and of the part of the boxes' panel that has none.
HEIGHT, WIDTH, BOX, MARGIN = 4.5, 7.0, 1.2, 1.4


def draw_terms(profiles: Sequence[TermProfile], path: Path) -> None:
    """Draws a PNG: one box per corpus, of the means and of the maxima of its first terms, and one histogram per corpus.

    Boxes reach from the first to the third quartile, whiskers at most 1.5 times as far; circles are the terms beyond.
    """
    boxes = MARGIN + BOX * len(profiles)
    with _open_figure(path, (2 * boxes + WIDTH, HEIGHT)) as figure:
        means, maxima, active = figure.subplots(1, 3, width_ratios=(boxes, boxes, WIDTH))
        names = [profile.shards for profile in profiles]
        _draw_boxes(means, names, [[term.mean for term in profile.first] for profile in profiles], "mean weight")
        _draw_boxes(maxima, names, [[term.maximum for term in profile.first] for profile in profiles], "largest weight")
        _draw_histograms(active, profiles)


@contextmanager
def _open_figure(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """A figure of that size in inches, which is written to the file; the user's settings have no effect."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn, kind = BytesIO(), path.suffix.lower().removeprefix(".")
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "svg.hashsalt": "lexvl"}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(drawn, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    with atomic_write(path) as out:
        out.write(drawn.getvalue())


def _draw_boxes(axes: Any, names: Sequence[str], values: Sequence[Sequence[float]], what: str) -> None:
    axes.boxplot(values, tick_labels=names, widths=0.5)
    axes.set(title=f"{what} of the first terms", ylabel=what, ylim=(0, None))
    axes.tick_params(axis="x", labelrotation=20)


def _draw_histograms(axes: Any, profiles: Sequence[TermProfile]) -> None:
    most = max(max(profile.active) for profile in profiles)
    for profile in profiles:
        axes.hist(
            list(profile.active),
            bins=min(BINS, most + 1),
            range=(-0.5, most + 0.5),
            weights=[count / profile.documents for count in profile.active.values()],
            histtype="step",
            linewidth=1.5,
            label=profile.shards,
        )
    axes.set(title="terms per document", xlabel="terms", ylabel="share of documents")
    axes.legend(fontsize="small")


# Points: a panel of a cloud, the size of its largest word and of its smallest one, and the space between two.
PANEL, LARGEST, SMALLEST, GAP = (360.0, 240.0), 54.0, 5.0, 2.0
# The part of a panel that the boxes of its words have together, at most.
FILLED = 0.6
PANELS_IN_ROW, POINTS_PER_INCH = 3, 72
# How far a turn of the spiral lies from the turn before, in points, and its steps per turn.
TURN, STEPS = 6.0, 40


class PlacedWord(NamedTuple):
    """A word of a cloud: its lower left corner and its size in points, and its rank from 0."""

    word: str
    x: float
    y: float
    size: float
    rank: int


def place_words(weights: Mapping[str, float]) -> list[PlacedWord]:
    """Places words without overlap, the heaviest in the middle, with sizes in proportion to their weights.

    By weight, then alphabetically, each word takes the first free place of a spiral. Words without weight, too small to
    read, or without a place are left out.
    """
    middle, edge = np.array(PANEL) / 2, np.array(PANEL)
    order = sorted((item for item in weights.items() if item[1] > 0), key=lambda item: (-item[1], item[0]))
    measured = [measure_word(word, LARGEST * weight / order[0][1]) for word, weight in order]
    area = sum(float(extent.prod()) for _, extent in measured)
    fitting = min(1.0, (FILLED * float(edge.prod()) / area) ** 0.5) if area else 1.0
    boxes, placed = np.empty((0, 4)), []
    for rank, ((word, weight), (corner, extent)) in enumerate(zip(order, measured, strict=True)):
        shrink = min(fitting, float((edge[0] - GAP) / extent[0])) if extent[0] else fitting
        size, corner, extent = shrink * LARGEST * weight / order[0][1], shrink * corner, shrink * extent
        if size < SMALLEST:
            continue
        for point in middle + draw_spiral():
            low, high = point - (extent + GAP) / 2, point + (extent + GAP) / 2
            apart = (boxes[:, :2] >= high).any(axis=1) | (boxes[:, 2:] <= low).any(axis=1)
            if (low >= 0).all() and (high <= edge).all() and apart.all():
                boxes = np.vstack([boxes, np.concatenate([low, high])])
                x, y = (low + GAP / 2 - corner).tolist()
                placed.append(PlacedWord(word, x, y, size, rank))
                break
    return placed


def draw_outline(word: str, size: float) -> Any:
    """The outline of a word, as a path of matplotlib."""
    from matplotlib.textpath import TextPath

    return TextPath((0, 0), word.replace("$", r"\$"), size=size)


def measure_word(word: str, size: float) -> tuple[np.ndarray, np.ndarray]:
    """The lower left corner of the box of a word, and its width and height, in points."""
    box = draw_outline(word, size).get_extents()
    return np.array([box.x0, box.y0]), np.array([box.width, box.height])


@cache
def draw_spiral() -> np.ndarray:
    """Points of a spiral from the middle to the corners of a panel, stretched as the panel is, [n, 2]."""
    turns = np.arange(STEPS * np.hypot(*PANEL) / 2 / TURN) / STEPS
    angle, stretch = 2 * np.pi * turns, PANEL[0] / PANEL[1]
    return TURN * turns[:, None] * np.stack([stretch * np.cos(angle), np.sin(angle)], axis=1)


def draw_clouds(clouds: Sequence[tuple[str, Mapping[str, float]]], path: Path) -> None:
    """Draws one cloud per (title, weights of words), as PNG or SVG by the suffix of the file."""
    import matplotlib
    from matplotlib.patches import PathPatch
    from matplotlib.transforms import Affine2D

    columns = min(PANELS_IN_ROW, len(clouds))
    rows, (width, height) = ceil(len(clouds) / columns), PANEL
    size = (columns * width / POINTS_PER_INCH, rows * (height + LARGEST / 2) / POINTS_PER_INCH)
    with _open_figure(path, size) as figure:
        colours = matplotlib.colormaps["viridis"]
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in panels:
            axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
            axes.axis("off")
        for axes, (title, weights) in zip(panels, clouds, strict=False):
            axes.set_title(title.replace("$", r"\$"), fontsize="small")
            words = place_words(weights)
            for word in words:
                outline, colour = draw_outline(word.word, word.size), colours(0.85 * word.rank / max(1, words[-1].rank))
                place = Affine2D().translate(word.x, word.y) + axes.transData
                axes.add_patch(PathPatch(outline, transform=place, facecolor=colour, linewidth=0))
