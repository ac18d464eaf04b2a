"""The checkout: its commands by the names of their modules (lexvl_eval is the folder eval/), and its test data."""

from __future__ import annotations

from pathlib import Path

from lexvl_anserini import cli

COMMANDS = {name: row.module.replace("lexvl_eval", "eval", 1) for name, row in cli.COMMANDS.items()}

GOLDEN = Path(__file__).parent / "golden"
SHARED = Path(__file__).parents[2] / "shared"
