"""Where an index is: a folder, the local copy of a folder in storage, or the URL of an index in a store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.ground.places import fetched, place, refreshed
from lexvl_anserini.ground.registry import DOORS_HOME, ENGINES, door

# The engines whose indexes have URLs: `qdrant+http://HOST/NAME`, `pgvector://HOST/DATABASE/NAME`.
STORES = tuple(name for name, row in ENGINES.items() if row.home.startswith(f"{DOORS_HOME}.stores."))


class Target(NamedTuple):
    """Where `index` writes: a local folder, and for a store its engine and the options with its URL."""

    folder: Path
    engine: str | None
    options: dict[str, Any]


def is_store_url(index: str | Path) -> bool:
    """True for the URL of an index in a store, False for a folder."""
    scheme, colon, _ = str(index).partition(":")
    return bool(colon) and scheme.partition("+")[0] in STORES


def index_name(index: str | Path) -> str:
    """The name of an index: that of its folder, or the last part of its URL; empty for the root of a disk."""
    if is_store_url(index):
        return str(index).partition("?")[0].rpartition("/")[2]
    return Path(index).resolve().name


def index_path(index: Path | str) -> Path:
    """The folder of an index: a folder as it is, the local copy of one in storage, or that of an index in a store.

    Raises:
        UsageError: a malformed URL, or the client of the store is not installed.
        ArtefactError: the store has no such index.
        StoreError: the store cannot be reached.
    """
    if is_store_url(index):
        folder: Path = door("stores.resolving").copied(index)
        return folder
    return fetched(place(index))


def target_of(index: Path | str, engine: str | None, options: Mapping[str, Any]) -> Target:
    """Where an index is to be written; the local folder of a URL holds what the store has, nothing if it has nothing.

    Raises:
        UsageError: the engine is not the URL's.
        LexvlError: as `index_path`.
    """
    if is_store_url(index):
        target: Target = door("stores.resolving").target(index, engine, options)
        return target
    return Target(refreshed(place(index)), engine, dict(options))
