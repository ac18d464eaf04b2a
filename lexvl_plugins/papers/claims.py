"""What papers say of their numbers, as relations between cells, and whether measured cells agree.

`claims` of `runs/expected/<paper>.yaml` has one entry per claim:

    retrieval:
      says: STAIR finds images for captions better than CLIP
      where: abstract and section 4.3
      relation: ahead                 # the first row is ahead of the second
      rows: [STAIR, CLIP]             # headings of systems
      tables:                         # where it can be judged, by which quantities: the paper's own tables, and
        table2: [text-to-image coco/test R@1]
        trends-stair: [text-to-image flickr8k/val R@10]     # this project's small trainings, which name rows alike
      printed: 4.9                    # what the text prints, one number per quantity of the first table

| relation | rows | what must be above 0: the margins |
|---|---|---|
| ahead | two | the first less the second, less `margin` (-2: it may be 2 behind); `than`: the second's measure |
| rises, falls | two or more, in order | each step |
| at most, at least | one or more | how far each row is below, or above, `bound` |

A claim holds if the intervals of all margins are above 0, and does not hold if one is below 0; else it is not clear.
Intervals are over the trainings' seeds where each row has several (Student's t of the margins per seed), else over
the topics that all rows answered (the bootstrap of `eval.measures.significance`). Without an interval the sign decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lexvl_eval.measures.metrics import mean
from lexvl_eval.measures.significance import CONFIDENCE, estimate_intervals
from lexvl_eval.report.tables import MISSING, PLAIN, FieldColumn

from lexvl_anserini.data.yaml_files import read_yaml
from lexvl_anserini.encoders.checkpoints.find import combine_digests, find_checkpoint, find_parts
from lexvl_anserini.ground.errors import CheckpointError, DataError, UnknownName
from lexvl_anserini.ground.files import read_json

from .prepared import RowPart, Workplace, list_trainings, prepare, write_remarks
from .published import (
    ClaimEntry,
    PaperEntry,
    PublishedCell,
    PublishedTable,
    combine_parts,
    find_expected_folder,
    list_parts,
    load_published_tables,
    parse_quantity,
    read_headings,
    read_text,
)
from .tables import SCALES, RecordedCell, ReproducedCell, format_number, make_key

# Tables of this project's small trainings of equal budgets; one that does not exist yet judges nothing.
TRENDS = "trends-"

VERDICTS = HOLDS, FAILS, UNCLEAR, UNMEASURED = "holds", "does not hold", "not clear", "not measured"
# The size of what was measured: that of the paper, small trainings, or weights, corpora and limits of the user's.
PAPER, SMALL, OWN = "paper", "small", "own"

# Two values of one run, of which one is rounded in a record.
SAME_VALUE = 1e-5


class PaperClaim(NamedTuple):
    """A claim about one quantity of one table; `cells` has that of each row, and is empty for a table not there yet."""

    name: str
    entry: ClaimEntry
    table: str
    quantity: str
    cells: tuple[PublishedCell, ...]
    printed: float | None


class MeasuredCell(NamedTuple):
    """A measured value in its cell's unit, the values by seed, and whether it is of other weights or data."""

    value: float
    seeds: Sequence[float] = ()
    own: bool = False


class JudgedClaim(NamedTuple):
    """A claim and its verdict.

    Of several margins, `difference`, `low` and `high` are those of the one that speaks for it the least, in the unit of
    the quantity; `over` says what the interval is over, `reason` which rows have no value.
    """

    claim: str
    says: str
    where: str
    table: str
    quantity: str
    relation: str
    decimals: int
    published: float | None
    difference: float | None
    low: float | None
    high: float | None
    over: str
    scale: str
    verdict: str
    reason: str


def load_claims() -> tuple[PaperClaim, ...]:
    """All claims, in the order of files, entries, tables and quantities."""
    return _load_claims(find_expected_folder())


@cache
def _load_claims(folder: Path) -> tuple[PaperClaim, ...]:
    tables = load_published_tables()
    return tuple(claim for path in sorted(folder.glob("*.yaml")) for claim in read_claims(path, tables))


def read_claims(path: Path, tables: Mapping[str, PublishedTable]) -> Iterator[PaperClaim]:
    """The claims of one file about tables of it, and about tables of trends."""
    content: PaperEntry = read_yaml(path, PaperEntry)
    for key, entry in content.claims.items():
        name, where = f"{path.stem}-{key}", f"{path.name} (claims: {key})"
        _check_relation(entry, where)
        for number, (table, texts) in enumerate(entry.tables.items()):
            quantities = read_headings(texts, where)
            if entry.printed and not number and len(entry.printed) != len(quantities):
                expected = f"expected {len(quantities)}, one per quantity of {table}"
                raise DataError(f"{where}: {len(entry.printed)} printed numbers, {expected}")
            if not quantities:
                raise DataError(f"{where}: {table}: no quantity; name one, such as a column of the table")
            for place, quantity in enumerate(quantities):
                printed = entry.printed[place] if entry.printed and not number else None
                whole = table if table.startswith(TRENDS) else f"{path.stem}-{table}"
                cells = tuple(_find_cells(entry, whole, quantity, tables, where))
                claim = PaperClaim(name, entry, whole, quantity, cells, printed)
                _check_printed(claim, where)
                yield claim


def _check_relation(entry: ClaimEntry, where: str) -> None:
    """Each relation has its number of rows, and the keys that it reads."""
    bounded, rows = entry.relation.startswith("at "), len(entry.rows)
    if rows < 2 - bounded or (entry.relation == "ahead" and rows > 2):
        expected = "two rows" if entry.relation == "ahead" else "one row or more" if bounded else "two rows or more"
        raise DataError(f"{where}: {entry.relation} with {rows} rows, expected {expected}")
    if bounded != (entry.bound is not None):
        raise DataError(f"{where}: {entry.relation} {'needs' if bounded else 'has no'} `bound`")
    if (entry.margin or entry.than) and entry.relation != "ahead":
        raise DataError(f"{where}: `margin` and `than` are for ahead, not for {entry.relation}")
    if not entry.tables:
        raise DataError(f"{where}: no tables; name where it can be judged")


def _find_cells(
    entry: ClaimEntry, table: str, text: str, tables: Mapping[str, PublishedTable], where: str
) -> Iterator[PublishedCell]:
    """The cell of each row in a table; none where the table is one of trends that is not there."""
    quantity = read_text(parse_quantity, text, where)
    if table not in tables:
        if not table.startswith(TRENDS):
            raise DataError(f"{where}: {UnknownName('table', table, tables)}")
        return
    cells_by_place = {(cell.label, cell.quantity): cell for cell in tables[table].cells}
    labels = dict.fromkeys(label for label, _ in cells_by_place)
    seeds = {}
    for number, row in enumerate(entry.rows):
        if row not in labels:
            raise DataError(f"{where}: {table}: {UnknownName('row', row, labels)}")
        own = quantity._replace(measure=entry.than) if entry.than and number else quantity
        if (row, own) not in cells_by_place:
            raise DataError(f"{where}: {table} has no {str(own)!r} of {row!r}")
        cell = cells_by_place[row, own]
        seeds[cell.system.seeds if cell.system else 1] = row
        yield cell
    if len(seeds) > 1:
        listed = " and ".join(f"{row!r} has {number}" for number, row in seeds.items())
        raise DataError(f"{where}: {table}: seeds of compared rows differ: {listed}; expected one number")


def _check_printed(claim: PaperClaim, where: str) -> None:
    """What the text prints is the margin of the cells that the table prints."""
    published = find_published(claim._replace(printed=None))
    if claim.printed is not None and published is not None and abs(published - claim.printed) > 1e-6:
        raise DataError(f"{where}: printed {claim.printed:g}, but the cells of {claim.table} give {published:g}")


def compute_margins(claim: PaperClaim, values: np.ndarray) -> np.ndarray:
    """The margins of a claim [M, n] from values of its rows [R, n], such as one per seed."""
    entry = claim.entry
    if entry.bound is not None:
        return entry.bound - values if entry.relation == "at most" else values - entry.bound
    if entry.relation == "ahead":
        return values[:1] - values[1:] - entry.margin
    steps: np.ndarray = np.diff(values, axis=0)
    return steps if entry.relation == "rises" else -steps


def find_published(claim: PaperClaim) -> float | None:
    """The least margin of the published numbers, or what the text prints; None where one is missing or only a bound."""
    if claim.printed is not None:
        return claim.printed
    values = [cell.value for cell in claim.cells if cell.value is not None and not cell.bound]
    if not claim.cells or len(values) < len(claim.cells) or claim.table.startswith(TRENDS):
        return None
    return round(float(compute_margins(claim, np.array(values)[:, None]).min()), 6)


def judge_claim(claim: PaperClaim, measured: Mapping[str, MeasuredCell], place: Workplace | None = None) -> JudgedClaim:
    """A claim judged by measured cells, which have the keys of the record; OUTPUT of a workplace has their topics."""
    entry = claim.entry
    decimals = max((cell.decimals for cell in claim.cells), default=1)
    facts = (claim.name, entry.says, entry.where, claim.table, claim.quantity, describe_relation(entry), decimals)
    keys = [make_key(cell.table, cell.label, cell.heading) for cell in claim.cells]
    without = [row for row, key in zip(entry.rows, keys, strict=False) if key not in measured]
    if without or not claim.cells:
        reason = ", ".join(dict.fromkeys(without)) if claim.cells else "no such table yet"
        nothing = (None, None, None, "", "", UNMEASURED, reason)
        return JudgedClaim(*facts, find_published(claim), *nothing)
    values = [measured[key] for key in keys]
    margins = compute_margins(claim, np.array([[one.value] for one in values]))[:, 0]
    low, high, over = margins, margins, ""
    counts = {len(one.seeds) for one in values}
    if len(counts) == 1 and (trainings := counts.pop()) > 1:
        low, high = estimate_over_seeds(compute_margins(claim, np.array([one.seeds for one in values])))
        over = f"{trainings} seeds"
    elif place is not None and (by_topic := read_topics(claim.cells, values, place)) is not None:
        low, high = estimate_intervals(compute_margins(claim, by_topic).T)
        over = f"{by_topic.shape[1]:,} topics"
    least = int(np.argmin(low))
    verdict = decide(claim, low, high)
    lower, upper = (float(end[least]) if over else None for end in (low, high))
    scale = SMALL if claim.table.startswith(TRENDS) else OWN if any(one.own for one in values) else PAPER
    return JudgedClaim(*facts, find_published(claim), float(margins[least]), lower, upper, over, scale, verdict, "")


def decide(claim: PaperClaim, low: np.ndarray, high: np.ndarray) -> str:
    """The verdict from the ends of the margins' intervals; a bound may be met exactly, and equal rows are not ahead."""
    bounded = claim.entry.bound is not None
    if ((high < 0) | (not bounded and (low == 0) & (high == 0))).any():
        return FAILS
    return HOLDS if ((low > 0) | (bounded & (low == 0))).all() else UNCLEAR


def describe_relation(entry: ClaimEntry) -> str:
    """The relation in words: `STAIR ahead of CLIP`, `rises: K=32, K=64`."""
    if entry.relation == "ahead":
        first, second = entry.rows
        than = f"its {entry.than}" if entry.than and first == second else f"{second} {entry.than}".strip()
        behind = f" less {-entry.margin:g}" if entry.margin < 0 else f" by {entry.margin:g}" if entry.margin else ""
        return f"{first} ahead of {than}{behind}"
    bound = "" if entry.bound is None else f" {entry.bound:g}"
    return f"{entry.relation}{bound}: {', '.join(entry.rows)}"


def estimate_over_seeds(margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends [M] of the 95 % intervals of Student's t of mean margins, from margins by seed [M, S]."""
    from scipy.stats import t

    seeds = margins.shape[1]
    reach = t.ppf((1 + CONFIDENCE) / 2, seeds - 1) * margins.std(axis=1, ddof=1) / np.sqrt(seeds)
    return margins.mean(axis=1) - reach, margins.mean(axis=1) + reach


def read_output(folder: str, cell: PublishedCell, place: Workplace) -> list[list[tuple[RowPart, dict[str, Any]]]]:
    """What a folder of OUTPUT has of each part of a cell, by seed; nothing where it lacks any of them."""
    if cell.system is None or not cell.system.encoder:
        return []
    parts = []
    for quantity in list_parts(cell.quantity):
        whole = RowPart(cell.table, cell.label, cell.system, None, quantity.task, quantity.data, (quantity.measure,))
        of_part = []
        for part in list_trainings(whole, place):
            work = prepare(part, place)
            path = place.output / folder / f"{work.names.run}.json" if work else None
            if path is None or not path.is_file():
                return []
            of_part.append((part, read_json(path, "result", DataError)))
        parts.append(of_part)
    return parts


def read_topics(cells: Sequence[PublishedCell], values: Sequence[MeasuredCell], place: Workplace) -> np.ndarray | None:
    """The values [R, T] of the topics that all rows answered, in the unit of the cells; None where OUTPUT lacks some.

    Topics whose mean is not the measured value are of another call, and those of a sum or a mean are not one sample.
    """
    rows: list[dict[str, float]] = []
    for cell, measured in zip(cells, values, strict=True):
        parts = read_output("topics", cell, place)
        if len(parts) != 1 or len(parts[0]) != 1:
            return None
        scale = SCALES.get(cell.unit, 1.0)
        [[(_, content)]] = parts
        topics = {query_id: scale * value for query_id, value in content.get(cell.quantity.measure, {}).items()}
        if not topics or abs(mean(topics.values()) - measured.value) > SAME_VALUE:
            return None
        rows.append(topics)
    if any(row.keys() != rows[0].keys() for row in rows):
        return None
    return np.array([[row[query_id] for query_id in rows[0]] for row in rows])


def read_measured(cells: Iterable[PublishedCell], place: Workplace) -> dict[str, MeasuredCell]:
    """What OUTPUT has of some cells, by their keys, for the weights, corpora and limit of a workplace."""
    measured = {}
    for cell in cells:
        parts = read_output("parts", cell, place)
        names = [quantity.measure for quantity in list_parts(cell.quantity)]
        by_seed = [
            [content.get("values", {}).get(name) for (_, content), name in zip(of_seed, names, strict=True)]
            for of_seed in zip(*parts, strict=True)
        ]
        current = all(is_current(part, content, place) for of_part in parts for part, content in of_part)
        if by_seed and current and not any(None in values for values in by_seed):
            scale = SCALES.get(cell.unit, 1.0)
            seeds = [scale * combine_parts(cell.quantity, values) for values in by_seed]
            own = any(is_own(part, place) for of_part in parts for part, _ in of_part)
            key = make_key(cell.table, cell.label, cell.heading)
            measured[key] = MeasuredCell(mean(seeds), seeds if len(seeds) > 1 else (), own)
    return measured


def is_current(part: RowPart, content: Mapping[str, Any], place: Workplace) -> bool:
    """False for a result of other weights than those that the user names, whose folders may have one name."""
    work = prepare(part, place)
    if work is None or not work.weights.places or work.weights.reference is None:
        return True
    try:
        digest = combine_digests(find_checkpoint(work.weights.reference), find_parts(work.weights.options))
    except CheckpointError:
        return False
    return bool((content.get("request") or {}).get("checkpoint_digest") == digest)


def is_own(part: RowPart, place: Workplace) -> bool:
    """True if the user's weights, corpus or limit measure a part."""
    work = prepare(part, place)
    weights = work is not None and bool(write_remarks(work.weights, place.as_published)[0])
    return weights or bool(place.limit) or part.data in place.corpora


def collect_cells(claims: Iterable[PaperClaim]) -> list[PublishedCell]:
    """The cells of some claims, each once."""
    return [*{(cell.table, cell.label, cell.heading): cell for claim in claims for cell in claim.cells}.values()]


def judge_record(
    claims: Sequence[PaperClaim], record: Mapping[str, RecordedCell], place: Workplace
) -> list[JudgedClaim]:
    """Claims judged by a record, and by what OUTPUT has, which goes before it."""
    measured = {key: MeasuredCell(cell.measured, cell.seeds) for key, cell in record.items()}
    measured |= read_measured(collect_cells(claims), place)
    return [judge_claim(claim, measured, place) for claim in claims]


def judge_cells(claims: Sequence[PaperClaim], cells: Iterable[ReproducedCell], place: Workplace) -> list[JudgedClaim]:
    """The claims that some cells decide, with those of their rows that OUTPUT has from earlier calls."""
    measured = {
        make_key(cell.table, cell.row, cell.column): MeasuredCell(cell.measured, cell.seeds)
        for cell in cells
        if cell.measured is not None
    }
    decided = [
        claim
        for claim in claims
        if any(make_key(cell.table, cell.label, cell.heading) in measured for cell in claim.cells)
    ]
    measured |= read_measured(collect_cells(decided), place)
    judged = (judge_claim(claim, measured, place) for claim in decided)
    return [claim for claim in judged if claim.verdict != UNMEASURED]


def format_signed(judged: JudgedClaim, value: float | None) -> str:
    """A margin with its sign and one decimal more than the paper prints; a dash for none."""
    return format_number(judged.decimals, value, "+z")


def format_published(judged: JudgedClaim) -> str:
    """The published margin with as many decimals as the paper prints; a dash for none."""
    return MISSING if judged.published is None else f"{judged.published:+z.{judged.decimals}f}"


def format_interval(judged: JudgedClaim) -> str:
    """The interval and what it is over; a dash for none."""
    if judged.low is None or judged.high is None:
        return MISSING
    return f"{format_signed(judged, judged.low)} to {format_signed(judged, judged.high)} ({judged.over})"


def format_verdict(judged: JudgedClaim) -> str:
    """The verdict with the rows that lack a value."""
    return judged.verdict + (f" ({judged.reason})" if judged.reason else "")


def count_claims(judged: Sequence[JudgedClaim]) -> str:
    """How many claims have which verdict, in one line."""
    counts = Counter(one.verdict for one in judged)
    listed = ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])
    return f"{len({one.claim for one in judged})} claims, judged {len(judged)} times: {listed}"


CLAIMS = (
    FieldColumn("claim", "claim"),
    FieldColumn("table", "table"),
    FieldColumn("quantity", "quantity"),
    FieldColumn("relation", "relation"),
    FieldColumn("published", format_published, PLAIN),
    FieldColumn("measured", lambda one: format_signed(one, one.difference), PLAIN),
    FieldColumn("95 % interval", format_interval),
    FieldColumn("scale", lambda one: one.scale or MISSING),
    FieldColumn("verdict", format_verdict),
    FieldColumn("says", "says"),
)
