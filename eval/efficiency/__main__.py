"""python -m eval.efficiency."""

from lexvl_anserini.cli import run

from .command import command

if __name__ == "__main__":
    run(command)
