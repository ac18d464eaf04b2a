"""From the URL of an index in a store to its local folder: where commands take a folder, they take a URL too."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.doors.stores.engine import StoreEngine
from lexvl_anserini.doors.stores.folder import folder_of, write_folder
from lexvl_anserini.doors.stores.notes import Notes
from lexvl_anserini.doors.stores.urls import StorePlace, is_url, parse_url
from lexvl_anserini.engines.opening import engine_class
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.places import fetched, refreshed
from lexvl_anserini.ground.places import place as local_place


class Target(NamedTuple):
    """Where `index` writes: a local folder, and for a store its engine and the options with its URL."""

    folder: Path
    engine: str | None
    options: dict[str, Any]


def index_path(index: Path | str) -> Path:
    """The folder of an index: a folder as it is, the local copy of one in storage, or that of an index in a store.

    Raises:
        UsageError: a malformed URL, or the client of the store is not installed.
        ArtefactError: the store has no such index.
        StoreError: the store cannot be reached.
    """
    if not is_url(index):
        return fetched(local_place(index))
    place = parse_url(index)
    folder, notes = folder_of(place), _read(place)
    if notes is None:
        shutil.rmtree(folder, ignore_errors=True)
        raise ArtefactError(
            f"{place}: no such index; build it with python -m lexvl_anserini.index SHARDS --index {place}"
        )
    write_folder(folder, place, notes)
    return folder


def target_of(index: Path | str, engine: str | None, options: Mapping[str, Any]) -> Target:
    """Where an index is to be written; the local folder of a URL holds what the store has, nothing if it has nothing.

    Raises:
        UsageError: the engine is not the URL's.
        LexvlError: as `index_path`.
    """
    if not is_url(index):
        return Target(refreshed(local_place(index)), engine, dict(options))
    place = parse_url(index)
    if engine not in (None, place.engine):
        raise UsageError(f"--engine {engine}, but {place} is of {place.engine}; leave out --engine")
    folder, notes = folder_of(place), _read(place)
    if notes is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        write_folder(folder, place, notes)
    return Target(folder, place.engine, {**options, "url": str(place)})


def _read(place: StorePlace) -> Notes | None:
    found = engine_class(place.engine)
    assert issubclass(found, StoreEngine), place.engine
    return found.read(place)
