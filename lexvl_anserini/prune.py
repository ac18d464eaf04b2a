"""Shards -> smaller shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import Overwrite, Style, Verbose, print_rows, run
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.ground.progress import progress_bar
from lexvl_anserini.searching.search import read_terms
from lexvl_anserini.shards.pruning import Pruning, prune_shards


def command(
    shards: Annotated[str, typer.Argument(help="Folder that encode wrote, of impacts.")],
    output: Annotated[str, typer.Option(help="Folder to write.")],
    document_terms: Annotated[int | None, typer.Option(min=1, help="Keep a document's largest impacts.")] = None,
    least_impact: Annotated[int, typer.Option(min=1, help="Drop smaller impacts.")] = 1,
    term_documents: Annotated[int | None, typer.Option(min=1, help="Keep a term's largest impacts.")] = None,
    only_terms: Annotated[str | None, typer.Option(help="File of terms; documents keep no others.")] = None,
    without_terms: Annotated[str | None, typer.Option(help="File of terms that documents lose.")] = None,
    overwrite: Overwrite = False,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Prune encoded documents before they are indexed; `lexvl pruning` measures what that costs.

    Example: python -m lexvl_anserini.prune impacts/demo --output impacts/demo-64 --document-terms 64
    """
    pruning = Pruning(
        only_terms=read_terms(only_terms) if only_terms else None,
        without_terms=read_terms(without_terms) if without_terms else frozenset(),
        least_impact=least_impact,
        document_terms=document_terms,
        term_documents=term_documents,
    )
    before = read_manifest(Path(shards)).counts
    with progress_bar(f"prune {shards}", before.documents) as progress:
        manifest = prune_shards(Path(shards), Path(output), pruning, overwrite, progress)
    counts = manifest.counts
    rows = {"output": output, "documents": counts.documents, "empty": counts.empty, "postings": counts.postings}
    print_rows({**rows, "kept_share": round(counts.postings / max(1, before.postings), 4)}, style)


if __name__ == "__main__":
    run(command)
