"""Every recipe of texts lowers its loss on eight lines, with a small network in place of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lexvl_anserini.training.loop import train
from lexvl_anserini.training.model_settings import TEXT_KINDS
from lexvl_anserini.training.recipe import read_recipe

RECIPES = Path(__file__).parents[2] / "runs/recipes"
KINDS = {path.stem: yaml.safe_load(path.read_text())["model"]["kind"] for path in sorted(RECIPES.glob("*.yaml"))}
NAMES = [name for name, kind in KINDS.items() if kind in TEXT_KINDS]

# Six layers, as the network that recipes freeze up to its fourth.
SMALL = {"words": 200, "width": 16, "layers": 6, "heads": 2, "max_length": 16}
COLOURS = ("red", "green", "blue", "white", "black", "grey", "pink", "brown")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Boats of eight colours, each with a house of its colour as hard negative, and a teacher's scores."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    entries = [
        {
            "question": f"a {colour} boat",
            "positive_ctxs": [{"text": f"the boat is {colour} and has a bar", "score": 3}],
            "hard_negative_ctxs": [{"text": f"the house is {colour}", "score": 1}],
        }
        for colour in COLOURS
    ]
    path.write_text("\n".join(map(json.dumps, entries)))
    return f"dpr:{path}"


def test_each_kind_of_texts_has_both_recipes() -> None:
    kinds = ("vdr-text", "svdr-text", "dpr", "splade", "bertlex-init")
    assert {f"{kind}-{size}" for kind in kinds for size in ("paper", "small")} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_lowers_its_loss(name: str, pairs: str, tmp_path: Path) -> None:
    path = RECIPES / f"{name}.yaml"
    sides = yaml.safe_load(path.read_text())["model"].keys() & {"query", "document"}
    changes = {
        **{f"model.{side}": SMALL for side in sides},
        "model.saved": "whole",
        "data": {"corpus": pairs},
        "optimisation.steps": 8,
        "optimisation.batch_size": 8,
        "optimisation.learning_rate": 0.01,
        "optimisation.warmup_steps": 1,
        "precision": "no",
        "log_every": 1,
        "state_every": 100,
    }
    train(read_recipe(path, changes), tmp_path, device="cpu")
    losses = [json.loads(line)["loss"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert min(losses[-2:]) < losses[0]
