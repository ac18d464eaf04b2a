"""The command `lexvl adopt`: an index of stock Anserini or Pyserini gets a manifest, and is searched as ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini import cli
from lexvl_anserini.encode import QuantiserOptions
from lexvl_plugins.exchange.import_shards import MakerOptions


@cli.expand_options
def command(
    index: Annotated[Path, typer.Argument(help="Folder of an impact index that stock Anserini or Pyserini built.")],
    *,
    maker: MakerOptions,
    quantised: QuantiserOptions,
    overwrite: cli.Overwrite = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Add a manifest, a vocabulary and resident postings to a stock impact index, after reading it; its own files stay.

    Example: python -m lexvl_plugins.exchange.adopt indexes/stock
    """
    from lexvl_plugins.exchange.adopting import adopt_index
    from lexvl_plugins.exchange.importing import ImportSettings

    manifest = adopt_index(index, ImportSettings(maker.corpus, maker.load(), quantised.load()), overwrite)
    terms = {"terms": manifest.vocabulary["size"]}
    cli.print_rows({"index": str(index), "encoder": manifest.encoder.name, **manifest.counts, **terms}, style)


if __name__ == "__main__":
    cli.run(command)
