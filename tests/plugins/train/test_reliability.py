"""Training on a full disk, and after a kill at any call that changes a file."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest
from faults import Ended, faults, mounted, resize

from lexvl_anserini.ground.errors import ArtefactError
from lexvl_plugins.train.loop import train
from tests.plugins.train.test_train import corpus, recipe_of, trained  # noqa: F401
from tests.plugins.train.tiny_training import same_weights


def test_a_full_disk_ends_training_in_one_line(corpus: str, trained: Path, tmp_path: Path) -> None:  # noqa: F811
    """Before, it died by SIGBUS in the middle of the images, without a word."""
    with mounted(tmp_path / "small", "16k") as disk:
        for size in (16, 20, 24, 28, 32, 40, 64, 96, 128, 160, 192, 256):
            resize(disk, f"{size}k")
            with pytest.raises(ArtefactError, match=r"small/run.*: the disk is full.*free some space"):
                train(recipe_of(corpus), disk / "run", device="cpu")
        resize(disk, "16m")
        assert same_weights(train(recipe_of(corpus), disk / "run", device="cpu"), trained)
        assert sorted(path.name for path in (disk / "run").glob("*.part")) == []


def test_no_room_for_the_images_says_how_much_is_needed(corpus, tmp_path, monkeypatch):  # noqa: F811
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(
        ArtefactError, match=rf"stored-pixels-training-\w{{16}}.npy: the disk is full \({12 * 16 * 16 * 3:,} bytes need"
    ):
        train(recipe_of(corpus), tmp_path, device="cpu")
    assert not list(tmp_path.glob("stored-*"))


def test_killed_training_ends_with_the_same_weights(corpus: str, trained: Path, tmp_path: Path) -> None:  # noqa: F811
    """At some of its calls; the attack chooses others at random."""
    with faults(tmp_path / "whole") as whole:
        train(recipe_of(corpus), tmp_path / "whole", device="cpu")
    renaming = [n for n, call in enumerate(whole.calls, 1) if call.startswith(("replace", "rename", "exchange"))]
    chosen = {*renaming[2::4], renaming[-1], len(whole.calls)}
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    for number in sorted(chosen):
        folder = tmp_path / str(number)
        with pytest.raises(Ended), faults(folder, number, after=number % 2 == 0):
            train(recipe_of(corpus), folder, device="cpu")
        assert same_weights(train(recipe_of(corpus), folder, device="cpu"), trained), whole.calls[number - 1]
        assert sorted(path.name for path in folder.iterdir()) == names, whole.calls[number - 1]


@pytest.mark.parametrize("kilobytes", [1, 20, 40])
def test_a_limit_of_file_sizes_ends_training_in_one_line(kilobytes, corpus, tmp_path):  # noqa: F811
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, most))
    try:
        with pytest.raises(ArtefactError, match="ulimit -f"):
            train(recipe_of(corpus), tmp_path / "run", device="cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
