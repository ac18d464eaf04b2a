"""Shards -> index: in partitions by the processes of a cluster, or any index; folders may be URLs of storage."""

from __future__ import annotations

from typing import Any

from lexvl_anserini import index
from lexvl_anserini.engines.engine import find_urls
from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.cluster.options import RunnerOptions, extend, print_urls
from lexvl_plugins.cluster.parts import fetch_shards
from lexvl_plugins.cluster.runners import run_on
from lexvl_plugins.cluster.storage import find_url, place, publish, refresh

# The options of changes, which are made to local folders.
CHANGES = ("append", "replace", "delete_ids", "check", "approximate")


@extend(index.command)
def command(runner: RunnerOptions, **options: Any) -> None:
    """Build an index, with --engine partitions one of each of SHARDS; all folders may be URLs of storage.

    Example: lexvl cluster-index impacts/demo --engine partitions --index indexes/demo
    """
    partitions, where = options.get("engine") == "partitions", options.get("index")
    with print_urls():
        if where is not None and not find_urls(where):
            where = place(where)
            if find_url(where) and (changes := [name for name in CHANGES if options.get(name)]):
                raise UsageError(f"--{changes[0].replace('_', '-')}: an index in storage is built again (--overwrite)")
            options["index"] = str(refresh(where))
        options["shards"] = [str(fetch_shards(place(each), partitions)) for each in options.get("shards") or ()]
        names = [field.partition("=") for field in options.get("fields") or ()]
        options["fields"] = [f"{name}={fetch_shards(place(folder))}" for name, _, folder in names]
        with run_on(runner):
            index.command(**options)
        # The engine of partitions publishes the index that it builds.
        if where is not None and not partitions and not options.get("dry_run"):
            publish(where)
