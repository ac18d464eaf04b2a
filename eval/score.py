"""Measures runs against judgements: `python -m eval.score --run RUN --qrels QRELS --measure nDCG@10`.

`eval.beir` and its like are commands with the rules of one dataset, which `make_judged_command` makes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lexvl_anserini.cli import Command, Verbose, expand_options, run

from . import options
from .measures.measure_runs import measure_runs
from .report.tables import render_scores

DEFAULT_MEASURES = ["nDCG@10", "RR@10", "Recall@100"]


@dataclass(frozen=True)
class PrintOptions:
    """Whose ids are judged, and how the values are printed and stored."""

    escape_ids: options.EscapeIds = False
    per_topic: options.PerTopic = False
    results: options.Results = None
    output_format: options.ScoreFormat = "text"

    def print_scores(
        self,
        runs: Sequence[Path],
        names: options.NameOptions,
        judgements: options.JudgementOptions,
        measures: Sequence[str],
        rules: options.RuleOptions,
    ) -> None:
        """Measures runs, and prints the values."""
        cards, source = names.cards(runs), judgements.source(self.escape_ids)
        measured = measure_runs(
            cards, source, measures, **asdict(rules), per_topic=self.per_topic, results=self.results
        )
        sys.stdout.write(render_scores(names.open_runs(cards, measured), self.per_topic, self.output_format))


@expand_options
def command(
    *,
    runs: options.Runs,
    names: options.NameOptions,
    judgements: options.JudgementOptions,
    measures: options.Measures = DEFAULT_MEASURES,
    rules: options.RuleOptions,
    printing: PrintOptions,
    verbose: Verbose = False,
) -> None:
    """Measure runs against judgements, with a value for every topic of the judgements; ranx computes.

    A run without our manifest is measured as trec_eval -c does.

    Example: python -m eval.score --run runs/demo.vdr.trec --measure nDCG@10 --measure HitRate@1
    """
    printing.print_scores(runs, names, judgements, measures, rules)


def make_judged_command(
    help_text: str, measures: Sequence[str], ties: options.TiesName | None = None, remove_query: bool = False
) -> Command:
    """The command of a dataset."""
    measures_by_default, ties_by_default = list(measures), ties

    def command(
        *,
        runs: options.Runs,
        names: options.NameOptions,
        judgements: options.JudgementOptions,
        measures: options.Measures = measures_by_default,
        ties: options.Ties = ties_by_default,
        printing: PrintOptions,
        verbose: Verbose = False,
    ) -> None:
        rules = options.RuleOptions(ties=ties, remove_query=remove_query)
        printing.print_scores(runs, names, judgements, measures, rules)

    command.__doc__ = help_text
    return expand_options(command)


if __name__ == "__main__":
    run(command)
