"""The command `lexvl duplicates`: the near-duplicates in an index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer

from lexvl_anserini import cli
from lexvl_anserini.data.entries import printable
from lexvl_anserini.engines.index_folder import BuiltIndex, in_album, index_manifest
from lexvl_anserini.searching.likeness import THRESHOLD, Likeness


def command(
    index: Annotated[Path, typer.Argument(help="Folder of an impact index, or of photos: lexvl-photos/NAME.")],
    threshold: Annotated[float, typer.Option(help="Least cosine of two documents, above 0 and at most 1.")] = THRESHOLD,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """List near-duplicates: documents of an index whose impacts have a cosine of the threshold or more, in groups.

    A group has the documents that pairs connect; json has the pairs too.

    Example: python -m lexvl_anserini.searching.duplicates lexvl-photos/pictures --threshold 0.93
    """
    folder = in_album(index)
    likeness = Likeness.of(BuiltIndex(folder, index_manifest(folder)), threshold)
    groups = likeness.groups()
    if style == "json":
        pairs = [pair._asdict() for pair in likeness.pairs()]
        content = {"index": str(folder), "threshold": threshold, "groups": groups, "pairs": pairs}
        sys.stdout.write(orjson.dumps(content).decode() + "\n")
        return
    for group in groups:
        typer.echo("  ".join(map(printable, group)))
    documents, extra = len(likeness.vectors.ids), sum(len(group) - 1 for group in groups)
    typer.echo(f"{len(groups):,} groups; {extra:,} of {documents:,} documents are near-duplicates of another")


if __name__ == "__main__":
    cli.run(command)
