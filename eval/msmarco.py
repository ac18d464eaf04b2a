"""Measures runs as MS MARCO passage ranking does: the reciprocal rank within the first ten."""

from __future__ import annotations

import sys

from lexvl_anserini.cli import Verbose, expanded, run

from . import options
from .measures.measure_runs import measure_runs
from .report.render import check_format
from .report.tables import SCORE_FORMATS, render_scores

DEFAULT_MEASURES = ["RR@10"]


@expanded
def command(
    runs: options.Runs,
    names: options.NameOptions,
    judgements: options.JudgementOptions,
    measures: options.Measures = DEFAULT_MEASURES,
    ties: options.Ties = None,
    per_topic: options.PerTopic = False,
    results: options.Results = None,
    output_format: options.ScoreFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Measure runs on MS MARCO passages: RR@10 over all topics of the qrels.

    Example: python -m eval.msmarco --run runs/dev.splade.trec --qrels qrels.dev.small.tsv
    """
    check_format(output_format, SCORE_FORMATS)
    cards, source = names.cards(runs), judgements.source()
    measured = measure_runs(
        cards, source, measures, ties=ties, remove_query=False, per_topic=per_topic, results=results
    )
    sys.stdout.write(render_scores(names.of_runs(cards, measured), per_topic, output_format))


if __name__ == "__main__":
    run(command)
