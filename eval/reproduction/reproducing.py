"""Measures the rows of published tables, and compares each cell with what the paper prints."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from lexvl_anserini.ground.errors import CheckpointError, DataError, MissingExtra

from .matrix import way_of
from .published import PublishedCell
from .quantities import Quantity, combined, parts_of
from .rows import Finding, PublishedRow, RowPart, Workplace

log = logging.getLogger(__name__)

AGREES, DIFFERS, UNCOMPARED, SKIPPED, UNMEASURED = "agrees", "differs", "not compared", "skipped", "not measured"
OTHERS, LATER = "a system of other people", "not measured by this version"

# A unit -> how many of it the value 1 is; values in other units are what papers print.
SCALES = {"%": 100.0}


class ReproducedCell(NamedTuple):
    """A published number and what this project measures.

    measured    in the unit of the published number; None if it was not measured
    difference  measured - published
    verdict     agrees, differs, not compared, skipped or not measured
    reason      why it was not compared or not measured; empty otherwise
    """

    table: str
    row: str
    column: str
    quantity: str
    unit: str
    published: float
    decimals: int
    measured: float | None
    difference: float | None
    verdict: str
    reason: str


class Unmeasured(NamedTuple):
    """Why a part of a row has no values: the verdict and the reason."""

    verdict: str
    reason: str


def reproduced_rows(rows: Iterable[PublishedRow], place: Workplace) -> Iterator[list[ReproducedCell]]:
    """The cells of each row in turn. Weights and data that cannot be had are named in the log and tried once.

    Raises:
        LexvlError: a step of a row fails, other than for its weights or data.
    """
    missing: set[str] = set()
    for row in rows:
        found: dict[Quantity, Finding | Unmeasured] = {}
        for part in row.parts():
            finding = finding_of(part, place, missing)
            found |= {Quantity(part.task, part.data, measure): finding for measure in part.measures}
        yield [reproduced(cell, [found[part] for part in parts_of(cell.quantity)]) for cell in row.cells]


def finding_of(part: RowPart, place: Workplace, missing: set[str]) -> Finding | Unmeasured:
    """What a part measures, or why it does not.

    Args:
        missing: the names of weights and data that could not be had so far; it grows.
    """
    way = way_of(part)
    if way is None:
        return Unmeasured(UNMEASURED, LATER if part.system else OTHERS)
    lacking = [need for need in way.needs(part, place) if not need.here]
    for need in lacking:
        if not need.fetchable and need.name not in missing:
            missing.add(need.name)
            log.warning("missing: %s, %s", need.name, need.origin)
    if known := [need.name for need in lacking if need.name in missing]:
        return Unmeasured(SKIPPED, f"missing: {', '.join(known)}")
    started = time.perf_counter()
    try:
        found = way.measure(part, place)
    except (CheckpointError, DataError, MissingExtra) as error:
        log.warning("%s: skipped, %s", part.name, error)
        kind = "data" if isinstance(error, DataError) else "weights"
        names = [need.name for need in lacking if need.kind == kind]
        missing.update(names)
        return Unmeasured(SKIPPED, f"missing: {', '.join(names)}" if names else str(error))
    log.info("%s: %.1f s", part.name, time.perf_counter() - started)
    return found


def reproduced(cell: PublishedCell, found: Sequence[Finding | Unmeasured]) -> ReproducedCell:
    """A cell with the findings of the parts that it is computed from."""
    about = (
        cell.table,
        cell.label,
        cell.row if cell.label == cell.column else cell.column,
        str(cell.quantity),
        cell.unit,
    )
    without = [one for one in found if isinstance(one, Unmeasured)]
    if without:
        parts = f" ({len(without)} of {len(found)} parts)" if len(found) > 1 else ""
        first = without[0]
        return ReproducedCell(*about, cell.value, cell.decimals, None, None, first.verdict, first.reason + parts)
    findings = [one for one in found if isinstance(one, Finding)]
    names = [part.measure for part in parts_of(cell.quantity)]
    scale = SCALES.get(cell.unit, 1.0)
    measured = scale * combined(cell.quantity, [one.values[name] for one, name in zip(findings, names, strict=True)])
    tolerance = scale * combined(cell.quantity, [one.tolerance for one in findings])
    remark = next((one.remark for one in findings if one.remark), "")
    difference = measured - cell.value
    verdict = UNCOMPARED if remark else AGREES if agrees(measured, cell, tolerance) else DIFFERS
    return ReproducedCell(*about, cell.value, cell.decimals, measured, difference, verdict, remark)


def agrees(measured: float, cell: PublishedCell, tolerance: float) -> bool:
    """True if a value is within the tolerance of the published one; without one, if all printed digits are equal."""
    if not tolerance:
        return f"{measured:.{cell.decimals}f}" == f"{cell.value:.{cell.decimals}f}"
    return abs(measured - cell.value) <= tolerance + 1e-9
