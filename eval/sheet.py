"""Draws a contact sheet: queries, the first hits of each, and the terms of their scores; relevant hits are framed.

python -m eval.sheet --run runs/demo.vdr-crossmodal.trec --index indexes/demo --output sheet.png
python -m eval.sheet --query "two dogs" --query "a red boat" --index indexes/pictures --maps --output sheet.png
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lexvl_anserini.cli import DataDir, Device, Style, Verbose, print_rows, run
from lexvl_anserini.encoders.loading import load_encoder_from
from lexvl_anserini.engines.engine import index_path
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import expect_lexical, read_run_manifest
from lexvl_anserini.searching.searcher import Index
from lexvl_anserini.searching.shared_terms import select_encoder_options

from .report.answers import make_query_strips, make_run_strips, resolve_corpus, sample_queries, with_maps
from .report.strips import Strip, draw_sheet

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder

DEFAULT_QUERIES = 3
DEFAULT_HITS = 5
DEFAULT_TERMS = 5


def load_sheet_encoder(
    index: Index, run_file: Path | None, checkpoint: str | None = None, device: str = "auto"
) -> Encoder:
    """The encoder of an index, with the options that a run was made with."""
    manifest = index.manifest
    changed = select_encoder_options(read_run_manifest(run_file)) if run_file else {}
    return load_encoder_from(manifest.encoder, checkpoint, None, device, changed, vocabulary=manifest.vocabulary_digest)


def load_run_strips(
    run_file: Path,
    index: Index,
    model: Encoder,
    query_ids: Sequence[str] = (),
    hits: int = DEFAULT_HITS,
    data_dir: str | None = None,
) -> list[Strip]:
    """Topics of a run with their first hits."""
    from lexvl_anserini.data.dataset import load_reference

    dataset = load_reference(resolve_corpus(run_file, index.manifest, data_dir))
    chosen = list(dict.fromkeys(query_ids or sample_queries(run_file, DEFAULT_QUERIES)))
    return make_run_strips(dataset, index, model, run_file, chosen, hits)


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
    hits: Annotated[int, typer.Option(min=1, max=10, help="Documents per topic.")] = DEFAULT_HITS,
    terms: Annotated[int, typer.Option(min=1, max=20, help="Terms under each hit.")] = DEFAULT_TERMS,
    maps: Annotated[
        bool, typer.Option("--maps", help="Keep the colours of images where the shared terms are; the rest is pale.")
    ] = False,
    data_dir: DataDir = None,
    checkpoint: Annotated[str | None, typer.Option(help="Where the encoder's checkpoint is now.")] = None,
    device: Device = "auto",
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Draw queries with their first hits and the terms of their scores.

    Example: python -m eval.sheet --query "two dogs on the beach" --index indexes/demo --output sheet.png
    """
    index = index_path(index)
    manifest = index_manifest(index)
    expect_lexical(index, manifest.kind, "only the score of an impact index is a sum over terms")
    if (run_file is None) == (not queries) or (queries and query_ids):
        raise UsageError("give --run FILE (with --query-id Q for chosen topics), or --query TEXT")
    from lexvl_anserini.data.dataset import load_reference

    opened = Index(index, manifest)
    model = load_sheet_encoder(opened, run_file, checkpoint, device)
    if run_file is None:
        strips = make_query_strips(load_reference(manifest.corpus.ref.at(data_dir)), opened, model, queries or [], hits)
    else:
        strips = load_run_strips(run_file, opened, model, query_ids or (), hits, data_dir)
    draw_sheet(with_maps(strips, model) if maps else strips, output, terms, maps)
    print_rows({"sheet": str(output), "queries": len(strips), "bytes": output.stat().st_size}, style)


if __name__ == "__main__":
    run(command)
