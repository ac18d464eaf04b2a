"""The command `lexvl export-ciff`: index -> a file that PISA, Anserini, Terrier, BMP and other systems read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini import cli


def command(
    index: Annotated[Path, typer.Argument(help="Folder of an impact index, ours or stock Anserini's.")],
    output: Annotated[Path, typer.Argument(help="File to write; a name in .gz or .zst is compressed.")],
    overwrite: cli.Overwrite = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Export the postings of an impact index in the Common Index File Format, which `import` reads.

    Example: python -m lexvl_plugins.exchange.export_ciff indexes/demo demo.ciff.gz
    """
    from lexvl_plugins.exchange.ciff_writing import export_ciff

    started = time.perf_counter()
    with cli.progress_bar(f"export {index}", None, "postings") as progress:
        rows = export_ciff(index, output, overwrite, progress)
    cli.print_rows({**rows, "seconds": round(time.perf_counter() - started, 2)}, style)


if __name__ == "__main__":
    cli.run(command)
