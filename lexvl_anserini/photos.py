"""Searches a folder of pictures: `python -m lexvl_anserini.photos` is `lexvl photos`, a command of a plug-in."""

from lexvl_anserini.cli import run_row

if __name__ == "__main__":
    run_row("photos")
