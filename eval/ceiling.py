"""Prints the best possible recall on the demo's captions: `python -m eval.ceiling --split test`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lexvl_anserini.cli import Verbose, run

from . import options
from .analyses.caption_ceiling import ceiling
from .report.render import check_format, render
from .report.tables import ceiling_table


def command(
    split: Annotated[list[str] | None, typer.Option(help="train, val or test; repeatable. Default test.")] = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Print the best R@1, R@5 and R@10 that the demo's captions allow, text to image.

    Example: python -m eval.ceiling --split val --split test
    """
    check_format(output_format)
    rows = [ceiling(name) for name in split or ["test"]]
    sys.stdout.write(render(ceiling_table(rows), rows, output_format))


if __name__ == "__main__":
    run(command)
