"""Commands in the test's own process, and processes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from lexvl_anserini.cli import Command, make_app


def invoked(command: Command, *arguments: Any) -> str:
    """What a command prints; what it raises is raised."""
    result = CliRunner().invoke(make_app(command), [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


def run_process(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """A process that has ended, with what it printed; `cwd`, `env` and `input` are those of `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def read_output(command: Sequence[str | Path], **options: Any) -> str:
    """What a process prints that must succeed."""
    done = run_process(command, **options)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-5000:]}\n{done.stderr[-4000:]}"
    return done.stdout
