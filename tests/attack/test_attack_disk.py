"""Full disks and read-only folders: one line, nothing is lost, and the same command succeeds when there is room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rounds import Rounds
from small_disks import mounted, resize
from test_attack_kills import ends_as_undisturbed, one_line, several, undisturbed, whole, world  # noqa: F401
from worlds import World, contents, placed

pytestmark = [pytest.mark.heavy, pytest.mark.attack]

# Room that a command has, in KiB: pages of files and folders. Most of the tasks need between 10 and 100.
ROOM = (4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    with mounted(tmp_path / "disk", "16m") as mount:
        yield mount


def test_a_full_disk(
    rounds: Rounds,
    world: World,  # noqa: F811
    undisturbed: dict[str, tuple[object, int]],  # noqa: F811
    disk: Path,
) -> None:
    for one in rounds:
        name = one.random.choice(list(world.tasks))
        expected, _ = whole(world, undisturbed, name)
        folder = disk / "full"
        for _ in several(world, name):
            resize(disk, "16m")
            world.prepare(world.tasks[name], folder)
            before = contents(folder)
            used = sum(-(-len(data) // 4096) * 4 for data in before.values())
            resize(disk, f"{used + one.random.choice(ROOM)}k")
            failed = world.commands.run(placed(world.tasks[name].arguments, folder), folder)
            assert failed.code == 0 or (failed.code == 1 and one_line(failed)), (name, failed)
            if failed.code:
                assert "the disk is full" in failed.err, (name, failed)
                assert before.items() <= contents(folder).items(), (name, "something was lost")
            resize(disk, "16m")
            ends_as_undisturbed(world, name, folder, expected, "full disk")
            subprocess.run(["rm", "-r", str(folder)], check=True)
            rounds.count("commands on a full disk", failed.code != 0)


def test_a_read_only_disk(
    rounds: Rounds,
    world: World,  # noqa: F811
    undisturbed: dict[str, tuple[object, int]],  # noqa: F811
    disk: Path,
) -> None:
    """What is finished stays finished; everything else is one line."""
    for one in rounds:
        name = one.random.choice(list(world.tasks))
        expected, _ = whole(world, undisturbed, name)
        task, folder = world.tasks[name], disk / "read-only"
        world.prepare(task, folder)
        finished = one.random.random() < 0.5
        plain = [word for word in placed(task.arguments, folder) if word != "--overwrite"]
        if finished:
            world.made(*placed(task.arguments, folder))
        before = contents(folder)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        outcome = world.commands.run(plain if finished else placed(task.arguments, folder), folder)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert contents(folder) == before
        if finished and name != "sheet":
            assert outcome.code == 0, (name, outcome)
        else:
            assert outcome.code == 1 and one_line(outcome), (name, outcome)
            assert "cannot be written" in outcome.err, (name, outcome)
        ends_as_undisturbed(world, name, folder, expected, "read-only")
        subprocess.run(["rm", "-r", str(folder)], check=True)
        rounds.count("commands on a read-only disk")
