"""The console script: every module that is a command is one of its commands."""

from __future__ import annotations

import re
from pathlib import Path

from lexvl_anserini.cli import COMMANDS

ROOT = Path(__file__).parents[1]


def test_every_command_is_listed() -> None:
    found = set()
    for package in ("lexvl_anserini", "eval"):
        for path in (ROOT / package).rglob("*.py"):
            if re.search(r"^(def command\(|command = )", path.read_text(encoding="utf-8"), re.MULTILINE):
                found.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert found == set(COMMANDS.values())
    assert len(set(COMMANDS.values())) == len(COMMANDS)
