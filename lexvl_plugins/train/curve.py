"""The curve of a run: losses, validation figures, active terms and FLOPS over the steps, drawn from its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.ground.files import atomic_write

DPI, WIDTH, HEIGHT = 90, 5.5, 4.0
# Keys of the log that no panel draws.
OTHERS = frozenset({"step", "learning_rate", "seconds", "temperature", "score", "stopped", "losses"})


def draw_curve(log: Path, path: Path) -> None:
    """Draws a PNG with one panel for each kind of figure that the log has; equal logs give equal pixels."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = panels_of([orjson.loads(line) for line in log.read_bytes().splitlines()])
    drawn = BytesIO()
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        figure = Figure(figsize=(WIDTH * max(1, len(panels)), HEIGHT), layout="constrained")
        FigureCanvasAgg(figure)
        for number, (title, lines) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), number)
            for name, points in lines.items():
                axes.plot(*zip(*points, strict=True), label=name, marker="." if len(points) < 30 else None)
            axes.set(title=title, xlabel="step")
            axes.grid(True, alpha=0.3)
            axes.legend(fontsize="small")
        figure.savefig(drawn, format="png", dpi=DPI)
    with atomic_write(path) as out:
        out.write(drawn.getvalue())


def panels_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """By panel and line, the points (step, value) of a log."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}

    def add(panel: str, name: str, step: int, value: float) -> None:
        panels.setdefault(panel, {}).setdefault(name, []).append((step, value))

    for row in rows:
        for name, value in row.get("losses", {}).items():
            add("losses", name, row["step"], value)
        for key, value in row.items():
            if key not in OTHERS:
                add(_panel(key, measured="temperature" in row), key, row["step"], value)
    return panels


def _panel(key: str, measured: bool) -> str:
    if key == "loss":
        return "losses"
    if key.endswith("_terms"):
        return "active terms"
    if key.endswith("_flops"):
        return "FLOPS"
    return "validation" if measured else "likeness of neighbours"
