"""Shows the terms of corpora, of documents and of images: `python -m eval.terms --shards impacts/demo`.

python -m eval.terms --shards impacts/a --shards impacts/b --plot terms.png
python -m eval.terms --shards impacts/demo --doc-id test-00017
python -m eval.terms --image beach.jpg
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini.cli import Verbose, expanded, run
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import atomic_write

from . import options
from .analyses.term_statistics import (
    StoredVectors,
    TermProfile,
    stored_vectors,
    term_profile,
    terms_of_documents,
    terms_of_images,
    terms_to_judge,
)
from .report.image_tables import document_term_table, term_table
from .report.render import check_format, csv_rows, render
from .report.term_plots import draw_terms

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_eval.terms")


def described(stored: StoredVectors, name: str) -> TermProfile:
    """The terms of shards, with a line in the log."""
    found = term_profile(stored, name)
    log.info(
        "%s: %d documents of %.1f terms on average; of %d terms the first %d have %.1f %% of all weight",
        *(found.shards, found.documents, found.mean_active, found.used, len(found.first), 100 * found.share),
    )
    return found


@expanded
def command(
    *,
    shards: Annotated[
        list[Path] | None, typer.Option(help="Folder that encode wrote, of impacts; repeatable to compare corpora.")
    ] = None,
    doc_ids: Annotated[
        list[str] | None, typer.Option("--doc-id", help="Show the terms of this document; repeatable.")
    ] = None,
    images: Annotated[
        list[str] | None, typer.Option("--image", help="Encode this image and show its terms; repeatable.")
    ] = None,
    encoder: options.ImageEncoderOptions,
    plot: Annotated[
        Path | None, typer.Option(help="Draw boxes of the first terms' weights, and terms per document, as PNG.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the first 5 terms of some documents as CSV, for people to judge.")
    ] = None,
    documents: Annotated[int, typer.Option(min=1, help="Of --export, evenly spaced in the order of the shards.")] = 20,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Show the terms of a corpus with the largest mean weights, or the terms of documents or images.

    Example: python -m eval.terms --shards impacts/demo
    """
    check_format(output_format)
    if bool(shards) == bool(images) or (images and (doc_ids or export)) or (plot and (images or doc_ids)):
        raise UsageError("give --shards (with --plot and --export, or with --doc-id), or --image")
    if plot and plot.suffix.lower() != ".png":
        raise UsageError(f"--plot {plot}: draws PNG only; give the file the suffix .png")
    opened = [stored_vectors(folder) for folder in shards or ()]
    if len(opened) > 1 and (doc_ids or export):
        raise UsageError(f"--doc-id and --export read one folder of shards, not {len(opened)}")
    if export:
        with atomic_write(export) as out:
            out.write(csv_rows(terms_to_judge(opened[0], documents)).encode())
    if doc_ids or images:
        terms = (
            terms_of_documents(opened[0], doc_ids)
            if doc_ids
            else terms_of_images(encoder.load(), images or (), encoder.batch_size)
        )
        sys.stdout.write(render(document_term_table(terms), terms, output_format))
        return
    names = [folder.name for folder in shards or ()]
    distinct = names if len(set(names)) == len(names) else map(str, shards or ())
    profiles = [described(stored, name) for stored, name in zip(opened, distinct, strict=True)]
    if plot:
        draw_terms(profiles, plot)
    sys.stdout.write(render(term_table(profiles), profiles, output_format))


if __name__ == "__main__":
    run(command)
