"""Which engine an index has, and opening the index with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from lexvl_anserini.engines.engine import ChangingEngine, Engine, ImpactEngine
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.ground.errors import ArtefactError, UnknownName, UsageError
from lexvl_anserini.ground.manifest import Manifest, expect_lexical, read_manifest
from lexvl_plugins.cluster.places import fetched, place, refreshed
from lexvl_anserini.ground.registry import DEFAULT_ENGINES, DOORS_HOME, ENGINES, GONE_ENGINES, door, resolve

OpenEngine = TypeVar("OpenEngine", bound=Engine)


def engine_name(kind: str, requested: str | None = None) -> str:
    """The name of the engine for shards of a kind: `requested`, or the kind's default."""
    if kind not in DEFAULT_ENGINES:
        raise UnknownName("engine", kind, DEFAULT_ENGINES)
    name = requested or DEFAULT_ENGINES[kind]
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    if kind not in ENGINES[name].kinds:
        fitting = ", ".join(sorted(name for name, row in ENGINES.items() if kind in row.kinds))
        raise UsageError(
            f"engine {name!r} indexes {' and '.join(ENGINES[name].kinds)} shards, these are {kind}; expected {fitting}"
        )
    return name


def engine_class(name: str) -> type[Engine]:
    """The class of a registered engine."""
    cls: type[Engine] = resolve("engine", name, {name: row.home for name, row in ENGINES.items()})
    return cls


def engine_of(index: Path, kind: str) -> type[Engine]:
    """The class of the engine that built an index; of an index without index.json the default for its kind."""
    return engine_class(engine_name(kind, read_report(index).get("engine")))


def open_index(index: Path, manifest: Manifest) -> Engine:
    """Opens an index with the engine that built it."""
    if not index.is_dir():  # Lucene would make the folder
        raise ArtefactError(f"{index}: no such index; it was removed")
    return engine_of(index, manifest.kind)(index, manifest)


@contextmanager
def verified(engine: OpenEngine) -> Iterator[OpenEngine]:
    """Closes an engine at the end, whose answers count only if none of its files turned out to be damaged."""
    try:
        yield engine
        engine.verified()
    finally:
        engine.close()


def open_impact_index(index: Path, manifest: Manifest) -> ImpactEngine:
    """Opens an impact index; as `open_index`."""
    expect_lexical(index, manifest.kind, "expected an impact index")
    return cast(ImpactEngine, open_index(index, manifest))


def changing_engine(folder: Path, engine: str | None) -> type[ChangingEngine]:
    """The engine for a folder of shards or an index, which can merge and change indexes."""
    kind = read_manifest(folder).kind
    name = engine_name(kind, engine)
    cls = engine_class(name)
    if not issubclass(cls, ChangingEngine):
        able = ", ".join(name for name in ENGINES if issubclass(engine_class(name), ChangingEngine))
        raise UsageError(
            f"{folder}: {kind}, for the engine {name}; only indexes of {able} (impacts) are merged, changed and "
            "checked; build it again"
        )
    return cls


# The engines whose indexes have URLs: `qdrant+http://HOST/NAME`.
STORES = tuple(name for name, row in ENGINES.items() if row.home.startswith(f"{DOORS_HOME}.stores."))


class Target(NamedTuple):
    """Where `index` writes: a local folder, and for a store its engine and the options with its URL."""

    folder: Path
    engine: str | None
    options: dict[str, Any]


def is_store_url(index: str | Path) -> bool:
    """True for the URL of an index in a store, also of a store of older versions; False for a folder."""
    scheme, colon, _ = str(index).partition(":")
    return bool(colon) and scheme.partition("+")[0] in (*STORES, *GONE_ENGINES)


def index_name(index: str | Path) -> str:
    """The name of an index: that of its folder, or the last part of its URL; empty for the root of a disk."""
    if is_store_url(index):
        return str(index).rpartition("/")[2]
    return Path(index).resolve().name


def index_path(index: Path | str) -> Path:
    """The folder of an index: a folder as it is, the local copy of one in storage, or that of an index in a store."""
    if is_store_url(index):
        folder: Path = door("stores.folder").copied(index)
        return folder
    return fetched(place(index))


def target_of(index: Path | str, engine: str | None, options: Mapping[str, Any]) -> Target:
    """Where an index is to be written; the local folder of a URL has what the store has, or is absent."""
    if is_store_url(index):
        target: Target = door("stores.folder").target(index, engine, options)
        return target
    return Target(refreshed(place(index)), engine, dict(options))
