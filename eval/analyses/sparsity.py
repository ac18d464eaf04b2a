"""Terms per query and document, and FLOPS: `python -m eval.analyses.sparsity --shards impacts/demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, run

from .. import options
from ..measures.flops import sparsity_of
from ..measures.inputs import encoded_queries
from ..report.render import Table, check_format, render
from ..report.tables import SPARSITY


def command(
    shards: Annotated[list[Path], typer.Option(help="Folder that encode wrote, of impacts; repeatable.")],
    topics: Annotated[
        str | None, typer.Option(help="dataset/split, a topics file, or encoded queries; default the corpus's own.")
    ] = None,
    data_dir: DataDir = None,
    checkpoint: Annotated[str | None, typer.Option(help="Where the encoder's checkpoint is now.")] = None,
    device: options.Device = "auto",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State how sparse documents and queries are, and the terms that a query and a document are expected to share.

    Example: python -m eval.analyses.sparsity --shards impacts/demo
    """
    check_format(output_format)
    rows = []
    for folder in shards:
        queries, _, _ = encoded_queries(folder, topics, data_dir, checkpoint, device)
        rows.append(sparsity_of(folder, (query.vector for query in queries)))
    sys.stdout.write(render(Table.of_fields(rows, SPARSITY), rows, output_format))


if __name__ == "__main__":
    run(command)
