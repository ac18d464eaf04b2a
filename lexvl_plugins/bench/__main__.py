"""python -m lexvl_plugins.bench."""

from lexvl_anserini.cli import run
from lexvl_plugins.bench.command import command

if __name__ == "__main__":
    run(command)
