"""Two processes train as one: the first one writes, vectors are gathered, gradients are those of the whole batch."""

from __future__ import annotations

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
from lexvl_plugins.train.common.processes import Processes
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import Recipe, check_recipe, read_recipe
from tests.plugins.train.test_pieces import assert_same, gradients, image_recipe, of_texts
from tests.plugins.train.tiny_training import rows_of

COUNT = 2
TRAIN = """
import os, sys
from pathlib import Path
from safetensors.torch import save_file
from tests.plugins.train.test_pieces import gradients
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
    shared = {
        "PYTHONPATH": paths,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(COUNT),
        "OMP_NUM_THREADS": "1",
    }
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
