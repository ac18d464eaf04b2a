"""The cost curve as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from eval.efficiency.report import Report
from lexvl_anserini.files import atomic_write

# Title of a panel, and what the columns begin with that it draws.
PANELS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("building, seconds", ("build_s", "build_cpu_s")),
    ("size, bytes", ("bytes",)),
    ("peak memory, MiB", ("build_peak_mib", "search_peak_mib")),
    ("median query, CPU milliseconds", ("cpu_ms_k",)),
)


def panel_lines(rows: Sequence[Mapping[str, Any]], beginnings: tuple[str, ...]) -> dict[str, list[tuple[int, float]]]:
    """The lines of a panel: by system and column, (documents, value)."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(beginnings):
                lines.setdefault(f"{row['system']} {key.replace('_', ' ')}", []).append((row["documents"], value))
    return lines


def cost_plot(report: Report, path: Path) -> None:
    """Draws a panel for each of time, size, memory and latency over the number of documents, both axes logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, beginnings) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        for label, points in panel_lines(report.rows, beginnings).items():
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
        axes.set(title=title, xlabel="documents", xscale="log", yscale="log")
        axes.grid(True, which="both", alpha=0.3)
        axes.legend(fontsize="small")
    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    # Lines need few colours: a third of the bytes.
    Image.open(drawn).convert("RGB").quantize(32).save(small, format="png", optimize=True)
    with atomic_write(path) as out:
        out.write(small.getvalue())
