"""Recipes and run folders from elsewhere: data, whose code never runs."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from tiny_encoders import Runs
from torch import nn

from lexvl_anserini.ground.errors import ArtefactError, LexvlError
from lexvl_plugins.train.recipe import read_recipe
from lexvl_plugins.train.run_folder import TrainingState, resume, save_state


def test_a_recipe_is_data(tmp_path):
    """YAML may name Python objects; an objective of a recipe is a row of a table."""

    for text in (f"!!python/object/apply:os.mkdir [{tmp_path / 'ran'}]", "objective: {name: 'os:mkdir'}"):
        (tmp_path / "recipe.yaml").write_text(text)
        with pytest.raises(LexvlError) as caught:
            read_recipe(tmp_path / "recipe.yaml")
        assert "recipe.yaml" in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["optimizer.bin", "random_states_0.pkl"])
def test_the_state_of_a_training_is_data(tmp_path, file):
    """A run folder from elsewhere, resumed: accelerate reads pickles."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 2)
    accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    save_state(accelerator, tmp_path, TrainingState())
    (tmp_path / "state/digests.json").unlink()  # as a state of an older version, or with digests of its maker
    with open(tmp_path / "state" / file, "wb") as out:
        pickle.dump({"state": Runs(os.mkdir, str(tmp_path / "ran"))}, out, 2)
    if file == "optimizer.bin":  # accelerate goes on without random states
        with pytest.raises(ArtefactError, match=r"a damaged state \(UnpicklingError: more than plain data") as caught:
            resume(lambda _: accelerator, tmp_path)
        assert "weights_only" not in str(caught.value) and "\n" not in str(caught.value)
    else:
        resume(lambda _: accelerator, tmp_path)
    assert not (tmp_path / "ran").exists()
