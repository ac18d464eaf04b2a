"""Systems against a baseline, with significance: `python -m eval.compare --run BASELINE.trec --run OTHER.trec`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from lexvl_anserini.cli import Verbose, expanded, run
from lexvl_anserini.errors import UnknownName, UsageError

from . import options
from .measures.inputs import describe_run
from .measures.measure_runs import measure_runs
from .measures.significance import TESTS, compare_runs
from .report.render import check_format, render
from .report.tables import comparison_table

DEFAULT_MEASURES = ["nDCG@10", "Recall@100"]

Test = Annotated[str, typer.Option("--test", help="Paired test: randomisation or student.")]


@expanded
def command(
    *,
    runs: options.Runs,
    judgements: options.JudgementOptions,
    measures: options.Measures = DEFAULT_MEASURES,
    test: Test = "randomisation",
    rules: options.RuleOptions,
    escape_ids: options.EscapeIds = False,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Compare runs of one dataset with the first of them: differences, paired tests, Holm's correction.

    Example: python -m eval.compare --run runs/demo.bm25.trec --run runs/demo.vdr.trec
    """
    check_format(output_format)
    if test not in TESTS:
        raise UnknownName("test", test, TESTS)
    if len(set(runs)) < max(2, len(runs)):
        raise UsageError("give --run twice or more, each another run; the first is the baseline")
    measured = measure_runs(map(describe_run, runs), judgements.source(escape_ids), measures, **asdict(rules))
    comparisons = compare_runs(measured, test)
    sys.stdout.write(render(comparison_table(comparisons), comparisons, output_format))


if __name__ == "__main__":
    run(command)
