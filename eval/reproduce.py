"""Measures tables of papers: `python -m eval.reproduce` is `lexvl reproduce`, a command of a plug-in."""

from lexvl_anserini.cli import run_row

if __name__ == "__main__":
    run_row("reproduce")
