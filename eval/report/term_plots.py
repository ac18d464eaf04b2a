"""Draws the terms of corpora: boxes of their first terms' weights, and histograms of the terms per document."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexvl_anserini.ground.files import atomic_write

if TYPE_CHECKING:
    from ..analyses.terms import TermProfile

DPI, BINS = 90, 40

# Inches: of a panel, of a box, and of the part of the boxes' panel that has none.
HEIGHT, WIDTH, BOX, MARGIN = 4.5, 7.0, 1.2, 1.4


def draw_terms(profiles: Sequence[TermProfile], path: Path) -> None:
    """Draws a PNG: one box per corpus, of the means and of the maxima of its first terms, and one histogram per corpus.

    Boxes reach from the first to the third quartile, whiskers at most 1.5 times as far; circles are the terms beyond.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = BytesIO()
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        boxes = MARGIN + BOX * len(profiles)
        figure = Figure(figsize=(2 * boxes + WIDTH, HEIGHT), layout="constrained")
        FigureCanvasAgg(figure)
        means, maxima, active = figure.subplots(1, 3, width_ratios=(boxes, boxes, WIDTH))
        names = [profile.shards for profile in profiles]
        _draw_boxes(means, names, [[term.mean for term in profile.first] for profile in profiles], "mean weight")
        _draw_boxes(maxima, names, [[term.maximum for term in profile.first] for profile in profiles], "largest weight")
        _draw_histograms(active, profiles)
        figure.savefig(drawn, format="png", dpi=DPI)
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
