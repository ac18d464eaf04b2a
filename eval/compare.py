"""Systems against a baseline, with significance: `python -m eval.compare --run BASELINE.trec --run OTHER.trec`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from eval import options
from eval.measures.inputs import Source, describe_run
from eval.measures.metrics import per_topic
from eval.measures.significance import TESTS, Comparison, compare
from eval.report.grids import format_value
from eval.report.render import FORMATS as TABLE_FORMATS
from eval.report.render import Column, Table, check_format, json_rows
from eval.score import measure_runs
from lexvl_anserini.cli import DataDir, Verbose, run
from lexvl_anserini.errors import UnknownName, UsageError

DEFAULT_MEASURES = ["nDCG@10", "Recall@100"]

FORMATS = (*TABLE_FORMATS, "json")

# A corrected p below is marked.
LEVEL = 0.05

Test = Annotated[str, typer.Option("--test", help="Paired test: randomisation or student.")]
Format = Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or json.")]


def format_p(p: float) -> str:
    """A p-value, four decimals."""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """One row per system and measure; corrected p below 0.05 is marked by a star."""
    headings = ("system", "measure", "baseline", "value", "difference", "p", "p (Holm)", "better/equal/worse")
    return Table(
        columns=tuple(Column(heading, number=c > 1) for c, heading in enumerate(headings)),
        rows=tuple(
            (
                row.system,
                row.measure,
                format_value(row.baseline),
                format_value(row.value),
                f"{row.difference:+.4f}",
                format_p(row.p),
                format_p(row.p_corrected) + ("*" if row.p_corrected < LEVEL else ""),
                f"{row.better}/{row.equal}/{row.worse}",
            )
            for row in comparisons
        ),
    )


def command(
    runs: options.Runs,
    qrels: options.Qrels = None,
    dataset: options.DatasetName = None,
    split: options.Split = None,
    data_dir: DataDir = None,
    measures: options.Measures = DEFAULT_MEASURES,
    test: Test = "randomisation",
    relevance_level: options.RelevanceLevel = 1,
    ties: options.Ties = "rank",
    remove_query: options.RemoveQuery = None,
    escape_ids: options.EscapeIds = False,
    output_format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Compare runs of one data set with the first of them: differences, paired tests, Holm's correction.

    Example: python -m eval.compare --run runs/demo.bm25.trec --run runs/demo.vdr.trec
    """
    check_format(output_format, FORMATS)
    if test not in TESTS:
        raise UnknownName("test", test, TESTS)
    if len(set(runs)) < max(2, len(runs)):
        raise UsageError("give --run twice or more, each another run; the first is the baseline")
    measured = measure_runs(
        map(describe_run, runs),
        Source(qrels, dataset, split, data_dir, escape_ids),
        measures,
        relevance_level=relevance_level,
        ties=ties,
        remove_query=remove_query,
    )
    if len(datasets := {rows[0].dataset for rows in measured}) > 1:
        raise UsageError(f"the runs answer different data sets ({', '.join(sorted(datasets))}); compare within one")
    baseline, *others = measured
    comparisons = [
        row
        for measure in dict.fromkeys(row.measure for row in baseline)
        for row in compare(
            per_topic(baseline, measure), {rows[0].run: per_topic(rows, measure) for rows in others}, measure, test
        )
    ]
    if output_format == "json":
        sys.stdout.write(json_rows(comparisons))
    else:
        sys.stdout.write(TABLE_FORMATS[output_format](comparison_table(comparisons)))


if __name__ == "__main__":
    run(command)
