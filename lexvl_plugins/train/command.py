"""Recipe -> checkpoint: trains a pair of towers and writes it as its encoder loads it.

python -m lexvl_plugins.train.command --recipe demo-vdr
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lexvl_anserini.cli import DataDir, Device, Overwrite, Style, Verbose, parse_settings, print_rows, run
from lexvl_anserini.ground.machine import check_model_libraries

if TYPE_CHECKING:
    from lexvl_plugins.train.grid import Point
    from lexvl_plugins.train.recipe import Recipe


def describe_run(written: Path) -> dict[str, Any]:
    """What a run prints: its checkpoint, or its state where it stopped."""
    from lexvl_plugins.train.run_folder import MODEL, read_step

    return {"model": str(written)} if written.name == MODEL else {"state": str(written), "step": read_step(written)}


def describe_plan(recipe: Recipe, target: Path, points: Sequence[Point] = ()) -> dict[str, str | int]:
    """What a dry run prints: the run, how many items it reads, and the points of a grid of such runs."""
    plans = [stage.optimisation for stage in recipe.stages]
    seen = sum(plan.steps * plan.batch_size for plan in plans)
    rows = {"output": str(target), "kind": recipe.model.kind, "corpus": ", ".join(recipe.data.corpora)}
    rows |= {"points": " ".join(point.name for point in points)} if points else {}
    if not recipe.model.of_texts:
        return {**rows, "steps": recipe.steps, "images_seen": seen}
    negatives = sum(plan.steps * plan.batch_size * plan.negatives for plan in plans)
    return {**rows, "steps": recipe.steps, "queries_seen": seen, "passages_seen": seen + negatives}


Grid = Annotated[
    list[str] | None,
    typer.Option(help="Values of a key, objective.options.w1=.1,.5; repeatable: a run for each combination."),
]
Cache = Annotated[
    str | None,
    typer.Option(help="Folder in which runs share what frozen networks make of the data; default: the run's own."),
]
KeepEvery = Annotated[
    str | None,
    typer.Option(help="epoch or stage: keep a checkpoint of each, kept/epoch-1 in the folder of the run."),
]


def command(
    recipe: Annotated[str, typer.Option(help="YAML file, or the name of a recipe of the package, such as demo-vdr.")],
    output: Annotated[
        str | None, typer.Option(help="Folder of the run; default training/<name of the recipe>.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a key, optimisation.steps=100; repeatable.")
    ] = None,
    grid: Grid = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the CPU; default all.")] = None,
    stop_after: Annotated[int | None, typer.Option(min=1, help="Stop at this step; run again to go on.")] = None,
    hours: Annotated[
        float | None, typer.Option(min=0.001, help="Stop after so many hours of training; run again to go on.")
    ] = None,
    cache: Cache = None,
    keep_every: KeepEvery = None,
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check recipe, data and device, and print what would be done.")
    ] = False,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Train a recipe; an interrupted run resumes.

    Example: lexvl train --recipe demo-vdr --set optimisation.steps=200
    """
    check_model_libraries()
    from lexvl_plugins.train.recipe import parse_changes, read_recipe

    changes = parse_changes(parse_settings(settings or ()))
    request = read_recipe(Path(recipe), changes)
    target = Path(output) if output else Path("training") / f"{request.name}{'-grid' if grid else ''}"
    import torch

    from lexvl_plugins.train.grid import describe_grid, list_points, parse_grid, train_grid
    from lexvl_plugins.train.loop import train
    from lexvl_plugins.train.splits import check

    points = list_points(Path(recipe), changes, parse_grid(grid or ())) if grid else []
    if dry_run:
        for checked in [point.recipe for point in points] or [request]:
            check(checked, data_dir, device)
        print_rows(describe_plan(request, target, points), style)
        return
    if threads:
        torch.set_num_threads(threads)
    stored = Path(cache) if cache else None
    limits: dict[str, Any] = {"data_dir": data_dir, "device": device, "overwrite": overwrite, "keep_every": keep_every}
    limits |= {"stop_after": stop_after, "hours": hours}
    if points:
        rows: dict[str, Any] = describe_grid(train_grid(points, target, stored, **limits), len(points), target)
    else:
        rows = describe_run(train(request, target, cache=stored, **limits))
    if os.environ.get("RANK", "0") == "0":  # the first of several processes prints
        print_rows(rows, style)


if __name__ == "__main__":
    run(command)
