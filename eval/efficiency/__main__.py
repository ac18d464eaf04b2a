"""python -m eval.efficiency."""

from eval.efficiency.command import command
from lexvl_anserini.cli import run

if __name__ == "__main__":
    run(command)
