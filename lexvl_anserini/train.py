"""Trains encoders by a recipe: `python -m lexvl_anserini.train` is `lexvl train`, a command of a plug-in."""

from lexvl_anserini.cli import run_row

if __name__ == "__main__":
    run_row("train")
