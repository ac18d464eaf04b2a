"""Rows of tables whose weights are trained when they are measured, and numbers of parameters."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from corpus_folders import coloured_coco
from tiny_encoders import made_stair

from lexvl_anserini.cli import make_app, parse_settings
from lexvl_plugins.papers.prepared import Workplace
from lexvl_plugins.papers.published import find_expected_folder, load_published_tables, read_tables
from lexvl_plugins.papers.tables import make_plan, read_record
from lexvl_plugins.train.command import command
from lexvl_plugins.train.recipe import parse_changes, read_recipe
from lexvl_plugins.train.reproduction import count_fdt_share
from tests.plugins.papers.test_reproduce import call, write_things
from tests.plugins.train.test_clip_twin_contracts import make_stair_twin

OWN = """\
paper: A
tables:
  families:
    title: a family
    tolerance: 1.5
    columns: ["text-to-image coco/test [R@1, R@5]"]
    rows: {A family: {first} 100.0}
    systems:
      A family: {encoder: stair, trained_on: coco/test, recipe: stair-small.yaml --set seed=7}
"""


def own_tables(folder: Path, monkeypatch: pytest.MonkeyPatch, first: str = "33.3") -> None:
    """The command reads tables of stated numbers."""
    (folder / "own.yaml").write_text(OWN.replace("{first}", first))
    tables = {table.name: table for table in read_tables(folder / "own.yaml")}
    monkeypatch.setattr("lexvl_plugins.papers.command.load_published_tables", lambda: tables)


def test_a_family_is_trained_and_then_measured(golden, tmp_path, monkeypatch):
    """The weights are what `train` makes of the recipe; another seed is another training, and a moved number is red."""
    coloured_coco(tmp_path)
    trained, validated_split = [], ["val"]

    def train(recipe, output, data_dir, device, overwrite, cache):
        trained.append((recipe.seed, recipe.data.corpus, recipe.data.split, output.name, cache.name))
        if not (output / "model").exists():
            output.mkdir(parents=True)
            made_stair(golden, tmp_path).rename(output / "model")
            data = {"corpus": recipe.data.corpus, "validation": validated_split[0]}
            written = {"recipe": {"data": data}, "validation": {"t2i_R@1": 25.0, "t2i_R@5": 50.0, "alpha_t2i_R@1": 1.0}}
            (output / "model" / "training.json").write_text(json.dumps(written))

    monkeypatch.setattr("lexvl_plugins.train.loop.train", train)
    own_tables(tmp_path, monkeypatch)
    line = ["own-families", "--data-dir", tmp_path, "--output", tmp_path / "out", "--record", tmp_path / "record.json"]
    code, text, said = call(*line, "--format", "json", "--agreeing")
    first, fifth = json.loads(text)
    [(*where, name, cache)] = trained
    assert (where, cache) == ([7, "coco", "test"], "cache"), said
    assert re.fullmatch(r"stair-small\.[0-9a-f]{8}", name), "the recipe with its options"
    assert fifth["measured"] == 100 and fifth["verdict"] == "agrees", "three images are among the first five"
    assert 0.06 * first["measured"] == pytest.approx(round(0.06 * first["measured"])), "so many of six captions"
    digests = {cell.model for cell in read_record(tmp_path / "record.json").values()}
    assert len(digests) == 1 and re.fullmatch("[0-9a-f]{64}", digests.pop())

    for moved, expected in ((1.4, 0), (1.6, 1)):
        own_tables(tmp_path, monkeypatch, first=f"{first['measured'] + moved:.6f}")
        assert call(*line, "--agreeing")[0] == expected
    given = ["--checkpoint", f"A family={made_stair(golden, tmp_path)}"]
    code, text, said = call(*line[:-2], *given)
    assert code == 0 and text.count("not compared (other weights)") == 2 and len(trained) == 3, said

    # What `train` validated of the same split answers without a run, and claims of the folder read it.
    validated_split[0] = "test"
    line = ["own-families", "--data-dir", tmp_path, "--output", tmp_path / "validated", "--format", "json"]
    code, text, said = call(*line)
    assert [cell["measured"] for cell in json.loads(text)] == [25, 50], said
    assert not (tmp_path / "validated" / "runs").exists()
    [part] = (tmp_path / "validated" / "parts").iterdir()
    assert json.loads(part.read_text())["values"] == {"R@1": 0.25, "R@5": 0.5}
    code, text, said = call(*line, "--limit", "2")
    assert (tmp_path / "validated" / "runs").exists(), "of a part of the images nothing was validated"


def test_a_family_needs_what_it_trains_on(tmp_path, monkeypatch):
    own_tables(tmp_path, monkeypatch)
    families = next(read_tables(tmp_path / "own.yaml"))
    plan = make_plan(families, Workplace(tmp_path, data_dir=str(tmp_path)))
    assert [(need.name, need.here) for need in plan.needs] == [("coco/test", False)] and plan.runs == 2
    code, text, _ = call("own-families", "--data-dir", tmp_path, "--output", tmp_path / "out", "--agreeing")
    assert code == 0 and text.count("skipped (missing: coco/test") == 2


def test_parameters_are_counted_without_weights(tmp_path):
    """STAIR's table 1 and the size of D2S's head."""
    code, text, said = call("stair-table1", "d2s-head", "--strict", "--output", tmp_path / "out")
    assert code == 0, said
    assert re.findall(r"(\S+) +\S+ +\S+  agrees", text) == ["53.79", "23.670"]
    assert re.search(r"86.82 +86.8 +\S+  not compared \(equation 4 does not say", text), text
    assert re.search(r"88.56 +88.6 +\S+  not compared \(the paper does not say how states become one", text), text
    # FDT's codebook and query maps beside CLIP's 151 million parameters, in the recipes of three image encoders.
    assert count_fdt_share() == pytest.approx(0.064, abs=0.0005) and not (tmp_path / "out").exists()


def test_a_recipe_of_a_row_is_read_with_its_options():
    """Every `recipe` is a file and options of `train`, whose kind is the encoder of the row, or the papers' CLIP."""
    systems = [cell.system for table in load_published_tables().values() for cell in table.cells]
    recipes = {system.recipe: system.encoder for system in systems if system and system.recipe}
    assert len(recipes) >= 8
    for text, encoder in recipes.items():
        name, *options = shlex.split(text)
        parsed = typer.main.get_command(make_app(command)).make_context("train", ["--recipe", name, *options])
        changes = parse_changes(parse_settings(parsed.params["settings"] or ()))
        recipe = read_recipe(find_expected_folder().parent / "recipes" / name, changes)
        assert recipe.model.kind == ("dense-crossmodal" if encoder.startswith("clip") else encoder)


def test_the_clip_of_stairs_authors_is_measured(golden, tmp_path):
    """Retrieval with the prompt, zero-shot and class words; a STAIR as CLIP costs its own cells, in one line."""
    coloured_coco(tmp_path)
    twin, things = make_stair_twin(golden, tmp_path), write_things(tmp_path / "things")
    line = ["stair-table2", "--rows", "CLIP", "--data-dir", tmp_path, "--output", tmp_path / "out", "--format", "json"]
    further = ["stair-table3", "stair-table5", "--corpus", f"cifar100={things}"]
    code, text, said = call(*line, *further, "--checkpoint", f"CLIP={twin}")
    assert code == 0, said
    cells = {cell["quantity"]: cell for cell in json.loads(text)}
    measured = {name for name, cell in cells.items() if cell["measured"] is not None}
    assert {"text-to-image coco/test R@5", "image-to-text coco/test R@1", "zero-shot cifar100 top-1"} <= measured
    assert "words cifar100 top-100" in measured and cells["zero-shot dtd top-1"]["reason"] == "missing: dtd"
    code, text, said = call(*line, "--checkpoint", f"CLIP={made_stair(golden, tmp_path)}")
    reasons = {cell["quantity"]: cell["reason"] for cell in json.loads(text)}
    assert code == 0 and "expected 'stair-clip'" in reasons["text-to-image coco/test R@5"], said
