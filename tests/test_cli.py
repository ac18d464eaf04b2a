"""The console script: every module that is a command is one of its commands, and its options are the recorded ones."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
import typer
from checkout import COMMANDS
from typer.testing import CliRunner

from lexvl_anserini.cli import Command, expanded, make_app

ROOT = Path(__file__).parents[1]
# Every option of every command: names, type, limits and default, in the order of the help. A change of the command
# line is a change of this file.
OPTIONS: dict[str, list[str]] = json.loads((ROOT / "tests/golden/cli/options.json").read_text(encoding="utf-8"))


def test_every_command_is_listed() -> None:
    found = set()
    for package in ("lexvl_anserini", "eval"):
        for path in (ROOT / package).rglob("*.py"):
            if re.search(r"^(def command\(|command = )", path.read_text(encoding="utf-8"), re.MULTILINE):
                found.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert found == set(COMMANDS.values())
    assert len(set(COMMANDS.values())) == len(COMMANDS)


def option_lines(command: Command) -> list[str]:
    """One line for each option of a command, in the order of its help."""
    annotations = {name: p.annotation for name, p in inspect.signature(command, eval_str=True).parameters.items()}
    lines = []
    for option in typer.main.get_command(make_app(command)).params:
        if option.name not in annotations:
            continue
        kind, about = get_args(annotations[option.name])
        limits = "".join(f" {end}={getattr(about, end)}" for end in ("min", "max") if getattr(about, end) is not None)
        default = "required" if option.required else f"default {option.default!r}"
        names = " ".join((*option.opts, *option.secondary_opts))
        lines.append(f"{names}: {inspect.formatannotation(kind)}{limits}, {default}")
    return lines


def test_recorded_commands() -> None:
    assert list(OPTIONS) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_the_recorded_ones(name: str) -> None:
    assert option_lines(import_module(COMMANDS[name]).command) == OPTIONS[name]


@dataclass(frozen=True)
class Where:
    path: Annotated[str, typer.Option(help="A path.")]
    limit: Annotated[int | None, typer.Option("--max", min=1, help="At most.")] = None


@dataclass(frozen=True)
class Seen(Where):
    bits: Annotated[list[int], typer.Option(help="Several.")] = field(default_factory=lambda: [4, 8])


seen: list[Any] = []


@expanded
def toy(
    first: Annotated[str, typer.Argument(help="First.")], where: Seen, last: Annotated[int, typer.Option()] = 3
) -> None:
    """Shows its options.

    Example: toy a --path b
    """
    seen[:] = [first, where, last]


def test_dataclasses_are_expanded_in_place() -> None:
    assert option_lines(toy) == [
        "first: str, required",
        "--path: str, required",
        "--max: int | None min=1, default None",
        "--bits: list[int], default [4, 8]",
        "--last: int, default 3",
    ]
    done = CliRunner().invoke(make_app(toy), ["a", "--path", "b", "--max", "2", "--bits", "1", "--last", "4"])
    assert done.exit_code == 0 and seen == ["a", Seen("b", 2, [1]), 4]
    assert CliRunner().invoke(make_app(toy), ["a", "--path", "b", "--max", "0"]).exit_code == 2
    assert CliRunner().invoke(make_app(toy), ["a"]).exit_code == 2
    shown = CliRunner().invoke(make_app(toy), ["--help"]).stdout
    assert "Shows its options." in shown and "A path." in shown and "Example: toy a --path b" in shown


def test_an_expanded_command_is_called_with_keywords() -> None:
    toy(first="a", path="b")
    assert seen[1] == Seen("b", None, [4, 8])
    with pytest.raises(TypeError, match="unknown"):
        toy(first="a", path="b", unknown=1)
