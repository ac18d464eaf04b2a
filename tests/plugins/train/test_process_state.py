"""Training leaves a user's process as it was (tests/project/test_process_state.py)."""

from functools import partial
from pathlib import Path

from lexvl_plugins.train.loop import train
from tests.plugins.train.test_texts import recipe_of
from tests.plugins.train.tiny_training import write_pairs
from tests.project.test_process_state import assert_unchanged


def calls(folder: Path, golden: Path):
    """The second one goes on from the state of the first."""
    recipe = recipe_of(write_pairs(folder), "svdr")
    for steps in (2, None):
        yield f"train {steps or 'on'}", partial(train, recipe, folder / "trained", device="cpu", stop_after=steps)


def test_training_leaves_the_process_as_it_was(tmp_path: Path, golden: Path) -> None:
    assert_unchanged(__name__, tmp_path, golden, {})
