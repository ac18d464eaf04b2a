"""Two writers of one output at once, and searchers beside writers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from rounds import Rounds
from test_attack_kills import one_line, undisturbed, whole, world  # noqa: F401
from worlds import World, placed

pytestmark = [pytest.mark.heavy, pytest.mark.attack]


def test_two_writers_of_one_output(
    rounds: Rounds,
    world: World,  # noqa: F811
    undisturbed: dict[str, tuple[object, int]],  # noqa: F811
) -> None:
    """Each either makes the whole result, finds it finished, or gets one line; one may be killed."""
    for one in rounds:
        name = one.random.choice(list(world.tasks))
        expected, _ = whole(world, undisturbed, name)
        task, folder = world.tasks[name], one.folder / "shared"
        world.prepare(task, folder)
        children = []
        for _ in range(one.random.randint(2, 3)):
            children.append(world.commands.start(placed(task.arguments, folder), folder))
            time.sleep(one.random.choice((0, 0.05, 0.3, 1)) * one.random.random())
        killed = one.random.random() < 0.3
        if killed:
            time.sleep(one.random.random())
            os.kill(children[0], signal.SIGKILL)
        outcomes = [world.commands.wait(child) for child in children]
        for outcome in outcomes[killed:]:
            assert outcome.code == 0 or (outcome.code == 1 and one_line(outcome)), (name, outcome)
            assert outcome.code == 0 or "another process is writing it" in outcome.err, (name, outcome)
        assert killed or any(outcome.code == 0 for outcome in outcomes), (name, outcomes)
        if killed:
            world.made(*placed(task.arguments, folder))
        assert world.state(task, folder) == expected, name
        litter = [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".old"))]
        assert set(litter) <= {"state.old"}, (name, litter)
        rounds.count("outputs with several writers")
        rounds.count("writers refused", sum(outcome.code == 1 for outcome in outcomes))


def test_searchers_beside_writers(rounds: Rounds, world: World) -> None:  # noqa: F811
    """Every run is of one state of the index: as it was, or after one of the changes."""
    runs: dict[str, bytes] = {}

    def searched(index: Path, run: Path) -> list[object]:
        topics = f"beir:{world.folder / 'texts'}"
        return ["search", "--index", index, "--topics", topics, "--output", run, "--overwrite"]

    def changes(index: Path) -> list[list[object]]:
        change = ["index", "--index", index]
        return [
            [*change, world.folder / "alone-impacts", "--append"],
            [*change, "--delete-ids", world.folder / "ids.txt"],
            [*change, world.folder / "more-impacts", "--replace"],
        ]

    for one in rounds:
        if not runs:
            world.prepare(world.tasks["append"], world.folder / "states")
            index, run = world.folder / "states/index", world.folder / "states/run.trec"
            for number, change in enumerate([[], *changes(index)]):
                world.made(*change, *([";"] if change else []), *searched(index, run))
                runs[str(number)] = run.read_bytes()
        folder = one.folder / "shared"
        world.prepare(world.tasks["append"], folder)
        index = folder / "index"
        together: list[object] = []
        for change in changes(index):
            together += [*([";"] if together else []), *change]
        writer = world.commands.start(together, folder)
        readers = []
        for number in range(one.random.randint(1, 2)):
            searching = [searched(index, folder / f"{number}.{again}.trec") for again in range(6)]
            words = [word for search in searching for word in (";", *search)][1:]
            readers.append(world.commands.start(words, folder))
        for child in (writer, *readers):
            outcome = world.commands.wait(child)
            assert outcome.code == 0, outcome
        states = list(runs.values())
        for number in range(len(readers)):
            seen = [states.index((folder / f"{number}.{again}.trec").read_bytes()) for again in range(6)]
            assert seen == sorted(seen), seen
            rounds.count("searches beside a writer", len(seen))
