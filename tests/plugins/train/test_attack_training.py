"""Training that is killed, whose states are damaged, or whose recipe or data change between two calls.

It ends with the weights of undisturbed training, or with one line.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from damage import damaged, one_line
from faults import ERRORS, Ended, faults
from rounds import Rounds

from lexvl_anserini.ground.errors import LexvlError
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.run_folder import OLD_STATE, STATE
from tests.plugins.train.test_train import recipe_of
from tests.plugins.train.tiny_training import same_weights, write_squares

pytestmark = [pytest.mark.heavy, pytest.mark.attack]

STEPS = 6


class Trained:
    """A corpus, the undisturbed model, the calls of undisturbed training, and a run with two states."""

    def __init__(self, folder: Path):
        self.images, self.stopped = folder / "images", folder / "stopped"
        self.images.mkdir()
        self.corpus = write_squares(self.images, train=6, word="square")
        with faults(folder / "whole") as counted:
            self.model = self.train(folder / "whole")
        self.calls = counted.calls
        self.train(self.stopped, stop_after=5)
        assert {STATE, OLD_STATE} <= {path.name for path in self.stopped.iterdir()}

    def train(self, output: Path, corpus: str = "", changes: Any = None, **options: Any) -> Path:
        return train(recipe_of(corpus or self.corpus, **changes or {}), output, device="cpu", **options)

    def ends_as_undisturbed(self, output: Path, what: object) -> bool:
        """Trains to the end; False if one line refuses that."""
        try:
            model = self.train(output)
        except LexvlError as error:
            one_line(error)
            return False
        assert same_weights(model, self.model), what
        return True


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.mark.attack(share=2)
def test_killed_or_failing_training_ends_with_the_same_weights(rounds: Rounds, world: Trained) -> None:
    """Up to three times in a row, at calls around its states more often than at others."""
    saving = [number for number, call in enumerate(world.calls, 1) if STATE in call or "step.json" in call]
    for _seed, random, folder in rounds:
        done = []
        for _ in range(random.randint(1, 3)):
            near = random.choice(saving) + random.randint(-9, 4)
            number = random.choice([random.randint(1, len(world.calls)), max(1, near)])
            effect, after = random.choice(["end", "end", *ERRORS]), random.random() < 0.5
            done.append((number, effect, after))
            try:
                with faults(folder, number, effect, after):
                    world.train(folder, stop_after=random.choice([None, 1, 3, 5]))
            except Ended:
                rounds.count("trainings killed")
            except LexvlError as error:
                one_line(error)
                rounds.count("trainings with a failing call")
        assert world.ends_as_undisturbed(folder, done), done
        assert not list(folder.glob("*.part")) and not list(folder.glob("stored-*")), done


def bytes_change(random: Random, path: Path) -> None:
    path.write_bytes(damaged(random, path.read_bytes()))


def one_bit_flips(random: Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def vanishes(random: Random, path: Path) -> None:
    path.unlink()


def is_of_the_other_state(random: Random, path: Path) -> None:
    other = path.parents[1] / (STATE if path.parent.name == OLD_STATE else OLD_STATE) / path.name
    path.write_bytes(other.read_bytes())


def becomes_a_folder(random: Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_number_changes(random: Random, path: Path) -> None:
    """In step.json, which is text."""
    path = path.with_name("step.json")
    content = json.loads(path.read_text())
    key = random.choice(list(content))
    content[key] = random.choice([0, 1, 3, 99, -1, 1.5, "x", None, [], [1.5], {"a": [1]}, {}])
    path.write_text(json.dumps(content))


DAMAGES: tuple[Callable[[Random, Path], None], ...] = (
    bytes_change, one_bit_flips, one_bit_flips, vanishes, vanishes, is_of_the_other_state, becomes_a_folder,
    a_number_changes,
)  # fmt: skip


def test_damaged_states_are_never_trained_from(rounds: Rounds, world: Trained) -> None:
    for _seed, random, home in rounds:
        folder, done = home / "run", []
        shutil.copytree(world.stopped, folder)
        for state in random.choice([[STATE], [STATE], [STATE, OLD_STATE], [OLD_STATE]]):
            path, damage = random.choice(sorted((folder / state).iterdir())), random.choice(DAMAGES)
            damage(random, path)
            done.append((state, path.name, damage.__name__))
        ended = world.ends_as_undisturbed(folder, done)
        assert ended or len(done) == 2, done
        rounds.count("damaged states", len(done))


def test_changes_between_two_calls_are_refused(rounds: Rounds, world: Trained) -> None:
    """Another recipe, or other data under the same name; with the first ones again, the run goes on."""
    for _seed, random, home in rounds:
        folder, images = home / "run", home / "images"
        shutil.copytree(world.images, images)
        corpus = f"karpathy:{images}/dataset.json,{images}"
        recipe, kind = {}, random.choice(["recipe", "picture", "caption", "split"])
        if kind == "recipe":
            changed = random.choice(["seed", "state_every", "optimisation", "augmentation"])
            steps = {"steps": STEPS, "batch_size": random.choice([2, 3]), "warmup_steps": 2}
            recipe = {changed: {"optimisation": steps, "augmentation": {"shift": 2}}.get(changed, 5)}
        world.train(folder, corpus, stop_after=random.randint(1, 5))
        dataset = images / "dataset.json"
        before = {path: path.read_bytes() for path in images.iterdir()}
        if kind == "picture":
            first, last = images / "0.png", images / f"{random.choice([1, 2, 6])}.png"
            last.write_bytes(first.read_bytes() if random.random() < 0.5 else last.read_bytes()[:-30])
        elif kind != "recipe":
            data = json.loads(dataset.read_text())
            entry = random.choice(data["images"])
            if kind == "caption":
                random.choice(entry["sentences"])["raw"] += " on a beach"
            else:
                entry["split"] = "val" if entry["split"] == "train" else "train"
            dataset.write_text(json.dumps(data))
        with pytest.raises(LexvlError) as refused:
            world.train(folder, corpus, recipe)
        one_line(refused.value)
        for path, content in before.items():
            path.write_bytes(content)
        assert same_weights(world.train(folder, corpus), world.model), kind
        rounds.count("changes between two trainings")
