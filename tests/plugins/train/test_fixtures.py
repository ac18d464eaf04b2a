"""Training runs that 0.1.0 and 0.2.0 wrote: they are encoders, finished ones stay, and a stopped one goes on."""
# ruff: noqa: F811  pytest passes the imported fixtures by their names

import json
from pathlib import Path

import numpy as np
import pytest

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import LexvlError
from tests.project.test_fixtures import MADE, checkpoints, invoke, place, states  # noqa: F401

TRAIN = "lexvl_plugins.train.command"
FINISHED = ["training/finished", "training/finished-0.2"]


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_training_run_is_an_encoder_and_stays(name: str, place: Path) -> None:
    before = states(place / name)
    invoke(TRAIN, *MADE[name][1:])
    assert states(place / name) == before
    model = load_encoder("vdr-crossmodal", checkpoint=f"{name}/model", device="cpu")
    weights = model.query.weights(["a red square"])
    assert weights.shape == (1, len(model.query.vocabulary)) and weights.nnz
    with pytest.raises(LexvlError, match="seed"):
        invoke(TRAIN, *MADE[name][1:], "--set", "seed=7")


def test_a_stopped_training_run_goes_on(place: Path) -> None:
    from safetensors.numpy import load_file

    arguments, runs = MADE["training/stopped"][1:], (place / "training/stopped", place / "training/finished")
    log = (runs[0] / "log.jsonl").read_bytes()
    invoke(TRAIN, *arguments[: arguments.index("--stop-after")])
    assert (runs[0] / "log.jsonl").read_bytes().startswith(log)
    found, expected = (load_file(run / "model/model.safetensors") for run in runs)
    assert found.keys() == expected.keys()
    for key in found:
        np.testing.assert_allclose(found[key], expected[key], atol=1e-3)
    ours, theirs = ([json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] for run in runs)
    assert all(mine.keys() >= old.keys() for mine, old in zip(ours, theirs, strict=True))  # later versions log more
