"""Index x topics -> run: an index in partitions by the processes of a cluster; an index in storage by its URL."""

from __future__ import annotations

from typing import Any

from lexvl_anserini import search
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.cluster.options import RunnerOptions, extend, print_urls
from lexvl_plugins.cluster.runners import run_on
from lexvl_plugins.cluster.storage import fetch, place


@extend(search.command)
def command(runner: RunnerOptions, **options: Any) -> None:
    """Search an index in partitions by the processes of a cluster, or an index in storage by its URL.

    Example: lexvl cluster-search --index indexes/demo --topics demo/test --output runs/demo.trec --runner ray
    """
    with print_urls():
        name = options["index"]
        index = fetch(place(name))
        if runner.runner != "local" and not read_report(index).partitions:
            raise UsageError(f"--runner {runner.runner} searches an index in partitions, {name} is one index")
        with run_on(runner):
            search.command(**options | {"index": str(index)})
