"""Grids of settings: two points end to end, resumed; the front by hand; what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval.measures.flops import compute_flops, count_terms
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import ArtefactError, LexvlError, UsageError
from lexvl_plugins.train.command import command
from lexvl_plugins.train.grid import FIGURES, Row, draw_front, find_front, list_points, parse_grid
from lexvl_plugins.train.images.captioned import read_captioned
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import read_recipe
from tests.plugins.train.tiny_training import same_weights, write_squares

TOWER = {"width": 16, "layers": 1, "heads": 2}
GRID = ["objective.options.masked=true,false", "regularisers.0.weight=.5"]
NAMES = ["masked=True,weight=0.5", "masked=False,weight=0.5"]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of three steps over eight coloured squares, four for validation."""
    (tmp_path / "corpus").mkdir()
    text, image = {**TOWER, "words": 120, "max_length": 16}, {**TOWER, "resolution": 16, "patch_size": 8}
    content: dict[str, Any] = {
        "name": "tiny",
        "data": {"corpus": write_squares(tmp_path / "corpus", train=8)},
        "model": {"kind": "stair", "text": text, "image": image},
        "objective": {"name": "stair"},
        "regularisers": [{"name": "flops", "side": "query", "weight": 0.1}],
        "optimisation": {"steps": 3, "batch_size": 4, "warmup_steps": 1, "learning_rate": 0.01},
        "state_every": 1,
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_grid_trains_its_points_and_compares_them(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    output, options = tmp_path / "grid", {"grid": GRID, "device": "cpu", "style": "json"}
    command(str(recipe), str(output), **options, stop_after=2)
    assert json.loads(capsys.readouterr().out) == {"grid": str(output), "finished": "0 of 2"}
    assert not (output / "grid.csv").exists()
    command(str(recipe), str(output), **options)
    printed = json.loads(capsys.readouterr().out)
    assert printed["finished"] == "2 of 2" and sorted(path.name for path in (output / "cache").iterdir())
    with open(output / "grid.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["objective.options.masked"] for row in rows] == ["True", "False"]
    for name, row in zip(NAMES, rows, strict=True):
        about = json.loads((output / name / "model/training.json").read_text())
        assert {key: float(row[key]) for key in FIGURES} == {
            key: about["validation"][figure] for key, figure in FIGURES.items()
        }
        assert about["recipe"]["stages"][0]["regularisers"][0]["weight"] == 0.5
    assert printed["front"].split() == [name for name, row in zip(NAMES, rows, strict=True) if row["front"] == "*"]
    assert (output / "grid.png").read_bytes().startswith(b"\x89PNG")
    alone = read_recipe(recipe, {"objective.options.masked": False, "regularisers.0.weight": 0.5})
    assert same_weights(output / NAMES[1] / "model", train(alone, tmp_path / "alone", device="cpu"))


def test_flops_of_validation_are_those_of_the_measure(recipe: Path, tmp_path: Path) -> None:
    folder = train(read_recipe(recipe), tmp_path / "run", device="cpu")
    validation = json.loads((folder / "training.json").read_text())["validation"]
    model, data = load_encoder("stair", str(folder), device="cpu"), validation_images(recipe)
    sides = [
        count_terms((dict(vector) for vector in model.decode(side.weights(inputs))), "vectors")
        for side, inputs in ((as_lexical(model.query), data.texts), (as_lexical(model.document), data.images))
    ]
    assert validation["mean_shared_terms"] == pytest.approx(compute_flops(*sides), abs=0.006)
    means = [side.frequency.total() / side.vectors for side in sides]
    assert [validation["mean_text_terms"], validation["mean_image_terms"]] == pytest.approx(means, abs=0.06)


def validation_images(recipe: Path) -> Any:
    return read_captioned(load_dataset(read_recipe(recipe).data.corpora[0], "val", None, direction="text-to-image"))


def make_rows(*places: tuple[float, float]) -> list[Row]:
    return [
        Row(str(number), {}, {**dict.fromkeys(FIGURES, 0.0), "FLOPS": cost, "R@1": recall})
        for number, (cost, recall) in enumerate(places)
    ]


def test_the_front_by_hand(tmp_path: Path) -> None:
    """The third point is as good as the second and costs more; the fifth costs as much as the first and is worse."""
    rows = make_rows((1, 10), (2, 20), (3, 20), (2, 20), (1, 9), (9, 21))
    assert find_front(rows) == [True, True, False, True, False, True]
    assert find_front(make_rows((1, 10))) == [True]
    for name in ("a", "b"):
        draw_front(rows, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_values_of_a_grid_are_yaml() -> None:
    assert parse_grid(["a.w1=.1,.5", "mix=blip-coco,[.1, 2, 3, 4]", "b=null"]) == {
        "a.w1": [0.1, 0.5],
        "mix": ["blip-coco", [0.1, 2, 3, 4]],
        "b": [None],
    }


def test_equal_ends_of_keys_are_named_whole(recipe: Path) -> None:
    [point] = list_points(recipe, {}, {"optimisation.steps": [2], "objective.name": ["stair"]})
    assert point.name == "steps=2,name=stair" and point.recipe.steps == 2
    [point] = list_points(recipe, {}, {"name": ["a/b"], "objective.name": ["stair"]})
    assert point.name == "name=a_b,objective.name=stair"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["optimisation.steps"], r"--grid 'optimisation.steps': expected KEY=VALUE,VALUE"),
        (["optimisation.steps="], r"expected KEY=VALUE,VALUE, for example objective.options.w1=.1,.5"),
        (["seed=1", "seed=2"], "--grid seed=2: seed is there twice; name all of its values once"),
        (["seed=[1"], r"--grid seed=\[1: not YAML"),
        (["objective.temperature=.1,0.1"], "have the same folder, temperature=0.1"),
        (["optimisation.step=1"], "optimisation.step: "),
        (["data.validation=null"], "--grid: compares FLOPS and R@1 on validation images; kind stair over .* has none"),
    ],
)
def test_grids_that_are_refused_before_the_first_run(recipe, options, message, tmp_path) -> None:
    with pytest.raises(UsageError, match=message):
        command(str(recipe), str(tmp_path / "out"), grid=options, device="cpu")
    assert not (tmp_path / "out").exists()


def test_the_folder_of_one_run_is_no_grid(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    train(read_recipe(recipe), tmp_path / "run", device="cpu", stop_after=1)
    with pytest.raises(ArtefactError, match="run: the folder of one run; name another --output for a grid"):
        command(str(recipe), str(tmp_path / "run"), grid=["seed=1,2"], device="cpu")
    command(str(recipe), grid=["seed=1,2"], dry_run=True, style="json", device="cpu")
    printed = json.loads(capsys.readouterr().out)
    assert printed["points"] == "seed=1 seed=2" and printed["output"] == "training/tiny-grid"
    with pytest.raises(LexvlError, match="seed: 1 found, 2 requested"):  # a point is a run, with its promises
        train(read_recipe(recipe, {"seed": 1}), tmp_path / "grid/seed=1", device="cpu", stop_after=1)
        train(read_recipe(recipe, {"seed": 2}), tmp_path / "grid/seed=1", device="cpu")
