"""Values of parts of rows, `OUTPUT/parts/<part>.json`: found by what decides them, or measured and written."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.loading import digest_of, other_parts
from lexvl_anserini.ground.claims import same_request
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.files import disk_errors, exclusive, make_folder, read_json, write_json

from .prepared import Prepared, prepare
from .rows import Finding, RowPart, Workplace

# How far a value from 0 to 1 may be from the published one: 0.3 points with vectors of 8 bits, else 0.1.
TOLERANCES = {True: 0.003, False: 0.001}


def found_or_made(
    part: RowPart, place: Workplace, make: Callable[[RowPart, Prepared, Workplace], dict[str, Any]]
) -> Finding:
    """The result of a part.

    Args:
        part: of a row.
        place: where results are.
        make: returns `values` by measure, whether the vectors are `quantised`, and what else is worth keeping.

    Raises:
        CheckpointError: the weights are not published, or cannot be had.
        LexvlError: `make` fails.
    """
    work = prepare(part, place)
    if work is None:
        raise CheckpointError(f"{part.label}: no published weights")
    wanted = request_of(part, work, place)
    stored = place.output / "parts" / f"{work.names.run}.json"
    result = stored_result(stored, wanted, part)
    if result is None:
        started = time.perf_counter()
        with disk_errors(place.output):
            make_folder(stored.parent)
        with exclusive(place.output):
            result = {"request": wanted, **make(part, work, place)}
        result["seconds"] = round(time.perf_counter() - started, 1)
        write_json(stored, result)
    remarks = ["" if work.weights.published else "other weights", f"--limit {place.limit}" if place.limit else ""]
    return Finding(result["values"], TOLERANCES[result["quantised"]], ", ".join(filter(None, remarks)))


def request_of(part: RowPart, work: Prepared, place: Workplace) -> dict[str, Any]:
    """What decides the values of a part.

    Raises:
        CheckpointError: the weights cannot be had.
    """
    reference, options, _ = work.weights
    found = find_checkpoint(reference) if reference else None
    return {
        "encoder": work.system.encoder,
        "checkpoint_digest": digest_of(found, other_parts(options)),
        "options": options,
        "rerank": work.system.rerank,
        "data_dir": str(data_root(place.data_dir).resolve()),
        "corpus": work.corpus.name,
        "split": work.corpus.split,
        "direction": part.task,
        "limit": place.limit,
    }


def stored_result(path: Path, wanted: dict[str, Any], part: RowPart) -> dict[str, Any] | None:
    """A finished result; None if it is not there, of another request, or lacks a measure of the part."""
    found = read_json(path, "result") if path.is_file() else {}
    complete = "quantised" in found and {*part.measures} <= {*found.get("values", ())}
    return found if complete and same_request(wanted, found.get("request") or {}) else None
