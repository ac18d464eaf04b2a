"""A command in the test's own process."""

from __future__ import annotations

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
