"""The command `lexvl push`: an index with its card -> the hub or storage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini import cli
from lexvl_plugins.exchange.sharing.indexes import push_index, read_measures


def command(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    target: Annotated[str, typer.Argument(help="owner/name, a data set of the hub; or a URL: s3://bucket/name.")],
    licence: Annotated[str, typer.Option(help="Licence of the documents: an id of the hub, cc-by-4.0, or other.")],
    measures: Annotated[Path | None, typer.Option(help="Output of score --format json.", metavar="FILE")] = None,
    private: Annotated[bool | None, typer.Option("--private/--public", help="Of a new data set on the hub.")] = None,
    with_places: Annotated[bool, typer.Option("--with-places", help="Push an index that names folders here.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that push did not write.")] = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Push an index, with a card, to the Hugging Face hub or to storage. An earlier push is replaced.

    Example: python -m lexvl_plugins.exchange.sharing.push indexes/demo me/demo-index --licence cc0-1.0
    """
    values = read_measures(measures) if measures else ()
    cli.print_rows(push_index(index, target, licence, values, private, overwrite, with_places), style)


if __name__ == "__main__":
    cli.run(command)
