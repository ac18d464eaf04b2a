"""The local folder of an index in a store: commands turn a URL into it, and behind them an index is a folder.

$LEXVL_DATA/stores/NAME-DIGEST/ has manifest.json, index.json, vocab.txt and greatest.txt of the index. It is compared
with the store each time, so that it follows an index that another machine built again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import orjson

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.doors.stores.notes import Notes
from lexvl_anserini.doors.stores.urls import StorePlace
from lexvl_anserini.engines.index_folder import REPORT
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.files import atomic_write, json_bytes, new_folder

# Seconds to wait for another process that writes the same local folder.
PATIENCE_S = 10.0


def folder_of(place: StorePlace) -> Path:
    """The local folder of a place."""
    return data_root(None) / "stores" / f"{place.name}-{sha256(str(place).encode()).hexdigest()[:12]}"


def write_folder(folder: Path, place: StorePlace, notes: Notes) -> None:
    """Writes the local folder of an index, unless it has the same content; waits for another process that writes it.

    Raises:
        ArtefactError: the disk is full, the folder cannot be written, or another process keeps it.
    """
    report = {**orjson.loads(notes.files[REPORT]), "url": str(place), "token": notes.token}
    files = {**{name: text.encode() for name, text in notes.files.items()}, REPORT: json_bytes(report)}
    end = time.monotonic() + PATIENCE_S
    while not _holds(folder, files):
        try:
            with new_folder(folder) as part:
                for name, content in files.items():
                    with atomic_write(part / name) as out:
                        out.write(content)
        except ArtefactError as error:
            if "another process" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.05)


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    try:
        return all((folder / name).read_bytes() == content for name, content in files.items())
    except OSError:
        return False
