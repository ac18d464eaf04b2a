"""The trials of the papers' claims: what their script runs, and that compared rows have equal budgets."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lexvl_plugins.papers.published import load_published_tables
from lexvl_plugins.train.recipe import parse_changes, read_recipe

RUNS = Path(__file__).parents[3] / "runs"
TABLES = [table for table in load_published_tables().values() if table.name.startswith("trends-")]


def start(folder: Path, *options: str) -> str:
    """What the script prints beside a set-up, a Python and a `regressions.sh` that print how they are called."""
    line, environment = ["bash", f"{folder}/runs/trends.sh", *options], {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_script_trains_the_pair_on_other_photos_and_knows_help(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/trends.sh").write_text((RUNS / "trends.sh").read_text())
    (tmp_path / "runs/setup.sh").write_text(f"PATH={tmp_path}:$PATH\n")
    (tmp_path / "runs/regressions.sh").write_text('echo regressions "$@"\n')
    (tmp_path / "python").write_text(f'#!/bin/sh\n[ "$1" = - ] && exec {sys.executable} "$@"\necho "$@"\n')
    (tmp_path / "python").chmod(0o755)
    photos = tmp_path / "data/flickr8k"
    photos.mkdir(parents=True)
    images = [{"split": "val"}, *({"split": "train", "imgid": number} for number in range(1900))]
    (photos / "dataset_flickr8k.json").write_text(json.dumps({"images": images}))
    (photos / "photos.tar").touch()
    assert "Usage: bash runs/trends.sh" in start(tmp_path, "--help") and not (tmp_path / "training").exists()
    training, called = start(tmp_path, "--data-dir", "data").splitlines()
    pair = tmp_path / "training/trends-data/flickr8k"
    chosen = json.loads((pair / "dataset_flickr8k.json").read_text())["images"]
    assert [image["imgid"] for image in chosen] == [*range(1200, 1800)]
    assert (pair / "photos.tar").samefile(photos / "photos.tar")
    assert "--output training/trends-pair --data-dir training/trends-data" in training
    assert {table.name for table in TABLES} < {*called.split()}
    assert start(tmp_path, "trends-table5", "--rows", "K=8") == "regressions trends-table5 --rows K=8\n"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_compared_rows_have_equal_budgets(table):
    budgets = set()
    for system in {cell.label: cell.system for cell in table.cells if cell.system.recipe}.values():
        name, *options = shlex.split(system.recipe)
        changes = parse_changes(dict(option.split("=", 1) for option in options if option != "--set"))
        recipe = read_recipe(RUNS / "recipes" / name, changes)
        plans = [stage.optimisation for stage in recipe.stages]
        pairs = sum(plan.steps * plan.batch_size * plan.captions_per_image for plan in plans)
        batches = {(plan.batch_size, plan.negatives) for plan in plans}
        views = {(stage.views, repr(stage.augmentation)) for stage in recipe.stages}
        sides = [getattr(recipe.model, side, None) for side in ("text", "image", "query", "document")]
        dropout = tuple(getattr(side, "dropout", None) for side in sides)
        budgets.add((system.seeds, recipe.data.images, pairs, frozenset(batches), frozenset(views), dropout))
    assert len(budgets) == (table.name != "trends-table5"), "that table trains nothing"
