"""What was measured of published tables: one JSON file, which every further call completes and renews.

It has `cells` ("table | row | column" -> what `RecordedCell` has) and `environments` (digest -> the processor and the
versions with which cells were measured).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.files import exclusive, format_json, make_folder, read_json, write_json

from ..measures.result_files import machine
from .tables import ReproducedCell

# What of a machine decides values, or says where they are from.
OF_ENVIRONMENT = ("processor", "python", "versions")


class RecordedCell(NamedTuple):
    """A measured cell.

    measured, verdict, reason   as in `ReproducedCell`
    date                        of the measurement, UTC
    model                       the digest of the checkpoint; empty where none is loaded
    environment                 a key of the file's environments, or, when it is read, that environment
    """

    measured: float
    verdict: str
    reason: str
    date: str
    model: str
    environment: Any


def key_of(table: str, row: str, column: str) -> str:
    """The key of a cell."""
    return " | ".join((table, row, column))


def read_record(path: Path) -> dict[str, RecordedCell]:
    """The cells of a record by their keys, with their environments; none where there is no file.

    Raises:
        DataError: the file is no record.
    """
    if not path.exists():
        return {}
    content = read_json(path, "record of measured cells", DataError)
    try:
        environments = content["environments"]
        return {
            key: RecordedCell(**{**cell, "environment": environments[cell["environment"]]})
            for key, cell in content["cells"].items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: no record of measured cells ({error}); move it elsewhere") from None


def write_record(path: Path, cells: Iterable[ReproducedCell]) -> None:
    """Adds measured cells to a record, in the place of those that it has; what was not measured stays as it is."""
    make_folder(path.parent)
    with exclusive(path.parent, wait=True):
        facts = machine()
        environment = {name: facts[name] for name in OF_ENVIRONMENT}
        today = datetime.now(UTC).date().isoformat()
        fresh = {
            key_of(cell.table, cell.row, cell.column): RecordedCell(
                round(cell.measured, 6), cell.verdict, cell.reason, today, cell.model, environment
            )
            for cell in cells
            if cell.measured is not None
        }
        write_json(path, _content({**read_record(path), **fresh}))


def _content(cells: Mapping[str, RecordedCell]) -> dict[str, Any]:
    digests = {key: sha256(format_json(cell.environment)).hexdigest()[:12] for key, cell in cells.items()}
    return {
        "cells": {key: cells[key]._replace(environment=digests[key])._asdict() for key in sorted(cells)},
        "environments": {digests[key]: cells[key].environment for key in sorted(cells)},
    }
