"""What .ci/run does: the commands of README.md first, as a reader runs them; then every extra with the other tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.extended

# Programs of the scratch checkout: each notes its name, its arguments and the variables that it sees.
NOTES = """#!/usr/bin/env bash
{ echo "$0 $*"; env -0 | tr '\\n\\0' ' \\n' | grep -Ev '^(_|SHLVL|PWD|OLDPWD|PS1)=' | sort; echo; } >>"$PWD/notes"
[ "$0 $*" != "${FAILS:-}" ]
"""
# The Python of the environment that the first command makes; `-m venv FOLDER` makes another one.
PYTHON = """
mkdir -p .venv/bin
echo 'mkdir -p "$3/bin" && touch "$3/bin/activate"' >.venv/bin/python
chmod +x .venv/bin/python
"""


def run(folder: Path, environment: dict[str, str]) -> tuple[int, list[tuple[str, list[str]]]]:
    """Runs .ci/run in a scratch checkout with the README.md of this one; returns its exit code and the notes."""
    for name in (".ci", ".venv/bin", "runs", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / ".venv/bin/left").touch()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    shutil.copy(ROOT / "README.md", folder)
    (folder / "runs/quickstart.sh").write_text(f"set -e\ntest ! -e .venv\n{PYTHON}{NOTES}")
    for script in ("tests/run.sh", "tests/browser.sh"):
        (folder / script).write_text(NOTES)
    done = subprocess.run(["bash", ".ci/run"], cwd=folder, env=environment, capture_output=True, text=True)
    notes = (folder / "notes").read_text().strip().split("\n\n")
    return done.returncode, [(note.split("\n")[0], note.split("\n")[1:]) for note in notes]


def test_the_commands_of_the_readme_come_first_with_the_variables_of_a_reader(tmp_path: Path) -> None:
    reader = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    code, notes = run(tmp_path / "checkout", {**reader, "VIRTUAL_ENV": "/nowhere"})
    commands = [command for command, _ in notes]
    assert code == 0 and commands == [
        "runs/quickstart.sh ",
        "tests/run.sh ",
        "tests/run.sh --lint",
        "tests/browser.sh --install",
        "tests/run.sh --lint",
        "tests/run.sh --rest",
    ]
    assert all(variables == sorted(f"{name}={value}" for name, value in reader.items()) for _, variables in notes[:3])
    assert all("LEXVL_TEST_EXTRAS=test-all" in variables for _, variables in notes[3:])


@pytest.mark.parametrize("command", ["runs/quickstart.sh ", "tests/run.sh ", "tests/run.sh --rest"])
def test_a_command_that_fails_ends_it(tmp_path: Path, command: str) -> None:
    code, notes = run(tmp_path / "checkout", {**os.environ, "FAILS": command})
    assert code != 0 and notes[-1][0] == command
