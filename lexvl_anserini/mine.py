"""Mines hard negatives from a run: `python -m lexvl_anserini.mine` is `lexvl mine`, a command of a plug-in."""

from lexvl_anserini.cli import run_row

if __name__ == "__main__":
    run_row("mine")
