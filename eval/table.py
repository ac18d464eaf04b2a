"""Systems by measures, one row per system, data sets side by side: `python -m eval.table --run A.trec --run B.trec`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from eval import options
from eval.measures.inputs import RunCard, Source, describe_run
from eval.report.grids import system_row, system_table
from eval.report.render import FORMATS as TABLE_FORMATS
from eval.report.render import check_format, json_rows
from eval.score import measure_runs
from lexvl_anserini.cli import DataDir, Verbose, run
from lexvl_anserini.errors import UsageError

DEFAULT_MEASURES = ["nDCG@10", "Recall@100"]

FORMATS = (*TABLE_FORMATS, "json")

Labels = Annotated[
    list[str] | None,
    typer.Option("--label", help="A run's system, one per --run; default: the encoder of its manifest."),
]
Format = Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or json.")]


def labelled(cards: list[RunCard], labels: list[str] | None) -> list[RunCard]:
    """The runs under the names the user gave them, if any.

    Raises:
        UsageError: another number of labels than of runs.
    """
    if not labels:
        return cards
    if len(labels) != len(cards):
        raise UsageError(f"{len(labels)} labels for {len(cards)} runs; give one --label per --run, or none")
    return [replace(card, system=label) for card, label in zip(cards, labels, strict=True)]


def command(
    runs: options.Runs,
    labels: Labels = None,
    qrels: options.Qrels = None,
    dataset: options.DatasetName = None,
    split: options.Split = None,
    data_dir: DataDir = None,
    measures: options.Measures = DEFAULT_MEASURES,
    relevance_level: options.RelevanceLevel = 1,
    ties: options.Ties = "rank",
    remove_query: options.RemoveQuery = None,
    escape_ids: options.EscapeIds = False,
    efficiency: Annotated[
        bool, typer.Option("--efficiency/--no-efficiency", help="Also the figures of the searches: terms, MB, ms.")
    ] = True,
    output_format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Print one table of several runs: systems as rows, each data set's measures as columns.

    Example: python -m eval.table --run runs/demo.vdr.trec --run runs/demo.bm25.trec --format markdown
    """
    check_format(output_format, FORMATS)
    cards = labelled([describe_run(path) for path in runs], labels)
    measured = measure_runs(
        cards,
        Source(qrels, dataset, split, data_dir, escape_ids),
        measures,
        relevance_level=relevance_level,
        ties=ties,
        remove_query=remove_query,
    )
    if not efficiency:
        cards = [replace(card, efficiency={}) for card in cards]
    rows = [system_row(*pair) for pair in zip(cards, measured, strict=True)]
    render = TABLE_FORMATS.get(output_format)
    sys.stdout.write(render(system_table(rows)) if render else json_rows(rows))


if __name__ == "__main__":
    run(command)
