"""Measures pruning: `python -m eval.pruning --shards impacts/scifact --query-terms 16 --document-terms 128`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Verbose, run
from lexvl_anserini.ground.errors import UsageError

from . import options
from .analyses.pruning_loss import measure_settings, rows_of, settings_of
from .measures.encoded_queries import encoded_queries
from .measures.names import parse_measure
from .report.render import check_format, render
from .report.tables import setting_table

MEASURE = "nDCG@10"


def command(
    shards: Annotated[Path, typer.Option(help="Folder that encode wrote, of impacts.")],
    topics: Annotated[
        str | None, typer.Option(help="dataset/split, a topics file, or encoded queries; default the corpus's own.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first topics only.")] = None,
    data_dir: DataDir = None,
    query_terms: Annotated[list[int] | None, typer.Option(help="Keep a query's heaviest terms; repeatable.")] = None,
    threshold: Annotated[
        list[float] | None, typer.Option(help="Keep weights of that share of the largest; repeatable.")
    ] = None,
    first_terms: Annotated[list[int] | None, typer.Option(help="Two phases: terms of the first; repeatable.")] = None,
    candidates: Annotated[int, typer.Option(help="Documents that the first phase finds.")] = 1000,
    feedback: Annotated[
        list[int] | None, typer.Option(help="Expand queries by that many documents; repeatable.")
    ] = None,
    document_terms: Annotated[
        list[int] | None, typer.Option(help="Keep a document's largest impacts; repeatable.")
    ] = None,
    least_impact: Annotated[list[int] | None, typer.Option(help="Drop smaller impacts; repeatable.")] = None,
    term_documents: Annotated[list[int] | None, typer.Option(help="Keep a term's largest impacts; repeatable.")] = None,
    hits: Annotated[int, typer.Option(min=1, help="Per topic.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Each query's fastest round counts for time.")] = 3,
    measure: Annotated[
        str, typer.Option(help="Of the rankings, if there are judgements.", autocompletion=options.measure_names)
    ] = MEASURE,
    checkpoint: Annotated[str | None, typer.Option(help="Where the encoder's checkpoint is now.")] = None,
    device: options.Device = "auto",
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """State what shorter queries and pruned documents cost in overlap and a measure, and save in time.

    Example: python -m eval.pruning --shards impacts/demo --query-terms 8 --document-terms 64
    """
    check_format(output_format)
    parse_measure(measure)
    of_queries = (query_terms or (), threshold or (), first_terms or (), candidates, feedback or ())
    settings = settings_of(*of_queries, document_terms or (), least_impact or (), term_documents or ())
    if len(settings) == 1:
        raise UsageError("nothing to compare; give --query-terms, --threshold, --document-terms, ... at least once")
    queries, qrels, remove_query = encoded_queries(shards, topics, data_dir, checkpoint, device)
    measured = measure_settings(shards, queries[:limit], settings, hits, rounds)
    topic_ids = {query.query_id for query in queries[:limit]}
    judged = [qrel for qrel in qrels if qrel.query_id in topic_ids]
    rows = [{**row, "ties": "rank"} for row in rows_of(measured, judged, measure, remove_query)]
    sys.stdout.write(render(setting_table(rows), rows, output_format))


if __name__ == "__main__":
    run(command)
