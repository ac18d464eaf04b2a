"""Measures runs against judgements: `python -m eval.score --run RUN --qrels QRELS --measure nDCG@10`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from eval import options
from eval.measures.inputs import Judgements, RunCard, Source, choose_source, describe_run, read_judgements
from eval.measures.metrics import evaluate, parse_measures
from eval.measures.order import TIES
from eval.report.grids import score_table
from eval.report.render import check_format, csv_rows, json_rows, to_text
from lexvl_anserini.cli import DataDir, Verbose, run
from lexvl_anserini.errors import UnknownName
from lexvl_anserini.ranking.runs import read_run
from lexvl_anserini.records import Measurement

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("eval.score")

DEFAULT_MEASURES = ["nDCG@10", "RR@10", "Recall@100"]

FORMATS: dict[str, Callable[[Sequence[Measurement]], str]] = {
    "text": lambda rows: to_text(score_table(rows)),
    "json": json_rows,
    "csv": csv_rows,
}

Format = Annotated[str, typer.Option("--format", help="text, json (fields of Measurement) or csv (the same).")]


def measure_runs(
    cards: Iterable[RunCard],
    source: Source,
    measures: Iterable[str],
    *,
    relevance_level: int = 1,
    ties: str = "rank",
    remove_query: bool | None = None,
) -> list[list[Measurement]]:
    """Measures several runs in one process, each data set's judgements read once; one list per run, as `evaluate`.

    Args:
        cards: the runs; their manifests complete what `source` leaves open.
        source: the judgements asked for.
        measures: their names.
        relevance_level: least relevance that is relevant (not for nDCG).
        ties: "rank" or "trec_eval".
        remove_query: None follows the data set's rule, else what the run's manifest says.

    Raises:
        LexvlError: a run, its judgements or a measure cannot be read, or they do not fit.
    """
    asked = parse_measures(measures)
    if ties not in TIES:
        raise UnknownName("order of ties", ties, TIES)
    sources = [(card, choose_source(card, source)) for card in cards]
    read: dict[Source, Judgements] = {}
    measured = []
    for card, chosen in sources:
        if card.hits is not None and (
            deeper := [f"{m.name}@{m.k}" for m in asked if m.k is not None and m.k > card.hits]
        ):
            log.warning("%s: holds %d hits a topic; %s cannot see more", card.path, card.hits, ", ".join(deeper))
        judged = read[chosen] = read.get(chosen) or read_judgements(chosen)
        rules = (remove_query, judged.remove_query, card.remove_query)
        measured.append(
            evaluate(
                read_run(card.path),
                judged.qrels,
                asked,
                name=str(card.path),
                dataset=judged.label,
                relevance_level=relevance_level,
                ties=ties,
                remove_query=next(rule for rule in rules if rule is not None),
            )
        )
    return measured


def print_scores(
    runs: Sequence[Path],
    source: Source,
    measures: Sequence[str],
    *,
    per_topic: bool = False,
    output_format: str = "text",
    relevance_level: int = 1,
    ties: str = "rank",
    remove_query: bool | None = None,
) -> None:
    """Measures runs and prints the means, with `per_topic` every topic's value too."""
    check_format(output_format, FORMATS)
    measured = measure_runs(
        map(describe_run, runs),
        source,
        measures,
        relevance_level=relevance_level,
        ties=ties,
        remove_query=remove_query,
    )
    rows = [row for rows in measured for row in rows if per_topic or row.query_id == "all"]
    sys.stdout.write(FORMATS[output_format](rows))


def command(
    runs: options.Runs,
    qrels: options.Qrels = None,
    dataset: options.DatasetName = None,
    split: options.Split = None,
    data_dir: DataDir = None,
    measures: options.Measures = DEFAULT_MEASURES,
    relevance_level: options.RelevanceLevel = 1,
    ties: options.Ties = "rank",
    remove_query: options.RemoveQuery = None,
    escape_ids: options.EscapeIds = False,
    per_topic: options.PerTopic = False,
    output_format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Measure runs against judgements, as trec_eval -c does; ranx computes.

    Example: python -m eval.score --run runs/demo.vdr.trec --measure nDCG@10 --measure HitRate@1
    """
    print_scores(
        runs,
        Source(qrels, dataset, split, data_dir, escape_ids),
        measures,
        per_topic=per_topic,
        output_format=output_format,
        relevance_level=relevance_level,
        ties=ties,
        remove_query=remove_query,
    )


if __name__ == "__main__":
    run(command)
