"""Measures runs as BEIR does: drops hits that are the query itself before the cut, counts every topic of the qrels."""

from __future__ import annotations

import sys

from lexvl_anserini.cli import Verbose, expanded, run

from . import options
from .measures.measure_runs import measure_runs
from .report.render import check_format
from .report.tables import SCORE_FORMATS, render_scores

DEFAULT_MEASURES = ["nDCG@10", "Recall@100", "Recall@1000", "RR@10"]


@expanded
def command(
    runs: options.Runs,
    names: options.NameOptions,
    judgements: options.JudgementOptions,
    measures: options.Measures = DEFAULT_MEASURES,
    ties: options.Ties = None,
    escape_ids: options.EscapeIds = False,
    per_topic: options.PerTopic = False,
    results: options.Results = None,
    output_format: options.ScoreFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Measure runs on a BEIR dataset: nDCG@10, Recall@100, Recall@1000 and RR@10.

    Example: python -m eval.beir --run runs/beir-scifact.vdr.trec --dataset beir/scifact
    """
    check_format(output_format, SCORE_FORMATS)
    cards, source = names.cards(runs), judgements.source(escape_ids)
    measured = measure_runs(cards, source, measures, ties=ties, remove_query=True, per_topic=per_topic, results=results)
    sys.stdout.write(render_scores(names.of_runs(cards, measured), per_topic, output_format))


if __name__ == "__main__":
    run(command)
