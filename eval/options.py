"""The options that several commands of this package share, so that each means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[list[Path], typer.Option("--run", help="A run in TREC format, plain or .gz; repeat for several.")]
Qrels = Annotated[Path | None, typer.Option("--qrels", help="Judgements: TREC's four columns or BEIR's .tsv.")]
DatasetName = Annotated[
    str | None,
    typer.Option("--dataset", help="Data set of the judgements; default: what the run's manifest says."),
]
Split = Annotated[str | None, typer.Option("--split", help="Split of the judgements; default: the run's, else test.")]
EscapeIds = Annotated[bool, typer.Option("--escape-ids", help="Percent-encode the judgements' ids, as in the run.")]
Measures = Annotated[
    list[str],
    typer.Option("--measure", help="nDCG@k, RR@k, Recall@k, HitRate@k, AP@k, P@k; repeat for several."),
]
RelevanceLevel = Annotated[
    int, typer.Option("--relevance-level", help="Least relevance that is relevant (2 for TREC DL); not for nDCG.")
]
Ties = Annotated[
    str, typer.Option("--ties", help="Order of equal scores: rank (the run's own) or trec_eval (doc id descending).")
]
RemoveQuery = Annotated[
    bool | None,
    typer.Option(
        "--remove-query/--keep-query", help="Drop hits whose doc id is the query id; default: the data set's rule."
    ),
]
PerTopic = Annotated[bool, typer.Option("--per-topic", help="Also print every topic's value.")]
