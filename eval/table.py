"""Systems by measures, one row per system, datasets side by side: `python -m eval.table --run A.trec --run B.trec`."""

from __future__ import annotations

import sys
from dataclasses import asdict

from lexvl_anserini.cli import Verbose, expand_options, run

from . import options
from .measures.averages import compute_averages, list_datasets
from .measures.inputs import name_datasets, name_systems
from .measures.measure_runs import measure_runs
from .measures.significance import find_differing
from .report.tables import build_system_table, make_average_rows, make_system_row, render


@expand_options
def command(
    *,
    runs: options.Runs,
    names: options.NameOptions,
    judgements: options.JudgementOptions,
    measures: options.Measures = options.DEFAULT_MEASURES,
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
        list_datasets(name)
    cards = options.choose_figures(names.cards(runs), efficiency, output_format)
    measured = measure_runs(cards, judgements.source(escape_ids), measures, **asdict(rules), results=results)
    measured = name_datasets(measured, names.dataset_labels)
    marks = find_differing(cards, measured, test) if test else {}
    rows = [make_system_row(card, of_run, marks) for card, of_run in zip(cards, measured, strict=True)]
    means = [row for of_run in name_systems(cards, measured) for row in of_run if row.query_id == "all"]
    rows += [row for name in averages or () for row in make_average_rows(compute_averages(name, means))]
    sys.stdout.write(render(build_system_table(rows, test or ""), rows, output_format))


if __name__ == "__main__":
    run(command)
