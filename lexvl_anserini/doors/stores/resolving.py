"""From the URL of an index in a store to its local folder; `engines.targets` calls these for every command."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lexvl_anserini.doors.stores.engine import StoreEngine
from lexvl_anserini.doors.stores.folder import Notes, folder_of, write_folder
from lexvl_anserini.doors.stores.urls import StorePlace, parse_url
from lexvl_anserini.engines.opening import Target, engine_class
from lexvl_anserini.ground.errors import ArtefactError, UsageError


def copied(url: Path | str) -> Path:
    """The local folder of an index in a store."""
    place = parse_url(url)
    folder = _refreshed(place)
    if not folder.exists():
        raise ArtefactError(
            f"{place}: no such index; build it with python -m lexvl_anserini.index SHARDS --index {place}"
        )
    return folder


def target(url: Path | str, engine: str | None, options: Mapping[str, Any]) -> Target:
    """Where `index` writes an index in a store."""
    place = parse_url(url)
    if engine not in (None, place.engine):
        raise UsageError(f"--engine {engine}, but {place} is of {place.engine}; leave out --engine")
    return Target(_refreshed(place), place.engine, {**options, "url": str(place)})


def _refreshed(place: StorePlace) -> Path:
    """The local folder with what the store has now; no folder if the store has no such index."""
    folder, notes = folder_of(place), _read(place)
    if notes is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        write_folder(folder, place, notes)
    return folder


def _read(place: StorePlace) -> Notes | None:
    engine = engine_class(place.engine)
    assert issubclass(engine, StoreEngine), place.engine
    return engine.read(place)
