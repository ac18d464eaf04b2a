"""Grids: a run for each combination of some settings, and the front of FLOPS against R@1 among them.

OUT/
  w1=0.1,w2=0.5/  the run of a point, named by its settings
  cache/    what frozen networks make of the data, for all points, unless another cache is named
  grid.csv  a line per finished point: its settings, its figures on the validation split, whether it is on the front
  grid.png  FLOPS against R@1 of the points, with the front as a line
"""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.data.yaml_files import parse_yaml
from lexvl_anserini.ground import files
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_plugins.train import run_folder
from lexvl_plugins.train.loop import HEIGHT, WIDTH, open_figure, train
from lexvl_plugins.train.recipe import Recipe, read_recipe

TABLE, PLOT, CACHE = "grid.csv", "grid.png", "cache"
FLOPS, RECALL, FRONT = "FLOPS", "R@1", "front"
# Columns of the table by the figures of validation. FLOPS are the terms that a text and an image share, as in
# eval/measures/flops.py, before weights become impacts.
FIGURES = {
    FLOPS: "mean_shared_terms",
    "text terms": "mean_text_terms",
    "image terms": "mean_image_terms",
    RECALL: "t2i_R@1",
    "R@10": "t2i_R@10",
    "image-to-text R@1": "i2t_R@1",
    "image-to-text R@10": "i2t_R@10",
}


class Point(NamedTuple):
    """A recipe of a grid, the settings that it has, by dotted keys, and its name, which they make."""

    name: str
    settings: Mapping[str, Any]
    recipe: Recipe


class Row(NamedTuple):
    """A finished point: its name, settings, and figures by the columns of `FIGURES`."""

    name: str
    settings: Mapping[str, Any]
    figures: Mapping[str, float]


def parse_grid(options: Iterable[str]) -> dict[str, list[Any]]:
    """`["objective.options.w1=.1,.5"]` -> `{"objective.options.w1": [0.1, 0.5]}`: the values of each key, as YAML."""
    grid: dict[str, list[Any]] = {}
    for option in options:
        key, _, text = option.partition("=")
        if key in grid:
            raise UsageError(f"--grid {option}: {key} is there twice; name all of its values once")
        grid[key] = values = parse_yaml(f"[{text}]", f"--grid {option}", UsageError)
        if not key or not values:
            raise UsageError(f"--grid {option!r}: expected KEY=VALUE,VALUE, for example objective.options.w1=.1,.5")
    return grid


def list_points(path: Path, changes: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> list[Point]:
    """The recipes of all combinations of the values of a grid, over further changes; all are checked here."""
    short = [key.rpartition(".")[2] for key in grid]
    labels = short if len(set(short)) == len(short) else list(grid)
    points: dict[str, Point] = {}
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        name = ",".join(f"{label}={value}" for label, value in zip(labels, values, strict=True))
        name = re.sub(r"[^\w.,=+-]+", "_", name)
        if name in points:
            raise UsageError(f"--grid: {dict(points[name].settings)} and {settings} have the same folder, {name}")
        points[name] = Point(name, settings, read_recipe(path, {**changes, **settings}))
        check_measured(points[name].recipe)
    return list(points.values())


def check_measured(recipe: Recipe) -> None:
    """Checks that validation of a recipe has FLOPS and R@1."""
    model, data = recipe.model, recipe.data
    if model.of_texts or not model.lexical or not (data.validation or data.held_out):
        raise UsageError(
            f"--grid: compares FLOPS and R@1 on validation images; kind {model.kind} over {', '.join(data.corpora)} "
            "has none; expected a lexical kind of images, with data.validation or data.held_out"
        )


def train_grid(points: Sequence[Point], output: Path, cache: Path | None, **options: Any) -> list[Row]:
    """Trains what is not finished, each point in its folder, and writes table and plot after each.

    `options` are further ones of `train`. Of several processes, the first one writes and returns rows.
    """
    if (output / run_folder.RECIPE).exists():
        raise ArtefactError(f"{output}: the folder of one run; name another --output for a grid")
    rows: list[Row] = []
    for point in points:
        written = train(point.recipe, output / point.name, cache=cache or output / CACHE, **options)
        if written.name == run_folder.MODEL and os.environ.get("RANK", "0") == "0":
            measured = files.read_json(written / "training.json", "what a checkpoint was trained on")["validation"]
            figures = {column: measured[name] for column, name in FIGURES.items()}
            rows.append(Row(point.name, point.settings, figures))
            write_table(rows, output / TABLE)
            draw_front(rows, output / PLOT)
    return rows


def describe_grid(rows: Sequence[Row], points: int, output: Path) -> dict[str, str]:
    """What the command prints: the folder, how many of the points are finished, and which are on the front."""
    front = [row.name for row, ahead in zip(rows, find_front(rows), strict=True) if ahead]
    written = {"table": str(output / TABLE), "plot": str(output / PLOT), FRONT: " ".join(front)} if rows else {}
    return {"grid": str(output), "finished": f"{len(rows)} of {points}", **written}


def find_front(rows: Sequence[Row]) -> list[bool]:
    """Whether each row is on the front: no other has as few FLOPS and as high an R@1, and less or more of one."""

    def beats(one: Row, other: Row) -> bool:
        gains = one.figures[RECALL] - other.figures[RECALL], other.figures[FLOPS] - one.figures[FLOPS]
        return min(gains) >= 0 and max(gains) > 0

    return [not any(beats(one, row) for one in rows) for row in rows]


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Writes the rows as comma-separated values; the last column has a star on the front."""
    out = StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow([*rows[0].settings, *FIGURES, FRONT])
    for row, ahead in zip(rows, find_front(rows), strict=True):
        lines.writerow([*row.settings.values(), *row.figures.values(), "*" if ahead else ""])
    with files.atomic_write(path) as written:
        written.write(out.getvalue().encode())


def draw_front(rows: Sequence[Row], path: Path) -> None:
    """Draws a PNG of R@1 over FLOPS, each point with its name; a line joins those of the front."""
    with open_figure(path, 1.5 * WIDTH, 1.2 * HEIGHT) as figure:
        axes = figure.add_subplot()
        places = [(row.figures[FLOPS], row.figures[RECALL]) for row in rows]
        front = sorted(place for place, ahead in zip(places, find_front(rows), strict=True) if ahead)
        axes.plot(*zip(*front, strict=True), color="tab:orange", marker="o", markersize=9, label=FRONT)
        axes.scatter(*zip(*places, strict=True), color="tab:blue", zorder=3)
        for row, place in zip(rows, places, strict=True):
            axes.annotate(row.name, place, xytext=(4, 4), textcoords="offset points", fontsize="x-small")
        axes.set(xlabel="FLOPS: terms that a text and an image share", ylabel="text-to-image R@1")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize="small")
