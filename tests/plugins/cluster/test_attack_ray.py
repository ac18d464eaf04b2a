"""Ray: processes and nodes are killed at random moments and tasks raise; the bytes are those of one process.

A command ends in one line or as undisturbed; the same command again, on a cluster that is whole, finishes it.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from damage import one_line
from rounds import Rounds

from lexvl_anserini.ground.errors import DataError, LexvlError
from lexvl_plugins.cluster.encode import command as encode
from lexvl_plugins.cluster.ray_cluster import RayRunner
from tests.plugins.cluster import test_ray_line as line
from tests.plugins.cluster.ray_nodes import running_cluster

pytestmark = [pytest.mark.heavy, pytest.mark.attack(share=2)]

corpus = line.corpus


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes."""
    with running_cluster() as cluster:
        yield cluster


def raising(work: Callable[[int], Any], seed: int, marks: Path) -> Callable[[int], Any]:
    """Work of which some calls raise or end their process, once for each part, and now and then a part always."""
    final, lost, marks_of = DataError, os._exit, str(marks)

    def worked(number: int) -> Any:
        draw, mark = Random(f"{seed}/{number}"), Path(marks_of, f"{seed}-{number}")
        kind = draw.choice(["", "", "", "", "error", "ours", "exit", "after", "always" if draw.random() < 0.2 else ""])
        if kind == "always":
            raise final(f"part {number}: no such document")
        first = not mark.exists()
        mark.touch()
        result = work(number) if kind in ("", "after") or not first else None
        if kind and first:
            if kind == "exit":
                lost(1)
            raise (OSError if kind != "ours" else LexvlError)(f"part {number} fails")
        return result

    return worked


def test_killed_and_raising_tasks(rounds: Rounds, cluster: Any, corpus: Any) -> None:
    folder, options = corpus
    runner = {"runner": "ray", "address": cluster.address}
    for seed, random, home in rounds:
        name, results = f"attack-{seed}", RayRunner.run
        steps: tuple[Callable[[], None], ...] = (
            lambda name=name: encode(**options, output=str(folder / name / "shards"), **runner),  # type: ignore[misc]
            lambda name=name: line.indexed(folder, name, **runner),  # type: ignore[misc]
            lambda name=name: line.searched(folder, name, **runner),  # type: ignore[misc]
        )
        for step in steps:
            with pytest.MonkeyPatch.context() as patch:
                killer = line.Killer(cluster, patch, random.random())
                killer.points = sorted(random.sample(range(1, 13), random.randint(0, 3)))
                if random.random() < 0.6:
                    drawn = random.getrandbits(32)

                    def wrapped(self: Any, work: Any, *others: Any, drawn: int = drawn, home: Path = home) -> Any:
                        return results(self, raising(work, drawn, home), *others)  # noqa: B023

                    patch.setattr(RayRunner, "run", wrapped)
                try:
                    step()
                except LexvlError as error:
                    one_line(error)
                    rounds.count("commands on Ray that failed in one line")
                rounds.count("processes and nodes of Ray killed", len(killer.killed))
            step()
        line.same_as_local(folder, name)
        shutil.rmtree(folder / name)
