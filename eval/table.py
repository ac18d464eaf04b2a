"""Systems by measures, one row per system, datasets side by side: `python -m eval.table --run A.trec --run B.trec`."""

from __future__ import annotations

import sys
from dataclasses import asdict

from lexvl_anserini.cli import Verbose, expanded, run

from . import options
from .measures.averages import averaged, datasets_of
from .measures.measure_runs import measure_runs
from .measures.significance import differing
from .report.render import render
from .report.tables import average_rows, system_row, system_table, with_datasets, with_systems

DEFAULT_MEASURES = ["nDCG@10", "Recall@100"]


@expanded
def command(
    *,
    runs: options.Runs,
    names: options.NameOptions,
    judgements: options.JudgementOptions,
    measures: options.Measures = DEFAULT_MEASURES,
    averages: options.Averages = None,
    test: options.MarkingTest = None,
    rules: options.RuleOptions,
    escape_ids: options.EscapeIds = False,
    efficiency: options.Efficiency = None,
    results: options.Results = None,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Print one table of several runs: systems as rows, each dataset's measures as columns.

    Example: python -m eval.table --run runs/demo.vdr.trec --run runs/demo.bm25.trec --format markdown
    """
    for name in averages or ():
        datasets_of(name)
    cards = options.with_figures(names.cards(runs), efficiency, output_format)
    measured = measure_runs(cards, judgements.source(escape_ids), measures, **asdict(rules), results=results)
    measured = with_datasets(measured, names.dataset_labels)
    marks = differing(cards, measured, test) if test else {}
    rows = [system_row(card, of_run, marks) for card, of_run in zip(cards, measured, strict=True)]
    means = [row for of_run in with_systems(cards, measured) for row in of_run if row.query_id == "all"]
    rows += [row for name in averages or () for row in average_rows(averaged(name, means))]
    sys.stdout.write(render(system_table(rows, test or ""), rows, output_format))


if __name__ == "__main__":
    run(command)
