"""runs/photos.sh, which installs what it needs."""

import shutil
import subprocess

import pytest
from declared import ROOT

from tests.project.test_setup import Machine, installed

pytestmark = pytest.mark.extended


def test_photos_are_found_from_where_the_user_is(tmp_path):
    machine = Machine(tmp_path)
    shutil.copy(ROOT / "runs/photos.sh", machine.folder / "runs/photos.sh")
    machine.python("3.13")
    machine.program("lexvl", '#!/bin/sh\necho "$PWD: $*"\n')

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return machine.bash("checkout/runs/photos.sh", *arguments, cwd=tmp_path)

    refused = run()
    assert refused.returncode == 2 and refused.stderr.startswith("usage: ") and machine.noted() == []
    lost = run("my photos", "two dogs")
    assert (lost.returncode, lost.stderr) == (2, "runs/photos.sh: my photos: no such folder\n"), "before any set-up"
    assert machine.noted() == []
    (tmp_path / "my photos").mkdir()
    done = run("my photos", "two dogs")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}: photos my photos two dogs\n"), done.stderr
    assert machine.noted() == [installed("3.13", "photos,plots")]
