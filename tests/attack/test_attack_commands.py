"""Commands that are killed, fail, have no room or are not alone: the same again ends as if nothing had happened."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import ERRORS, Outcome, mounted, resize
from rounds import Rounds
from worlds import World, contents

# Room that a command has, in KiB: pages of files and folders. Most of the tasks need between 10 and 100.
ROOM = (4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128)

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, golden: Path) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"), golden / "splade/ckpt_bert")
    yield world
    world.commands.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "16m") as mount:
        yield mount


def strike(rounds: Rounds, world: World, effects: tuple[str, ...], what: str) -> Iterator[tuple[object, Outcome]]:
    """Commands with one fault each, whose repetition ends as an undisturbed one: what was chosen, and the outcome."""
    for _seed, random, home in rounds:
        name = random.choice(list(world.tasks))
        _, calls = world.whole(name)
        for attempt in world.tries(name):
            folder, effect = home / f"struck {attempt}", random.choice(effects)
            number, after = random.randint(1, calls), effect == "kill" and random.random() < 0.5
            outcome = world.commands.run(world.prepare(name, folder), folder, number, effect, after)
            yield (name, number, effect, after, outcome), outcome
            world.ends_as_undisturbed(name, folder, (number, effect, after))
            rounds.count(what, outcome.code != 0)


@pytest.mark.attack(share=2)
def test_killed_at_a_call(rounds: Rounds, world: World) -> None:
    for chosen, killed in strike(rounds, world, ("kill",), "commands killed at a call"):
        assert killed.code in (0, -signal.SIGKILL), chosen


@pytest.mark.attack(share=2)
def test_a_failing_call(rounds: Rounds, world: World) -> None:
    """The command goes on, or ends with one line; the same command again succeeds when the disk works again."""
    for chosen, failed in strike(rounds, world, ERRORS, "commands with a failing call"):
        assert failed.code == 0 or failed.one_line, chosen


@pytest.mark.attack(share=2)
def test_killed_at_a_moment(rounds: Rounds, world: World) -> None:
    """Also within Java, and twice in a row."""
    for _seed, random, home in rounds:
        name = random.choice([name for name, task in world.tasks.items() if task.takes_long])
        folder = home / "killed"
        arguments = world.prepare(name, folder)
        for _ in range(random.randint(1, 2)):
            child = world.commands.start(arguments, folder)
            time.sleep(random.uniform(0.3, 2.2))
            os.kill(child, signal.SIGKILL)
            rounds.count("commands killed at a moment", world.commands.wait(child).code != 0)
        world.ends_as_undisturbed(name, folder, "a moment")


@pytest.mark.attack
def test_a_full_disk(rounds: Rounds, world: World, disk: Path) -> None:
    """One line, nothing is lost, and the same command succeeds when there is room."""
    folder = disk / "full"
    for _seed, random, _ in rounds:
        name = random.choice(list(world.tasks))
        for _ in world.tries(name):
            resize(disk, "16m")
            arguments = world.prepare(name, folder)
            before = contents(folder)
            used = sum(-(-len(data) // 4096) * 4 for data in before.values())
            resize(disk, f"{used + random.choice(ROOM)}k")
            failed = world.commands.run(arguments, folder)
            if failed.code:
                assert failed.one_line and "the disk is full" in failed.err, (name, failed)
                assert before.items() <= contents(folder).items(), (name, "something was lost")
            resize(disk, "16m")
            world.ends_as_undisturbed(name, folder, "full disk")
            subprocess.run(["rm", "-r", str(folder)], check=True)
            rounds.count("commands on a full disk", failed.code != 0)


@pytest.mark.attack
def test_a_read_only_disk(rounds: Rounds, world: World, disk: Path) -> None:
    """What is finished stays finished; everything else is one line."""
    folder = disk / "read-only"
    for _seed, random, _ in rounds:
        name, finished = random.choice(list(world.tasks)), random.random() < 0.5
        arguments = world.prepare(name, folder)
        if finished:
            world.made(*arguments)
            arguments = [word for word in arguments if word != "--overwrite"]
        before = contents(folder)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        outcome = world.commands.run(arguments, folder)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert contents(folder) == before
        if finished:
            assert outcome.code == 0, (name, outcome)
        else:
            assert outcome.one_line and "cannot be written" in outcome.err, (name, outcome)
        world.ends_as_undisturbed(name, folder, "read-only")
        subprocess.run(["rm", "-r", str(folder)], check=True)
        rounds.count("commands on a read-only disk")


@pytest.mark.attack
def test_two_writers_of_one_output(rounds: Rounds, world: World) -> None:
    """Each either makes the whole result, finds it finished, or gets one line; one may be killed."""
    for _seed, random, home in rounds:
        name, folder = random.choice(list(world.tasks)), home / "shared"
        arguments = world.prepare(name, folder)
        children = []
        for _ in range(random.randint(2, 3)):
            children.append(world.commands.start(arguments, folder))
            time.sleep(random.choice((0, 0.05, 0.3, 1)) * random.random())
        killed = random.random() < 0.3
        if killed:
            time.sleep(random.random())
            os.kill(children[0], signal.SIGKILL)
        outcomes = [world.commands.wait(child) for child in children]
        for outcome in outcomes[killed:]:
            refused = outcome.one_line and "another process is writing it" in outcome.err
            assert outcome.code == 0 or refused, (name, outcome)
        assert killed or any(outcome.code == 0 for outcome in outcomes), (name, outcomes)
        world.ends_as_undisturbed(name, folder, "several writers", again=killed)
        rounds.count("outputs with several writers")
        rounds.count("writers refused", sum(outcome.code == 1 for outcome in outcomes))


@pytest.mark.attack
def test_searchers_beside_writers(rounds: Rounds, world: World) -> None:
    """Every run is of one state of the index: as it was, or after one of the changes."""
    states: list[bytes] = []
    topics = f"beir:{world.folder / 'texts'}"

    def searched(index: Path, run: Path) -> list[object]:
        return ["search", "--index", index, "--topics", topics, "--output", run, "--overwrite"]

    def changes(index: Path) -> list[list[object]]:
        more = (["alone-impacts", "--append"], ["--delete-ids", "ids.txt"], ["more-impacts", "--replace"])
        named = ([word if word.startswith("--") else world.folder / word for word in words] for words in more)
        return [["index", "--index", index, *words] for words in named]

    for _seed, random, home in rounds:
        if not states:
            world.prepare("append", world.folder / "states")
            index, run = world.folder / "states/index", world.folder / "states/run.trec"
            for change in [[], *changes(index)]:
                world.made(*joined(change, searched(index, run)))
                states.append(run.read_bytes())
        folder = home / "shared"
        world.prepare("append", folder)
        writer = world.commands.start(joined(*changes(folder / "index")), folder)
        runs = [[folder / f"{number}.{again}.trec" for again in range(6)] for number in range(random.randint(1, 2))]
        searches = [joined(*(searched(folder / "index", run) for run in several)) for several in runs]
        readers = [world.commands.start(words, folder) for words in searches]
        for child in (writer, *readers):
            outcome = world.commands.wait(child)
            assert outcome.code == 0, outcome
        for several in runs:
            seen = [states.index(run.read_bytes()) for run in several]
            assert seen == sorted(seen), seen
            rounds.count("searches beside a writer", len(seen))


def joined(*commands: list[object]) -> list[object]:
    """The words of several commands that follow each other in one process."""
    return [word for command in commands if command for word in (";", *command)][1:]
