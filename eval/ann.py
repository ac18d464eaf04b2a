"""Compares FAISS's layouts with exact search: `python -m eval.ann impacts/scifact.sentence --layout hnsw`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, run

from . import options
from .analyses.ann_loss import as_json, compare_layouts, parameter_lists, read_dense_corpus
from .report.render import check_format, render
from .report.tables import layout_table

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger(__name__)

DEFAULT_HITS = [10, 100]
DEFAULT_LAYOUTS = ["flat", "hnsw", "ivfpq", "sq8", "binary"]


def command(
    shards: Annotated[str, typer.Argument(help="Folder of dense vectors that encode wrote.")],
    topics: Annotated[
        str | None, typer.Option(help="dataset/split or a topics file; default the corpus's own.")
    ] = None,
    layout: Annotated[list[str] | None, typer.Option(help="flat, hnsw, ivfpq, sq8, binary; repeatable.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="LAYOUT.PARAMETER=VALUE[,VALUE...]: a row for each combination; repeatable."),
    ] = None,
    dimensions: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Keep the first dimensions only (Matryoshka); repeatable; default all."),
    ] = None,
    hits: Annotated[list[int] | None, typer.Option(min=1, help="Depths of the recall; default 10 and 100.")] = None,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="Of the encoder: auto, cpu, cuda, cuda:1.")] = "auto",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Compare FAISS's layouts with exact search on one corpus: recall, size, time. All vectors are kept in memory.

    Example: python -m eval.ann impacts/demo.sentence --layout flat --layout sq8
    """
    check_format(output_format)
    depths, values = sorted(set(hits or DEFAULT_HITS)), parameter_lists(settings or ())
    corpus, unit = read_dense_corpus(Path(shards), topics, data_dir, device)
    widths = dimensions or [corpus.documents.shape[1]]
    rows = []
    for row in compare_layouts(corpus, layout or DEFAULT_LAYOUTS, values, widths, depths, unit):
        log.info("%d dimensions, %s: %.2f ms per query", row.dimensions, row.layout, row.ms_per_query)
        rows.append(row)
    sys.stdout.write(render(layout_table(rows, depths), list(map(as_json, rows)), output_format))


if __name__ == "__main__":
    run(command)
