"""The local folder that stands for an index in a store: commands turn the URL into it, and then read a folder.

$LEXVL_DATA/stores/NAME-DIGEST/ is compared with the store each time, so that it follows an index that another machine
rebuilds. Its files come from the notes of the index, texts beside the documents that hold the files, compressed
and cut into pieces. Note 0 begins with the number of notes and the token of the build.
"""

from __future__ import annotations

import base64
import re
import shutil
import time
import zlib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.engines.engine import Target, get_engine
from lexvl_anserini.engines.index_folder import REPORT, IndexReport
from lexvl_anserini.ground.errors import ArtefactError, BusyError, UsageError
from lexvl_anserini.ground.files import atomic_write, format_json, new_folder, parse_json, sole_writer
from lexvl_anserini.ground.manifest import MANIFEST
from lexvl_anserini.ground.records import VOCABULARY
from lexvl_anserini.ground.typed import check
from lexvl_plugins.stores.store import ImpactStore, StorePlace, parse_url

FORMAT = "lexvl-store/1"
GREATEST = "greatest.txt"
FILES = frozenset({MANIFEST, REPORT, VOCABULARY, GREATEST})
# The most bytes of all notes, unpacked: enough for a manifest of some million shards.
MOST_BYTES = 1 << 30
# Characters of a note.
PIECE = 60_000
# Seconds to wait for another process that writes the same local folder.
PATIENCE_S = 10.0


class StoreReport(IndexReport):
    """The types of index.json of a store: in the notes of the index, and with `url` and `token` in its local folder.

    Attributes:
        rounded: impacts that the store does not hold exactly.
        probes: documents whose lists were compared with those of the shards.
        lists_changed: the share of the probes' lists that differ.
        largest_difference: of a score in these lists.
        token: of the build, the same for all readers.
    """

    rounded: int = 0
    probes: int = 0
    lists_changed: float = 0.0
    largest_difference: float = 0.0
    url: str = ""
    token: str = ""


class Notes(NamedTuple):
    """The files of an index by name, and the token of its build, the same for all readers."""

    token: str
    files: Mapping[str, str]


def write_notes(files: Mapping[str, str], token: str) -> list[str]:
    """The notes of an index's files."""
    packed = base64.b64encode(zlib.compress(orjson.dumps(dict(files)))).decode()
    pieces = [packed[start : start + PIECE] for start in range(0, len(packed), PIECE)]
    return [f"{FORMAT} {len(pieces)} {token} {pieces[0]}", *pieces[1:]]


def read_header(store: ImpactStore) -> tuple[str, int, str]:
    """Token, number of notes and the rest of note 0 of an open index."""
    notes = store.read_notes(0, 1)
    parts = notes[0].split(" ") if notes else []
    if len(parts) != 4 or parts[0] != FORMAT or not re.fullmatch(r"[1-9]\d{0,5}", parts[1]):
        reason = f"its notes begin with {parts[0][:40]!r}" if parts else "it has no notes"
        raise ArtefactError(f"{store.place}: no index of this version ({reason}); name another index")
    return parts[2], int(parts[1]), parts[3]


def read_notes(store: ImpactStore) -> Notes:
    """The notes of an open index."""
    token, count, first = read_header(store)
    rest = store.read_notes(1, count - 1) if count > 1 else []
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(base64.b64decode("".join([first, *rest]), validate=True), MOST_BYTES)
        if not unpacking.eof:
            raise ValueError("cut short, or too long")
        files = parse_json(content, f"{store.place}: its notes", ArtefactError)
        if not isinstance(files, dict) or files.keys() != FILES or set(map(type, files.values())) != {str}:
            raise ValueError(f"expected the texts of {', '.join(sorted(FILES))}")
        report = parse_json(files[REPORT].encode(), f"{store.place}: index.json", ArtefactError)
        if not isinstance(report, dict) or report.get("engine") != store.place.engine:
            raise ValueError(f"index.json is not of {store.place.engine}")
        check(report, StoreReport, f"{store.place}: index.json", "build it again (--overwrite)")
    except (ValueError, zlib.error) as error:
        raise ArtefactError(f"{store.place}: its notes are damaged ({error}); build it again (--overwrite)") from error
    return Notes(token, files)


def name_folder(place: StorePlace) -> Path:
    """The local folder of a place."""
    return data_root(None) / "stores" / f"{place.name}-{sha256(str(place).encode()).hexdigest()[:12]}"


def write_folder(folder: Path, place: StorePlace, notes: Notes) -> None:
    """Writes the local folder of an index, unless it has the same content; waits for another process that writes it."""
    report = {**orjson.loads(notes.files[REPORT]), "url": str(place), "token": notes.token}
    files = {**{name: text.encode() for name, text in notes.files.items()}, REPORT: format_json(report)}

    def is_written() -> bool:
        try:
            return all((folder / name).read_bytes() == content for name, content in files.items())
        except OSError:
            return False

    end = time.monotonic() + PATIENCE_S
    while not is_written():
        try:
            with new_folder(folder) as part:
                for name, content in files.items():
                    with atomic_write(part / name) as out:
                        out.write(content)
            return
        except BusyError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def copied(url: Path | str) -> Path:
    """The local folder of an index in a store."""
    place = parse_url(url)
    folder = refresh_folder(place)
    if not folder.exists():
        raise ArtefactError(f"{place}: no such index; build it with lexvl index SHARDS --index {place}")
    return folder


def target(url: Path | str, engine: str | None, options: Mapping[str, Any]) -> Target:
    """Where `index` writes an index in a store."""
    place = parse_url(url)
    if engine not in (None, place.engine):
        raise UsageError(f"--engine {engine}, but {place} is of {place.engine}; leave out --engine")
    return Target(refresh_folder(place), place.engine, {**options, "url": str(place)})


def refresh_folder(place: StorePlace) -> Path:
    """The local folder with what the store has now; no folder if the store has no such index."""
    engine: Any = get_engine(place.engine)
    folder, notes = name_folder(place), engine.read(place)
    if notes is not None:
        write_folder(folder, place, notes)
    elif folder.exists():
        with sole_writer(folder, folder=True):
            shutil.rmtree(folder, ignore_errors=True)
    return folder
