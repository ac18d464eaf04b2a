"""Which engine an index has, and opening the index with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from lexvl_anserini.engines.engine import ChangingEngine, Engine, ImpactEngine
from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.ground.errors import ArtefactError, UnknownName, UsageError
from lexvl_anserini.ground.manifest import Manifest, expect_lexical, read_manifest
from lexvl_anserini.ground.registry import DEFAULT_ENGINES, ENGINES, import_home, refuse_gone_engine

OpenEngine = TypeVar("OpenEngine", bound=Engine)


def choose_engine(kind: str, requested: str | None = None) -> str:
    """The name of the engine for shards of a kind: `requested`, or the kind's default."""
    if kind not in DEFAULT_ENGINES:
        raise UnknownName("engine", kind, DEFAULT_ENGINES)
    name = requested or DEFAULT_ENGINES[kind]
    kinds = ENGINES[name].kinds
    if kind not in kinds:
        fitting = ", ".join(sorted(name for name, row in ENGINES.items() if kind in row.kinds))
        raise UsageError(f"engine {name!r} indexes {' and '.join(kinds)} shards, these are {kind}; expected {fitting}")
    return name


def get_engine(name: str) -> type[Engine]:
    """The class of a registered engine."""
    cls: type[Engine] = import_home(ENGINES[name].home)
    return cls


def find_engine(index: Path, kind: str) -> type[Engine]:
    """The class of the engine that built an index; of an index without index.json the default for its kind."""
    return get_engine(choose_engine(kind, read_report(index).get("engine")))


def open_index(index: Path, manifest: Manifest) -> Engine:
    """Opens an index with the engine that built it."""
    if not index.is_dir():  # Lucene would make the folder
        raise ArtefactError(f"{index}: no such index; it was removed")
    return find_engine(index, manifest.kind)(index, manifest)


@contextmanager
def open_verified(engine: OpenEngine) -> Iterator[OpenEngine]:
    """Closes an engine at the end, whose answers count only if none of its files turned out to be damaged."""
    try:
        yield engine
        engine.verify()
    finally:
        engine.close()


def open_impact_index(index: Path, manifest: Manifest) -> ImpactEngine:
    """Opens an impact index; as `open_index`."""
    expect_lexical(index, manifest.kind, "expected an impact index")
    return cast(ImpactEngine, open_index(index, manifest))


def get_changing_engine(folder: Path, engine: str | None) -> type[ChangingEngine]:
    """The engine for a folder of shards or an index, which can merge and change indexes."""
    kind = read_manifest(folder).kind
    name = choose_engine(kind, engine)
    cls = get_engine(name)
    if not issubclass(cls, ChangingEngine):
        able = ", ".join(name for name in ENGINES if issubclass(get_engine(name), ChangingEngine))
        raise UsageError(
            f"{folder}: {kind}, for the engine {name}; only indexes of {able} (impacts) are merged, changed and "
            "checked; build it again"
        )
    return cls


# The beginning of the URL of an index: the name of its engine, and a form of URL.
_URL = re.compile(r"([a-z][a-z\d]*)(?:\+\w*)?:")


class Target(NamedTuple):
    """Where `index` writes: a local folder; for a URL its engine, and the options that have the URL."""

    folder: Path
    engine: str | None
    options: dict[str, Any]


def find_urls(index: str | Path) -> Any:
    """What an engine says of the URLs of its indexes: its functions `copied` and `target`; None for a folder."""
    match = _URL.match(str(index))
    if match is None:
        return None
    refuse_gone_engine(match[1], match[1])
    row = ENGINES.get(match[1])
    return import_home(row.urls) if row and row.urls else None


def index_name(index: str | Path) -> str:
    """The name of an index: that of its folder, or the last part of its URL; empty for the root of a disk."""
    return str(index).rpartition("/")[2] if find_urls(index) else Path(index).resolve().name


def index_path(index: Path | str) -> Path:
    """The folder of an index; of a URL, the local folder that has what its engine says of it."""
    urls = find_urls(index)
    folder: Path = urls.copied(index) if urls else Path(index)
    return folder


def resolve_target(index: Path | str, engine: str | None, options: Mapping[str, Any]) -> Target:
    """Where an index is to be written; the local folder of a URL has what is there, or is absent."""
    urls = find_urls(index)
    target: Target = urls.target(index, engine, options) if urls else Target(Path(index), engine, dict(options))
    return target
