"""Training as a command that is killed, whose calls fail, that has no room, or that is not alone."""
# ruff: noqa: F401  tests and a fixture of the core, with the commands of this world

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from tiny_encoders import tiny_vit
from worlds import FIXTURES, RUNS, Task, World, without

from tests.attack.test_attack_commands import (
    disk,
    test_a_failing_call,
    test_a_full_disk,
    test_a_read_only_disk,
    test_killed_at_a_call,
    test_killed_at_a_moment,
    test_two_writers_of_one_output,
)
from tests.plugins.train.test_stages import recipe_of

pytestmark = pytest.mark.heavy

TIMELESS = {
    **RUNS,
    "log.jsonl": lambda data: b"".join(map(without(seconds=0), data.splitlines())),
    "step.json": without(seconds=0),
    "random_states_0.pkl": lambda data: b"",
    "digests.json": lambda data: b"",
    "training.json": without(validation=0),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, golden: Path) -> Iterator[World]:
    checkpoint = golden / "splade/ckpt_bert"
    world = World(tmp_path_factory.mktemp("world"), checkpoint, lambda world: trainings(world.folder, checkpoint))
    yield world
    world.commands.close()


def trainings(folder: Path, checkpoint: Path) -> Mapping[str, Task]:
    """A recipe of one stage, and one of two."""
    shutil.copytree(FIXTURES / "squares", folder / "squares")
    recipe, place = (FIXTURES / "tiny.yaml").read_text(), "squares/dataset.json,squares"
    (folder / "tiny.yaml").write_text(recipe.replace(place, f"{folder}/squares/dataset.json,{folder}/squares"))
    corpus = f"karpathy:{folder}/squares/dataset.json,{folder}/squares"
    networks = {"text": str(checkpoint), "image": str(tiny_vit(folder / "vit"))}
    (folder / "stages.yaml").write_text(yaml.safe_dump(recipe_of(corpus, networks).model_dump(mode="json")))
    options = ["--output", "IN/t", "--device", "cpu", "--threads", 1]
    return {
        name: Task(["train", "--recipe", folder / f"{name}.yaml", *options], "t", takes_long=True, timeless=TIMELESS)
        for name in ("tiny", "stages")
    }
