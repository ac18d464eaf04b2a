"""States whether images' terms are words of their captions: `python -m eval.interpretability --shards impacts/demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, run

from . import options
from .measures.caption_words import named_in
from .report.render import check_format, render
from .report.tables import named_table


def command(
    shards: Annotated[Path, typer.Option(help="Folder that encode wrote, of images of a captioned corpus.")],
    data_dir: DataDir = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State in how many images the first terms are words of their captions, beside two simple rankings.

    Example: python -m eval.interpretability --shards impacts/demo
    """
    check_format(output_format)
    rows = named_in(shards, data_dir)
    sys.stdout.write(render(named_table(rows), rows, output_format))


if __name__ == "__main__":
    run(command)
