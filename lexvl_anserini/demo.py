"""Runs the whole line on drawn images: `python -m lexvl_anserini.demo` is `lexvl demo`, a command of a plug-in."""

from lexvl_anserini.cli import run_row

if __name__ == "__main__":
    run_row("demo")
