"""The commands by the names that their modules have in a checkout, where the package lexvl_eval is the folder eval/."""

from __future__ import annotations

from lexvl_anserini import cli

COMMANDS = {name: module.replace("lexvl_eval", "eval", 1) for name, module in cli.COMMANDS.items()}
