"""Systems against a baseline, with significance: `python -m eval.compare --run BASELINE.trec --run OTHER.trec`."""

from __future__ import annotations

import sys
from dataclasses import asdict

from lexvl_anserini.cli import Verbose, expand_options, run
from lexvl_anserini.ground.errors import UsageError

from . import options
from .measures.measure_runs import measure_runs
from .measures.significance import compare_runs
from .report.tables import render_comparisons


@expand_options
def command(
    *,
    runs: options.Runs,
    names: options.NameOptions,
    judgements: options.JudgementOptions,
    measures: options.Measures = options.DEFAULT_MEASURES,
    test: options.Test = "randomisation",
    rules: options.RuleOptions,
    escape_ids: options.EscapeIds = False,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Compare runs of one dataset with the first of them: differences, paired tests, Holm's correction.

    Example: python -m eval.compare --run runs/demo.bm25.trec --run runs/demo.vdr.trec
    """
    if len(set(runs)) < max(2, len(runs)):
        raise UsageError("give --run twice or more, each another run; the first is the baseline")
    cards = names.cards(runs)
    measured = measure_runs(cards, judgements.source(escape_ids), measures, **asdict(rules))
    sys.stdout.write(render_comparisons(compare_runs(names.open_runs(cards, measured), test), output_format))


if __name__ == "__main__":
    run(command)
