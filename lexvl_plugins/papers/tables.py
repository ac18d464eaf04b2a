"""The tables that `eval.reproduce` prints: what can be reproduced, and measured cells with their verdicts.

`WAYS` has one row per task, so that a new task is one function and one row. Published runs of other systems are
measured again here, and every printed digit must come out.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_eval.measures.inputs import JudgementSource, describe_run
from lexvl_eval.measures.measure_runs import machine, measure_runs
from lexvl_eval.measures.metrics import means, parse_measure
from lexvl_eval.report.tables import MISSING, PLAIN, FieldColumn

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.data.lines import some
from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.ground.errors import CheckpointError, DataError, LexvlError, MissingExtra, UsageError
from lexvl_anserini.ground.files import exclusive, format_json, read_json, write_json
from lexvl_anserini.ground.records import CorpusRef
from lexvl_anserini.ground.registry import Registry, Way

from .prepared import Finding, Need, PublishedRow, RowPart, Workplace, list_rows
from .published import PublishedCell, PublishedTable, Quantity, combine_parts, list_parts
from .sources import MEANS, UNCONFIRMED


def list_needed_files(part: RowPart, place: Workplace) -> list[Need]:
    """The run of a row and its judgements, in the data folder."""
    assert part.runs is not None, "the table has published runs"
    names = (part.runs.files.format(part.label), part.runs.qrels)
    return [Need("data", name, (data_root(place.data_dir) / name).is_file(), part.runs.origin) for name in names]


def measure_published(part: RowPart, place: Workplace) -> Finding:
    """The measures of a published run, stored as those of this project's own; its manifest vouches for no order."""
    run, qrels = (data_root(place.data_dir) / need.name for need in list_needed_files(part, place))
    if not qrels.is_file():
        raise DataError(f"{qrels}: no such judgements")
    card = replace(describe_run(run), system=part.label)
    judgements = JudgementSource(qrels, CorpusRef(part.data))
    [rows] = measure_runs([card], judgements, part.measures, results=place.output / "results")
    values = means(rows)
    return Finding({name: values[str(parse_measure(name))] for name in part.measures}, 0)


class TablePlan(NamedTuple):
    """What this version does with the cells of a table."""

    table: str
    title: str
    paper: str
    cells: int
    runs: int  # it measures them, with published weights and data, or without any
    own: int  # it measures them with weights or data that the user names, because they are not published
    later: int  # they are of systems of this project, but it does not measure them
    needs: tuple[Need, ...]
    bytes: float  # of shards and indexes of `runs`, about, and `seconds` of one CPU core
    seconds: float
    missing: str  # what the table lacks, or why it has no numbers

    @property
    def others(self) -> int:
        """Cells of other people's systems."""
        return self.cells - self.runs - self.own - self.later


def make_plan(table: PublishedTable, place: Workplace, pattern: str = "*") -> TablePlan:
    """The plan of the rows of a table that match the pattern."""
    counts, needs, runnable = Counter[str](), dict[str, Need](), list[RowPart]()
    for row in list_rows(table, pattern):
        parts = list(list_needs(row, place))
        needs |= {need.name: need for _, of_part in parts for need in of_part}
        runnable += [part for part, of_part in parts if all(need.public for need in of_part)]
        counts.update(list_kinds(row, parts))
    numbers = (counts.total(), counts["runs"], counts["own"], counts["later"])
    facts = (tuple(needs.values()), *estimate_cost(runnable, place), table.missing)
    return TablePlan(table.name, table.title, table.paper, *numbers, *facts)


def list_needs(row: PublishedRow, place: Workplace) -> Iterator[tuple[RowPart, list[Need]]]:
    """The parts of a row that this version measures, and what each needs."""
    for part in row.parts():
        if way := find_way(part):
            yield part, way.needs(part, place)


def list_kinds(row: PublishedRow, needs: Sequence[tuple[RowPart, list[Need]]]) -> Iterator[str]:
    """What happens to each cell of a row: runs, own, later or others, as in `TablePlan`."""
    public = {(part.task, part.data): all(need.public for need in of_part) for part, of_part in needs}
    measured = {(part.task, part.data, measure) for part, _ in needs for measure in part.measures}
    for cell in row.cells:
        parts = list_parts(cell.quantity)
        if not row.is_ours:
            yield "others"
        elif not measured.issuperset(parts):
            yield "later"
        else:
            yield "runs" if all(public[part.task, part.data] for part in parts) else "own"


def estimate_cost(parts: Iterable[RowPart], place: Workplace) -> tuple[float, float]:
    """Bytes and CPU seconds of some parts; documents that several share are counted once."""
    encoded: dict[str, tuple[float, float]] = {}
    topics = 0.0
    for part in parts:
        way = find_way(part)
        if way and (cost := way.cost(part, place)):
            encoded[cost.documents] = (cost.bytes, cost.encoding_s)
            topics += cost.topics_s
    return sum(size for size, _ in encoded.values()), sum(time for _, time in encoded.values()) + topics


def has_dimensions(part: RowPart) -> bool:
    """Whether a row names the item or the text whose dimensions are measured."""
    return bool(part.system and (part.system.item or part.system.text))


_MEASURED, _PREPARED = f"{__package__}.retrieval:measure_", f"{__package__}.prepared:"
_RETRIEVED = (f"{_PREPARED}list_retrieval_needs", f"{_PREPARED}estimate_retrieval")
_CLASSIFIED = (f"{_PREPARED}list_classification_needs", f"{_PREPARED}estimate_classification")
PUBLISHED_RUN = Way(f"{__name__}:measure_published", f"{__name__}:list_needed_files")

# Task -> how it is measured; plug-ins add tasks. A task that is no key is not measured by this installation.
WAYS: Registry[Way] = Registry(
    "task",
    "lexvl.ways",
    {
        **dict.fromkeys(("text-to-text", "text-to-image", "image-to-text"), Way(f"{_MEASURED}retrieval", *_RETRIEVED)),
        **dict.fromkeys(("zero-shot", "linear-probe", "words"), Way(f"{_MEASURED}classification", *_CLASSIFIED)),
        "sparsity": Way(f"{_MEASURED}sparsity", *_RETRIEVED),
        "completeness": Way(f"{_MEASURED}completeness", f"{_PREPARED}list_completeness_needs"),
        "weight": Way(f"{_MEASURED}weights", f"{_PREPARED}list_weight_needs", fitting=f"{__name__}:has_dimensions"),
    },
)
# The key of the way of a row whose weights are trained when it is measured.
TRAINED = "trained"


def find_way(part: RowPart) -> Way | None:
    """How a part is measured; None if this installation does not measure it, or its system is not ours."""
    if part.runs is not None:
        return PUBLISHED_RUN
    if part.system is None or (part.system.encoder and part.system.encoder not in CARDS):
        return None
    way = WAYS.get(TRAINED if part.system.trained_on else part.task)
    return way if way and way.fits(part) else None


log = logging.getLogger(__name__)

AGREES, DIFFERS, UNCOMPARED, SKIPPED, UNMEASURED = "agrees", "differs", "not compared", "skipped", "not measured"
FAILED = "failed"
UNPRINTED = "drawn without a number"
FETCHED = "downloaded when the rest is here"
OTHERS, LATER = "a system of other people", "not measured by this version"

# A unit -> how many of it the value 1 is; values in other units are what papers print.
SCALES = {"%": 100.0}

GB, HOUR = 1e9, 3600.0

# Checkpoints or corpora of a table that one cell names.
LISTED = 3


def format_number(decimals: int, value: float | None, sign: str = "") -> str:
    """A measured number with one decimal more than the paper prints, at most four; a dash for none."""
    return MISSING if value is None else f"{value:{sign}.{max(decimals, min(decimals + 1, 4))}f}"


def format_printed(cell: ReproducedCell) -> str:
    """A published number as the source prints it; a dash for what it draws without a number."""
    if cell.published is None:
        return MISSING
    return f"{cell.bound}{cell.published:.{cell.decimals}f}"


def count_verdicts(cells: Iterable[ReproducedCell]) -> str:
    """How many cells have which verdict, in one line."""
    counts = Counter(cell.verdict for cell in cells)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    remedy = "; --dry-run says where weights and data are from" if counts[SKIPPED] else ""
    return f"{counts.total()} cells: {listed or 'none'}{remedy}"


def count_here(plan: TablePlan) -> str:
    """How many of the published checkpoints and corpora of a table are on this machine."""
    here = [need.here for need in plan.needs if need.public]
    return f"{sum(here)} of {len(here)}" if here else MISSING


def name_needs(plan: TablePlan, kind: str) -> str:
    """The first published needs of a kind; all collections of a mean are one name."""
    names = [
        f"{need.name} (unconfirmed)" if need.name in UNCONFIRMED else need.name
        for need in plan.needs
        if need.kind == kind and need.public
    ]
    for mean, parts in reversed([*MEANS.items()]):
        if {*parts} <= {*names}:
            names = [mean, *(name for name in names if name not in parts)]
    return some(names, LISTED) or MISSING


def format_disk(size: float) -> str:
    """Bytes in GB; a dash for nothing."""
    return MISSING if not size else f"{size / GB:,.1f} GB" if size >= GB / 10 else f"{size * 1000 / GB:,.0f} MB"


def format_time(seconds: float) -> str:
    """Seconds in hours or minutes; a dash for nothing."""
    return MISSING if not seconds else f"{seconds / HOUR:,.0f} h" if seconds >= HOUR else f"{seconds / 60:,.0f} min"


CELLS = (
    *(FieldColumn(name, name) for name in ("table", "row", "quantity")),
    FieldColumn("measured", lambda cell: format_number(cell.decimals, cell.measured), PLAIN),
    FieldColumn("published", format_printed, PLAIN),
    FieldColumn("difference", lambda cell: format_number(cell.decimals, cell.difference, "+z"), PLAIN),
    FieldColumn("verdict", lambda cell: cell.verdict + (f" ({cell.reason})" if cell.reason else "")),
)
PLANS = (
    FieldColumn("table", "table"),
    FieldColumn("cells", "cells", PLAIN),
    FieldColumn("run", "runs", PLAIN),
    *(FieldColumn(name, name, PLAIN) for name in ("own", "later", "others")),
    FieldColumn("here", count_here, PLAIN),
    FieldColumn("disk", lambda plan: format_disk(plan.bytes), PLAIN),
    FieldColumn("CPU time", lambda plan: format_time(plan.seconds), PLAIN),
    FieldColumn("weights", lambda plan: name_needs(plan, "weights")),
    FieldColumn("data", lambda plan: name_needs(plan, "data")),
    FieldColumn("about", lambda plan: plan.title + ("" if plan.cells else f" (no numbers: {plan.missing})")),
)
NEEDS = (
    FieldColumn("kind", "kind"),
    FieldColumn("name", "name"),
    FieldColumn("here", lambda need: "yes" if need.here else "no"),
    FieldColumn("from", lambda need: need.origin or MISSING),
)


class ReproducedCell(NamedTuple):
    """A published number and what this project measures, in its unit; None where there is no such number."""

    table: str
    row: str
    column: str
    quantity: str
    unit: str
    published: float | None
    decimals: int
    measured: float | None
    difference: float | None
    verdict: str
    reason: str  # why it was not compared or not measured; what is doubtful in a comparison; empty otherwise
    bound: str = ""  # < or > where the source says only that the value is below or above the published one; else empty
    model: str = ""  # the digest of the checkpoint that was measured; empty where none is loaded
    seeds: tuple[float, ...] = ()  # the values by seed, where the measured one is their mean


class Unmeasured(NamedTuple):
    """Why a part of a row has no values."""

    verdict: str
    reason: str


def reproduce_rows(rows: Iterable[PublishedRow], place: Workplace) -> Iterator[list[ReproducedCell]]:
    """The cells of each row in turn. Weights and data that cannot be had are named in the log and tried once."""
    missing: set[str] = set()
    for row in rows:
        findings: dict[Quantity, Finding | Unmeasured] = {}
        for part in row.parts():
            finding = measure_part(part, place, missing)
            findings |= {Quantity(part.task, part.data, measure): finding for measure in part.measures}
        yield [reproduce_cell(cell, [findings[part] for part in list_parts(cell.quantity)]) for cell in row.cells]


def measure_part(part: RowPart, place: Workplace, missing: set[str]) -> Finding | Unmeasured:
    """What a part measures, or why it does not; `missing` gets the names of weights and data that cannot be had."""
    way = find_way(part)
    if way is None:
        return Unmeasured(UNMEASURED, LATER if part.system else OTHERS)
    lacking = [need for need in way.needs(part, place) if not need.here]
    for need in lacking:
        if not need.fetchable and need.name not in missing:
            missing.add(need.name)
            log.warning("missing: %s, %s", need.name, need.origin)
    if any(need.name in missing for need in lacking):
        listed = (need.name if need.name in missing else f"{need.name} ({FETCHED})" for need in lacking)
        return Unmeasured(SKIPPED, f"missing: {', '.join(listed)}")
    started = time.perf_counter()
    try:
        finding = way.measure(part, place)
    except (CheckpointError, DataError, MissingExtra) as error:
        log.warning("%s: skipped, %s", part.name, error)
        kind = "data" if isinstance(error, DataError) else "weights"
        names = [need.name for need in lacking if need.kind == kind]
        missing.update(names)
        return Unmeasured(SKIPPED, f"missing: {', '.join(names)}" if names else str(error))
    except UsageError:
        raise  # of the command: no other row fares better
    except LexvlError as error:
        log.error("%s: failed, %s", part.name, error)
        return Unmeasured(FAILED, str(error))
    log.info("%s: %.1f s", part.name, time.perf_counter() - started)
    return finding


def reproduce_cell(cell: PublishedCell, found: Sequence[Finding | Unmeasured]) -> ReproducedCell:
    """A cell with the findings of the parts that it is computed from."""
    facts = (cell.table, cell.label, cell.heading, str(cell.quantity), cell.unit, cell.value, cell.decimals)
    if without := [finding for finding in found if isinstance(finding, Unmeasured)]:
        parts = f" ({len(without)} of {len(found)} parts)" if len(found) > 1 else ""
        return ReproducedCell(*facts, None, None, without[0].verdict, without[0].reason + parts, cell.bound)
    findings = [finding for finding in found if isinstance(finding, Finding)]
    names = [part.measure for part in list_parts(cell.quantity)]
    scale = SCALES.get(cell.unit, 1.0)

    def combine(of_parts: Iterable[Mapping[str, float]]) -> float:
        return scale * combine_parts(cell.quantity, [own[name] for own, name in zip(of_parts, names, strict=True)])

    measured = combine(finding.values for finding in findings)
    seeds = tuple(map(combine, zip(*(finding.seeds for finding in findings), strict=True)))
    tolerance = cell.tolerance or scale * combine_parts(cell.quantity, [finding.tolerance for finding in findings])
    difference = None if cell.value is None else measured - cell.value
    remarks = [cell.uncompared, UNPRINTED if cell.value is None else "", *(finding.remark for finding in findings)]
    if any(remarks):
        verdict = UNCOMPARED
    else:
        verdict = AGREES if check_agreement(measured, cell, tolerance) else DIFFERS
        source = cell.source and f"source: {cell.source}"
        remarks = [cell.note, source, *(finding.note for finding in findings)]
    reason = "; ".join(dict.fromkeys(filter(None, remarks)))
    model = next((finding.model for finding in findings), "")
    return ReproducedCell(*facts, measured, difference, verdict, reason, cell.bound, model, seeds)


def check_agreement(measured: float, cell: PublishedCell, tolerance: float) -> bool:
    """True if a value is within the tolerance of the published one; without one, if all printed digits are equal."""
    assert cell.value is not None, "what is only drawn is not compared"
    if cell.bound:
        return measured < cell.value if cell.bound == "<" else measured > cell.value
    if not tolerance:
        return f"{measured:.{cell.decimals}f}" == f"{cell.value:.{cell.decimals}f}"
    return abs(measured - cell.value) <= tolerance + 1e-9


# What of a machine decides values, or says where they are from.
OF_ENVIRONMENT = ("processor", "python", "versions")


class RecordedCell(NamedTuple):
    """A measured cell; `environment` is a key of the file's environments, or, when it is read, that environment."""

    measured: float
    verdict: str
    reason: str
    date: str
    model: str
    environment: Any
    seeds: Sequence[float] = ()


def make_key(table: str, row: str, column: str) -> str:
    """The key of a cell."""
    return " | ".join((table, row, column))


def read_record(path: Path) -> dict[str, RecordedCell]:
    """The cells of a record by their keys, with their environments; none where there is no file."""
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
    with exclusive(path.parent, wait=True):
        facts = machine()
        environment = {name: facts[name] for name in OF_ENVIRONMENT}
        today = datetime.now(UTC).date().isoformat()
        fresh = {
            make_key(cell.table, cell.row, cell.column): RecordedCell(
                round(cell.measured, 6),
                cell.verdict,
                cell.reason,
                today,
                cell.model,
                environment,
                tuple(round(value, 6) for value in cell.seeds),
            )
            for cell in cells
            if cell.measured is not None
        }
        recorded = {**read_record(path), **fresh}
        digests = {key: sha256(format_json(recorded[key].environment)).hexdigest()[:12] for key in sorted(recorded)}
        written = {key: recorded[key]._replace(environment=digest)._asdict() for key, digest in digests.items()}
        content = {
            "cells": {key: {n: v for n, v in cell.items() if n != "seeds" or v} for key, cell in written.items()},
            "environments": {digest: recorded[key].environment for key, digest in digests.items()},
        }
        write_json(path, content)
