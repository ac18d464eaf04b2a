"""Draws a contact sheet: queries, the first hits of each, and the terms of their scores; relevant hits are framed.

python -m eval.sheet --run runs/demo.vdr-crossmodal.trec --index indexes/demo --output sheet.png
python -m eval.sheet --query "two dogs" --query "a red boat" --index indexes/photos --output sheet.png
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import DataDir, Style, Verbose, check_style, print_rows, run
from lexvl_anserini.encoders.loading import load_encoder_of
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.errors import UsageError
from lexvl_anserini.manifest import read_run_manifest
from lexvl_anserini.queries.shared_terms import encoder_options
from lexvl_anserini.records import Index

from . import options
from .report.answers import answered_corpus, sample_queries, strips_of_queries, strips_of_run
from .report.strips import Strip, draw_sheet

DEFAULT_QUERIES = 3
DEFAULT_HITS = 5
DEFAULT_TERMS = 5


def shown_of_run(
    run_file: Path,
    index: Path,
    query_ids: Sequence[str] = (),
    hits: int = DEFAULT_HITS,
    data_dir: str | None = None,
    checkpoint: str | None = None,
    device: str = "auto",
) -> list[Strip]:
    """Topics of a run with their first hits.

    Args:
        run_file: a run in TREC format.
        index: the folder of the impact index that it searched.
        query_ids: the topics; default three of the run's, evenly spaced.
        hits: per topic.
        data_dir: folder of the datasets; default the run's.
        checkpoint: where the encoder's checkpoint is now, if it was moved.
        device: of the encoder.

    Raises:
        LexvlError: the run, the index or the dataset cannot be read, or they do not go together.
    """
    from lexvl_anserini.data.dataset import dataset_of

    about = index_manifest(index)
    dataset = dataset_of(answered_corpus(run_file, about, data_dir))
    model = load_encoder_of(
        about.encoder,
        checkpoint,
        None,
        device,
        encoder_options(read_run_manifest(run_file)),
        vocabulary=about.vocabulary_digest,
    )
    chosen = list(dict.fromkeys(query_ids or sample_queries(run_file, DEFAULT_QUERIES)))
    return strips_of_run(dataset, Index(index, about, about.counts.documents), model, run_file, chosen, hits)


def command(
    index: Annotated[Path, typer.Option(help="The impact index that is, or was, searched.")],
    run_file: Annotated[Path | None, typer.Option("--run", help="A run in TREC format, plain or .gz.")] = None,
    queries: Annotated[
        list[str] | None, typer.Option("--query", help="Instead of a run: search for this text; repeatable.")
    ] = None,
    output: Annotated[Path, typer.Option(help="PNG to write.")] = Path("sheet.png"),
    query_ids: Annotated[
        list[str] | None, typer.Option("--query-id", help="Show this topic; repeatable. Default three of the run's.")
    ] = None,
    hits: Annotated[int, typer.Option(min=1, max=10, help="Per topic.")] = DEFAULT_HITS,
    terms: Annotated[int, typer.Option(min=1, max=20, help="Under each hit.")] = DEFAULT_TERMS,
    data_dir: DataDir = None,
    checkpoint: Annotated[str | None, typer.Option(help="Where the encoder's checkpoint is now.")] = None,
    device: options.Device = "auto",
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Draw queries with their first hits and the terms of their scores.

    Example: python -m eval.sheet --query "two dogs on the beach" --index indexes/demo --output sheet.png
    """
    check_style(style)
    about = index_manifest(index)
    if about.kind != "impact":
        raise UsageError(f"{index} is {about.kind}; only the score of an impact index is a sum over terms")
    if (run_file is None) == (not queries) or (queries and query_ids):
        raise UsageError("give --run FILE (with --query-id Q for chosen topics), or --query TEXT")
    from lexvl_anserini.data.dataset import dataset_of

    if run_file is None:
        opened = Index(index, about, about.counts.documents)
        model = load_encoder_of(about.encoder, checkpoint, None, device, vocabulary=about.vocabulary_digest)
        strips = strips_of_queries(dataset_of(about.corpus.ref.at(data_dir)), opened, model, queries or [], hits)
    else:
        strips = shown_of_run(run_file, index, query_ids or (), hits, data_dir, checkpoint, device)
    draw_sheet(strips, output, terms)
    print_rows({"sheet": str(output), "queries": len(strips), "bytes": output.stat().st_size}, style)


if __name__ == "__main__":
    run(command)
