"""The command `lexvl pull`: an index that `lexvl push` wrote -> a folder here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini import cli
from lexvl_plugins.exchange.sharing.indexes import pull_index


def command(
    source: Annotated[str, typer.Argument(help="owner/name[@revision], a data set of the hub; or a URL of storage.")],
    index: Annotated[Path, typer.Argument(help="Folder of the index.")],
    with_places: Annotated[bool, typer.Option("--with-places", help="Take an index that names folders.")] = False,
    overwrite: cli.Overwrite = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Pull an index from the Hugging Face hub or from storage; every file is compared with its digest.

    Example: python -m lexvl_plugins.exchange.sharing.pull me/demo-index indexes/demo
    """
    cli.print_rows(pull_index(source, index, overwrite, with_places), style)


if __name__ == "__main__":
    cli.run(command)
