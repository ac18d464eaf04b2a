"""Stored results: `python -m eval.results FOLDER` prints them as one table; `frame` makes a pandas frame of any."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import Verbose, run
from lexvl_anserini.ground.errors import UsageError

from . import options
from .measures.exchange import frame, write_mteb
from .measures.inputs import name_datasets
from .measures.measure_runs import read_results
from .report.tables import SystemRow, build_system_table, render

__all__ = ["command", "frame", "read_results", "write_mteb"]

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_eval.results")


def command(
    folder: Annotated[Path, typer.Argument(help="What --results of score, table and similar commands wrote.")],
    mteb: Annotated[Path | None, typer.Option(help="Write MTEB's JSON files to this folder too.")] = None,
    dataset_labels: options.DatasetLabels = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Print stored results as one table: systems as rows, each dataset's measures as columns.

    Example: python -m eval.results results
    """
    results = list(read_results(folder))
    if len({result.ties for result in results}) > 1:
        raise UsageError(f"{folder}: results with different orders of equal scores; measure all with one --ties")
    if mteb:
        for path in write_mteb(results, mteb):
            log.info("%s: written", path)
    named = name_datasets([result.measurements() for result in results], dataset_labels)
    rows = [
        SystemRow(result.system, rows[0].dataset, result.run, result.measures, {}, result.ties)
        for result, rows in zip(results, named, strict=True)
    ]
    sys.stdout.write(render(build_system_table(rows), results, output_format))


if __name__ == "__main__":
    run(command)
