"""The command `lexvl publish`: an index -> a folder of static files that searches in a browser, without a server."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lexvl_anserini import cli
from lexvl_anserini.engines.index_folder import index_manifest


def command(
    index: Annotated[Path, typer.Argument(help="Folder of an impact index.")],
    site: Annotated[Path, typer.Argument(help="Folder of the site; one with other files is refused.")],
    name: Annotated[str | None, typer.Option(help="Title of the page; default that of the index.")] = None,
    example: Annotated[
        list[str] | None, typer.Option(help="A query that the page offers; repeatable. Default the corpus's own.")
    ] = None,
    side: Annotated[int, typer.Option(min=32, max=2048, help="Pixels of a thumbnail's longer side.")] = 320,
    map_terms: Annotated[
        int, typer.Option(min=0, max=255, help="Terms of a picture with a map of where they are; 0 for no maps.")
    ] = 10,
    replace_ids: Annotated[
        bool, typer.Option("--replace-ids", help="Numbers in the place of document ids, which may be file names.")
    ] = False,
    settings: cli.Settings = None,
    checkpoint: cli.MovedCheckpoint = None,
    data_dir: cli.DataDir = None,
    device: cli.Device = "auto",
    overwrite: cli.Overwrite = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Publish an index as static files: its search page works on any web server, and from a disk.

    Queries are bare words, as search --set mode=alpha reads them, with the same hits and scores.

    Example: python -m lexvl_plugins.serve.publish indexes/demo sites/demo
    """
    from lexvl_plugins.serve.indexes import name_indexes
    from lexvl_plugins.serve.site import Publication, find_bag_mode, publish

    started = time.perf_counter()
    options = {**find_bag_mode(index_manifest(index).encoder.name), **cli.parse_settings(settings or ())}
    [served] = name_indexes([index], [checkpoint] if checkpoint else [], device, data_dir, options)
    publication = Publication(side, map_terms, replace_ids, tuple(example or ()))
    with cli.progress_bar(f"publish {index}", None, "documents") as progress:
        rows = publish(replace(served, name=name or served.name), site, publication, overwrite, progress)
    cli.print_rows(
        {"site": str(site / "index.html"), **rows, "seconds": round(time.perf_counter() - started, 2)}, style
    )


if __name__ == "__main__":
    cli.run(command)
