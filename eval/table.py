"""Systems by measures, one row per system, datasets side by side: `python -m eval.table --run A.trec --run B.trec`."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace

from lexvl_anserini.cli import Verbose, expanded, run

from . import options
from .measures.inputs import describe_run
from .measures.measure_runs import labelled, measure_runs
from .report.render import check_format, render
from .report.tables import system_row, system_table

DEFAULT_MEASURES = ["nDCG@10", "Recall@100"]


@expanded
def command(
    *,
    runs: options.Runs,
    labels: options.Labels = None,
    judgements: options.JudgementOptions,
    measures: options.Measures = DEFAULT_MEASURES,
    rules: options.RuleOptions,
    escape_ids: options.EscapeIds = False,
    efficiency: options.Efficiency = True,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Print one table of several runs: systems as rows, each dataset's measures as columns.

    Example: python -m eval.table --run runs/demo.vdr.trec --run runs/demo.bm25.trec --format markdown
    """
    check_format(output_format)
    cards = labelled([describe_run(path) for path in runs], labels)
    measured = measure_runs(cards, judgements.source(escape_ids), measures, **asdict(rules))
    if not efficiency:
        cards = [replace(card, efficiency={}) for card in cards]
    rows = [system_row(*pair) for pair in zip(cards, measured, strict=True)]
    sys.stdout.write(render(system_table(rows), rows, output_format))


if __name__ == "__main__":
    run(command)
