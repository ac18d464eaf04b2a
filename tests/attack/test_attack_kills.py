"""Kills and failures at every call that changes a file: the same command again ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import ERRORS, Outcome
from rounds import Rounds
from worlds import World, placed

# Commands that take long enough, most of them in Java.
AT_A_MOMENT = ("index", "index again", "merge", "append", "replace", "delete", "train", "search", "photos")

pytestmark = [pytest.mark.heavy, pytest.mark.attack(share=2)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, golden: Path) -> Iterator[World]:
    """The world of the commands, and their undisturbed results."""
    world = World(tmp_path_factory.mktemp("world"), golden / "splade/ckpt_bert")
    yield world
    world.commands.close()


@pytest.fixture(scope="module")
def undisturbed(world: World) -> dict[str, tuple[object, int]]:
    """By task, once it was asked for: the state after it, and the number of its calls."""
    return {}


def whole(world: World, undisturbed: dict[str, tuple[object, int]], name: str) -> tuple[object, int]:
    """The undisturbed result of a task; its repetition says that it is finished."""
    if name not in undisturbed:
        task, folder = world.tasks[name], world.folder / f"whole {name}"
        world.prepare(task, folder)
        arguments = placed(task.arguments, folder)
        outcome = world.commands.run(arguments, folder)
        assert outcome.code == 0, outcome
        again = world.commands.run([word for word in arguments if word != "--overwrite"], folder)
        assert again.code == 0 and (name in ("sheet", "photos") or "already" in again.err), again
        undisturbed[name] = (world.state(task, folder), outcome.calls)
    return undisturbed[name]


def one_line(outcome: Outcome) -> bool:
    """An error is one line for a user, and nothing of Java's or Python's beside it."""
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    noise = ("Traceback", "Exception in thread", "\tat ", "Exception ignored")
    return len(errors) == 1 and not any(word in outcome.err for word in noise)


def ends_as_undisturbed(world: World, name: str, folder: Path, expected: object, note: object) -> None:
    task = world.tasks[name]
    assert world.state(task, folder, *placed(task.arguments, folder)) == expected, (name, note)
    litter = [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".old"))]
    # The state before the last one stays on purpose, and --overwrite writes anew whatever is there.
    assert set(litter) <= {"state.old"}, (name, note, litter)


def several(world: World, name: str) -> range:
    """Tries in one round: one where Java starts, more where it does not."""
    return range(1 if world.tasks[name].sources else 6)


def test_killed_at_a_call(rounds: Rounds, world: World, undisturbed: dict[str, tuple[object, int]]) -> None:
    for one in rounds:
        name = one.random.choice(list(world.tasks))
        expected, calls = whole(world, undisturbed, name)
        for attempt in several(world, name):
            number, after = one.random.randint(1, calls), one.random.random() < 0.5
            folder = one.folder / f"killed {attempt}"
            world.prepare(world.tasks[name], folder)
            killed = world.commands.run(placed(world.tasks[name].arguments, folder), folder, number, "kill", after)
            assert killed.code in (0, -signal.SIGKILL), (name, number, after, killed)
            ends_as_undisturbed(world, name, folder, expected, (number, after))
            rounds.count("commands killed at a call", killed.code != 0)


def test_a_failing_call(rounds: Rounds, world: World, undisturbed: dict[str, tuple[object, int]]) -> None:
    """The command goes on, or ends with one line; the same command again succeeds when the disk works again."""
    for one in rounds:
        name = one.random.choice(list(world.tasks))
        expected, calls = whole(world, undisturbed, name)
        for attempt in several(world, name):
            number, effect = one.random.randint(1, calls), one.random.choice(ERRORS)
            folder = one.folder / f"failed {attempt}"
            world.prepare(world.tasks[name], folder)
            failed = world.commands.run(placed(world.tasks[name].arguments, folder), folder, number, effect)
            assert failed.code == 0 or (failed.code == 1 and one_line(failed)), (name, number, effect, failed)
            ends_as_undisturbed(world, name, folder, expected, (number, effect))
            rounds.count("commands with a failing call", failed.code != 0)


def test_killed_at_a_moment(rounds: Rounds, world: World, undisturbed: dict[str, tuple[object, int]]) -> None:
    """Also within Java, and twice in a row."""
    for one in rounds:
        name = one.random.choice(
            ["index", "index again", "merge", "append", "replace", "delete", "train", "search", "photos"]
        )
        expected, _ = whole(world, undisturbed, name)
        folder = one.folder / "killed"
        world.prepare(world.tasks[name], folder)
        for _ in range(one.random.randint(1, 2)):
            child = world.commands.start(placed(world.tasks[name].arguments, folder), folder)
            time.sleep(one.random.uniform(0.3, 2.2))
            os.kill(child, signal.SIGKILL)
            rounds.count("commands killed at a moment", world.commands.wait(child).code != 0)
        ends_as_undisturbed(world, name, folder, expected, "a moment")
