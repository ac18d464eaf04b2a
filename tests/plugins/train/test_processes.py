"""Two processes train as one, and pieces as a whole batch; memory that gradients need can be traded for time."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.train.common.learner import Learner
from lexvl_plugins.train.common.processes import Pieces, Processes
from lexvl_plugins.train.common.tower_pair import TowerPair
from lexvl_plugins.train.images.material import Material
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import Recipe, check_recipe, read_recipe
from lexvl_plugins.train.splits import Sources
from lexvl_plugins.train.texts.material import TextMaterial
from tests.plugins.train.test_run_folder import recipe_of as recipe_of_images
from tests.plugins.train.test_texts import recipe_of
from tests.plugins.train.tiny_training import rows_of

CPU = torch.device("cpu")


def gradients(recipe: Recipe, folder: Path, **plan: Any) -> dict[str, torch.Tensor]:
    """The gradients of the first step, before they are clipped and forgotten."""
    content = recipe.model_dump(mode="json")
    content["stages"][0]["optimisation"].update({"clip": 1e9, **plan})
    recipe = check_recipe(content, "tiny.yaml")
    read = TextMaterial.read if recipe.model.of_texts else Material.read
    material = read(recipe, folder, Sources.read(recipe, None, folder))
    pair = material.make_pair(recipe, CPU)
    learner = Learner.start(recipe.stages[0], pair, CPU, recipe.precision)
    inputs = material.make_stage_inputs(recipe, 0, pair)
    found: dict[str, torch.Tensor] = {}

    def keep(pair: TowerPair) -> None:
        found.update({name: p.grad.clone() for name, p in pair.named_parameters() if p.grad is not None})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner.optimiser, "step", lambda: keep(pair))
        pair.train()
        learner.take_step(recipe, recipe.stages[0], inputs.batches, 0, 0)
    assert found
    return found


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        difference = float((found[name] - gradient).abs().max())
        # The last is float32: the gradients of DPR's vectors, which are nearly equal here, are small differences.
        assert difference <= 1e-5 and difference <= 1e-4 * largest, name


def of_texts(corpus: str, kind: str = "vdr", dropout: float = 0.0, negatives: int = 1, **changes: Any) -> Recipe:
    """Batches of five queries, each with a hard negative."""
    tower = {"words": 200, "width": 16, "layers": 1, "heads": 2, "max_length": 16, "dropout": dropout}
    objectives = {
        "vdr": {"name": "vdr", "learn_temperature": True, "options": {"topk": 8}},
        "splade": {"name": "splade_in_batch", "temperature": 1.0},
        "dpr": {"name": "dpr", "temperature": 4.0},
    }
    flops = [{"name": "flops", "side": "document", "weight": 0.1, "ramp": "n"}] if kind == "splade" else []
    plan = {"steps": 4, "batch_size": 5, "negatives": negatives, "warmup_steps": 1, "learning_rate": 0.01}
    made = {"objective": objectives[kind], "optimisation": plan, "regularisers": flops}
    return recipe_of(corpus, kind, {"query": tower}, **{**made, **changes})


@pytest.mark.parametrize("kind", ["vdr", "splade", "dpr"])
@pytest.mark.parametrize("piece", [1, 2, 5])
def test_pieces_of_texts_with_hard_negatives(kind: str, piece: int, texts: str, tmp_path: Path) -> None:
    recipe = of_texts(texts, kind)
    assert_same(gradients(recipe, tmp_path, piece=piece), gradients(recipe, tmp_path))


def image_recipe(corpus: str, dropout: float = 0.0, **plan: Any) -> Recipe:
    """Batches of four images with two captions each, which share what the loss keeps of the images."""
    content = recipe_of_images(corpus).model_dump(mode="json")
    content["model"]["text"]["dropout"] = dropout
    content["stages"][0]["optimisation"].update({"captions_per_image": 2, **plan})
    content["stages"][0]["objective"]["learn_temperature"] = True
    content["stages"][0]["auxiliaries"] = [{"name": "naming", "weight": 1.0}]
    return check_recipe(content, "tiny.yaml")


@pytest.mark.parametrize("piece", [1, 3])
def test_pieces_of_images_with_captions(piece: int, images: str, tmp_path: Path) -> None:
    recipe = image_recipe(images)
    assert_same(gradients(recipe, tmp_path, piece=piece), gradients(recipe, tmp_path))


def test_a_piece_has_the_same_dropout_in_both_passes(texts: str, tmp_path: Path) -> None:
    """A piece of all rows has one pass with its graph; three of two rows have two passes with the dropout of each."""
    recipe = of_texts(texts, dropout=0.5)
    found = gradients(recipe, tmp_path, piece=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pieces, "__call__", with_graphs)
        patch.setattr(Pieces, "backward", lambda self: None)
        expected = gradients(recipe, tmp_path, piece=2)
    assert_same(found, expected)
    other = gradients(recipe, tmp_path, piece=5)
    assert any(not torch.allclose(found[name], other[name], rtol=1e-2) for name in found)


def with_graphs(self: Any, compute: Any, side: Any, batch: Any) -> Any:
    """All pieces with their graphs at once, each with the dropout of its seed."""
    found = []
    for piece, seed in self.split_own(batch):
        torch.manual_seed(seed)
        found.append(compute(side, piece))
    parts = [None if column[0] is None else torch.cat(column) for column in zip(*found, strict=True)]
    return type(found[0])(*parts)


def test_a_frozen_side_passes_once(texts: str, tmp_path: Path) -> None:
    tower = {"words": 200, "width": 16, "layers": 1, "heads": 2, "max_length": 16, "dropout": 0.0}
    recipe = recipe_of(texts, "dpr", {"query": tower, "document": tower}, trained=["encoder_q.*"])
    found = gradients(recipe, tmp_path, piece=1)
    assert_same(found, gradients(recipe, tmp_path))
    assert all(name.startswith(("encoder_q.", "log_")) for name in found)


@pytest.mark.parametrize("kind", ["vdr", "splade", "dpr"])
def test_checkpointing_does_not_change_gradients(kind: str, texts: str, tmp_path: Path) -> None:
    recipe = of_texts(texts, kind, dropout=0.1)
    assert_same(gradients(recipe, tmp_path, checkpointing=True), gradients(recipe, tmp_path))


def test_checkpointing_needs_a_network_that_changes(images: str, tmp_path: Path) -> None:
    content = image_recipe(images, checkpointing=True).model_dump(mode="json")
    content["stages"][0]["trained"] = ["encoder_p.proj"]
    with pytest.raises(UsageError, match="optimisation.checkpointing: no network of transformers changes"):
        train(check_recipe(content, "tiny.yaml"), tmp_path, device="cpu")


@pytest.mark.parametrize("kind", ["vdr", "splade", "dpr", "sentence"])
@pytest.mark.parametrize("piece", [0, 2])
def test_texts_train_in_bf16(kind: str, piece: int, texts: str, tmp_path: Path) -> None:
    plan = {"steps": 1, "batch_size": 3, "negatives": 1, "piece": piece}
    recipe = recipe_of(texts, kind, precision="bf16", optimisation=plan)
    assert (train(recipe, tmp_path, device="cpu") / "training.json").is_file()


COUNT = 2
TRAIN = """
import os, sys
from pathlib import Path
from safetensors.torch import save_file
from tests.plugins.train.test_processes import gradients
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import read_recipe
for call in sys.argv[1:]:
    recipe, output, stop = call.split(",")
    if stop == "gradients":
        own = Path(output) / os.environ["RANK"]
        own.mkdir(parents=True)
        save_file(gradients(read_recipe(Path(recipe)), own), own / "gradients.safetensors")
    else:
        train(read_recipe(Path(recipe)), Path(output), device="cpu", stop_after=int(stop) or None)
"""


def in_two_processes(calls: list[tuple[Recipe, Path, int | str]]) -> None:
    """Trains recipes one after the other in two processes that talk over the local host."""
    arguments = []
    for number, (recipe, output, stop) in enumerate(calls):
        path = output.with_suffix(f".{number}.yaml")
        path.write_text(json.dumps(recipe.model_dump(mode="json")))
        arguments.append(f"{path},{output},{stop}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([*map(str, Path(__file__).parents[2:4]), os.environ.get("PYTHONPATH", "")])
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(COUNT)}
    shared = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **master}
    running = []
    for rank in range(COUNT):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(COUNT)}
        command = [sys.executable, "-c", TRAIN, *arguments]
        variables = {**os.environ, **shared, **own}
        running.append(subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True))
    try:
        errors = [child.communicate(timeout=900)[1] for child in running]
    finally:
        for child in running:
            child.kill()
    assert [child.returncode for child in running] == [0] * COUNT, "\n".join(errors)


def same(found: Path, expected: Path) -> None:
    """Equal weights to 1e-5, but for the biases of attention's keys.

    Softmax does not depend on these biases: their gradients are rounding alone, of which Adam makes whole steps.
    """
    for path in sorted(expected.glob("*.safetensors")):
        ours, theirs = load_file(found / path.name), load_file(path)
        assert ours.keys() == theirs.keys()
        for key, weights in theirs.items():
            if key.endswith("key.bias"):
                continue
            of_keys = slice(len(weights) // 3, 2 * len(weights) // 3) if key.endswith("in_proj_bias") else slice(0)
            ours[key][of_keys] = weights[of_keys]
            message = f"{key}: {{}}".format
            torch.testing.assert_close(ours[key], weights, rtol=1e-5, atol=1e-5, msg=message)


@pytest.mark.heavy
def test_two_processes_train_as_one(texts: str, images: str, tmp_path: Path) -> None:
    """Gradients of images with two captions in pieces; runs of texts with hard negatives, one of which stops once."""
    plan = {"steps": 4, "batch_size": 4, "negatives": 1, "warmup_steps": 1, "learning_rate": 0.01}
    pieces = image_recipe(images, piece=1)
    of = {
        "whole": of_texts(texts, optimisation=plan),
        "stopped": of_texts(texts, "splade", optimisation=plan, state_every=2, validate_every=1),
    }
    runs = [(recipe, tmp_path / name) for name, recipe in of.items()]
    calls: list[tuple[Recipe, Path, int | str]] = [(pieces, tmp_path / "gradients", "gradients")]
    calls += [(recipe, output, 3 if output.name == "stopped" else 0) for recipe, output in runs]
    in_two_processes([*calls, (of["stopped"], tmp_path / "stopped", 0)])
    (tmp_path / "alone").mkdir()
    expected = gradients(pieces, tmp_path / "alone", piece=0)
    for rank in range(COUNT):
        assert_same(load_file(tmp_path / "gradients" / str(rank) / "gradients.safetensors"), expected)
    for recipe, output in runs:
        same(output / "model", train(recipe, tmp_path / "one" / output.name, device="cpu"))
        ours, theirs = (rows_of(folder / output.name) for folder in (tmp_path, tmp_path / "one"))
        assert [row["step"] for row in ours] == [row["step"] for row in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.get("loss") == pytest.approx(other.get("loss"), abs=2e-4)


class State:
    num_processes = 2


def test_a_batch_is_shared_evenly(texts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processes, "state", State())
    with pytest.raises(UsageError, match="recipe tiny: batch_size 5 is no multiple of the 2 processes"):
        Processes(cpu=True).check(of_texts(texts))


LEXLIP = Path(__file__).parents[3] / "runs/recipes/lexlip-small.yaml"
OF_WHOLE = ["masked_words", "lexlip_momentum"]


def of_lexlip(name: str, **plan: Any) -> Recipe:
    """The stage of a recipe with this objective."""
    content = read_recipe(LEXLIP).model_dump(mode="json")
    [stage] = [stage for stage in content["stages"] if name in json.dumps(stage)]
    stage["optimisation"].update(plan)
    return check_recipe({**content, "stages": [stage]}, "lexlip.yaml")


@pytest.mark.parametrize("name", OF_WHOLE)
def test_objectives_of_the_whole_batch_have_one_process_and_no_pieces(name, monkeypatch):
    """The key was read, and all rows passed together."""
    monkeypatch.setattr(Processes, "state", State())
    with pytest.raises(UsageError, match=f"recipe lexlip-small: {name}: trains in one process, found 2"):
        Processes(cpu=True).check(of_lexlip(name))
    with pytest.raises(UsageError, match=f"optimisation.piece: {name} reads a whole batch at once; leave piece out"):
        of_lexlip(name, piece=2)


@pytest.mark.heavy
@pytest.mark.parametrize("name", OF_WHOLE)
def test_two_processes_refuse_an_objective_of_the_whole_batch(name: str, tmp_path: Path) -> None:
    """Both end with the line before anything is read or written."""
    with pytest.raises(AssertionError) as ended:
        in_two_processes([(of_lexlip(name), tmp_path / "run", 0)])
    assert str(ended.value).count(f"recipe lexlip-small: {name}: trains in one process, found 2") >= COUNT
    assert not (tmp_path / "run").exists()
