"""An album that is killed, whose calls fail, that has no room, or that is not alone."""
# ruff: noqa: F401  tests and a fixture of the core, with the command of this world

from collections.abc import Iterator
from pathlib import Path

import pytest
from worlds import FIXTURES, Task, World

from tests.attack.test_attack_commands import (
    disk,
    test_a_failing_call,
    test_a_full_disk,
    test_a_read_only_disk,
    test_killed_at_a_call,
    test_killed_at_a_moment,
    test_two_writers_of_one_output,
)

pytestmark = pytest.mark.heavy
PHOTOS = ["photos", FIXTURES / "squares", "a red square", "--checkpoint", "demo-vdr", "--device", "cpu"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, golden: Path) -> Iterator[World]:
    album = Task([*PHOTOS, "--output", "IN/album"], "album", index="index", takes_long=True, again="")
    world = World(tmp_path_factory.mktemp("world"), golden / "splade/ckpt_bert", lambda world: {"photos": album})
    yield world
    world.commands.close()
