"""The stores that test the contract of `lexvl_plugins/stores`: a store in memory, embedded ones, and real servers."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lexvl_anserini.engines.engine import get_engine
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_plugins.stores.qdrant import QdrantEngine
from lexvl_plugins.stores.store import ImpactStore, StoreRow, Trouble, make_key, parse_url

# The packages of each store, that of its server last:
# qdrant-client re-implements its server in Python, qdrant-edge is the engine of Qdrant's server, osmem-server answers
# OpenSearch's HTTP requests.
PACKAGES = {
    "qdrant": ("qdrant_client",),
    "qdrant-edge": ("qdrant_edge",),
    "opensearch": ("opensearchpy", "osmem_server"),
}
FOLDERS = {"qdrant": "qdrant+file:{}/qdrant/", "qdrant-edge": "qdrant+edge:{}/edge/"}
KINDS = ("memory", *PACKAGES)
# The URL of an index by its name.
UrlOf = Callable[[str], str]
# Where tests find a real server of a store: its URL without the name of an index.
VARIABLES = {"qdrant": "LEXVL_TEST_QDRANT", "opensearch": "LEXVL_TEST_OPENSEARCH"}


class MemoryStore(ImpactStore):
    """A store in this process, as the smallest that fulfils the contract; ties come in the wrong order.

    tables  by place, of all instances
    rounds  added to every score
    """

    title = "Memory"
    package = "json"
    extra = "none"
    tables: ClassVar[dict[str, dict[str, Any]]] = {}
    rounds: ClassVar[float] = 0

    def _connect(self) -> None:
        self.here = self.tables.setdefault(self.place.path, {})

    def _explain(self, error: Exception) -> Trouble | None:
        return None

    def open(self) -> bool:
        table = self.here.get(self.place.name)
        if table is not None and not isinstance(table, str):
            raise ArtefactError(f"{self.place}: a table that is no index of ours; name another index")
        self.table = table or self.table
        return table is not None

    def begin(self) -> None:
        for left in [name for name in self.here if self.is_ours(name) and name != self.here.get(self.place.name)]:
            del self.here[left]
        self.table = self.fresh_name()
        self.here[self.table] = {}

    def add(self, rows: Sequence[StoreRow]) -> None:
        self.here[self.table] |= {row.doc_id: row for row in rows}

    def settle(self) -> None:
        return

    def publish(self) -> None:
        older = self.here.get(self.place.name)
        self.here[self.place.name] = self.table
        self.here.pop(older, None)

    def abandon(self) -> None:
        if self.here.get(self.place.name) != self.table:
            del self.here[self.table]

    def rows(self, names: Sequence[str]) -> list[StoreRow]:
        table = self.here[self.table]
        return [table[name] for name in names if name in table]

    def count(self) -> int:
        return len(self.here[self.table])

    def top(self, dims: Sequence[int], weights: Sequence[int], count: int) -> list[tuple[str, float]]:
        assert self.most_terms is None or len(dims) <= self.most_terms
        hits = []
        for doc_id, row in self.here[self.table].items():
            vector = dict(zip(row.dims, row.impacts, strict=True))
            score = sum(weight * vector.get(dim, 0) for dim, weight in zip(dims, weights, strict=True))
            hits += [(doc_id, score + self.rounds)] if score else []
        if self.ordered:
            return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:count]
        return sorted(hits, key=lambda hit: (hit[1], hit[0]), reverse=True)[:count]

    def size(self) -> int | None:
        return None


@contextmanager
def serving(kind: str, folder: Path) -> Iterator[UrlOf]:
    """The URLs of indexes in a store, which a server answers where the store needs one; skips without its packages."""
    given = os.environ.get(VARIABLES.get(kind, ""), "")
    if given:
        yield lambda name: f"{given.rstrip('/')}/{name}"
    elif kind == "memory":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(QdrantEngine, "store_class", classmethod(lambda cls, place: MemoryStore))
            yield lambda name: f"qdrant+file:{folder}/memory/{name}"
    else:
        package = [pytest.importorskip(name, reason=f"{kind} needs {name}") for name in PACKAGES[kind]][-1]
        if kind in FOLDERS:
            yield lambda name: FOLDERS[kind].format(folder) + name
        else:
            with package.OsmemServer.start() as running:
                yield lambda name: f"opensearch+{running.url}/{name}"


@contextmanager
def opened(url: str) -> Iterator[ImpactStore]:
    place = parse_url(url)
    store = get_engine(place.engine).store_class(place)(place)  # type: ignore[attr-defined]
    try:
        store.open()
        yield store
    finally:
        store.close()


# Acts behind the back of each class of stores: drop a document, make a table of others, list and remove tables.
ACTS: dict[str, tuple[Callable[..., Any], ...]] = {
    "MemoryStore": (
        lambda store, doc_id: store.here[store.table].pop(doc_id),
        lambda store, name: store.here.update({name: {}}),
        lambda store: (name for name, table in store.here.items() if not isinstance(table, str)),
        lambda store, name: None,
    ),
    "QdrantStore": (
        lambda store, doc_id: store.served.delete(store.table, points_selector=[make_key(doc_id)]),
        lambda store, name: store.served.create_collection(name, vectors_config={}),
        lambda store: (collection.name for collection in store.served.get_collections().collections),
        lambda store, name: store.served.delete_collection(name),
    ),
    "EdgeStore": (
        lambda store, doc_id: store.shard.update(store.edge.UpdateOperation.delete_points([make_key(doc_id)])),
        lambda store, name: (Path(store.place.path) / name).mkdir(),
        lambda store: (path.name for path in Path(store.place.path).iterdir()),
        lambda store, name: None,
    ),
    "OpenSearchStore": (
        lambda store, doc_id: store.served.delete(index=store.table, id=make_key(doc_id), refresh=True),
        lambda store, name: store.served.indices.create(index=name),
        lambda store: store.served.indices.get_alias(index="*"),
        lambda store, name: store.served.indices.delete(index=name),
    ),
}


def drop_document(store: ImpactStore, doc_id: str) -> None:
    ACTS[type(store).__name__][0](store, doc_id)
    store.settle()


def make_foreign(store: ImpactStore, name: str) -> None:
    ACTS[type(store).__name__][1](store, name)


def tables_of(store: ImpactStore) -> set[str]:
    return set(ACTS[type(store).__name__][2](store))


def clear(url: str, prefix: str) -> None:
    """Removes the tables of a server whose names begin so; embedded stores go with their folder."""
    with opened(url) as store:
        for name in [name for name in tables_of(store) if name.startswith(prefix)]:
            ACTS[type(store).__name__][3](store, name)


# A build that stops after its first documents, and waits to be killed.
KILLED = """
import sys, time
from pathlib import Path
from lexvl_anserini.searching.building import build_index
from lexvl_plugins.stores import building
building.BATCH_ROWS = 2
def progress(n):
    print("loading", flush=True)
    time.sleep(60)
build_index(Path(sys.argv[1]), sys.argv[2], overwrite=True, progress=progress)
"""


def killed_build(shards: Path, url: str) -> None:
    command = [sys.executable, "-c", KILLED, str(shards), url]
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    building = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert building.stdout is not None
    try:
        assert building.stdout.readline() == "loading\n"
    finally:
        building.kill()
        building.communicate()
