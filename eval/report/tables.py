"""The tables that commands print: each takes what a measure returns and formats its values as texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import Measurement

from ..measures.inputs import RunCard
from ..measures.metrics import HEADINGS, LEVEL, RSUM, means, sum_recalls
from .render import (
    COUNT,
    FOUR_DECIMALS,
    MISSING,
    PLAIN,
    TWO_DECIMALS,
    Column,
    FieldColumn,
    Table,
    format_csv,
    format_percent,
    render,
    to_json,
    to_text,
)

if TYPE_CHECKING:
    from ..analyses.terms import TermProfile
    from ..measures.significance import SystemComparison


class SystemRow(NamedTuple):
    """One system on one dataset; `significant` are the measures by which it differs from the first system."""

    system: str
    dataset: str
    run: str
    measures: Mapping[str, float]
    efficiency: Mapping[str, float]
    ties: str = ""
    significant: tuple[str, ...] = ()


class Figure(NamedTuple):
    """How a figure of efficiency is shown: heading, factor to its unit, decimals."""

    heading: str
    factor: float
    decimals: int


EFFICIENCY: dict[str, Figure] = {
    "mean_document_terms": Figure("terms/doc", 1, 1),
    "mean_query_terms": Figure("terms/query", 1, 1),
    "index_documents": Figure("documents", 1, 0),
    "index_bytes": Figure("index MB", 1e-6, 1),
    "ms_per_query": Figure("ms/query", 1, 1),
}


def format_figure(name: str, value: float | None) -> str:
    """A figure of efficiency in its unit; a dash if it is missing."""
    figure = EFFICIENCY[name]
    return MISSING if value is None else f"{value * figure.factor:,.{figure.decimals}f}"


def list_figures(cards: Iterable[RunCard | SystemRow]) -> list[str]:
    """The figures of efficiency that any of the runs has, in the order of `EFFICIENCY`."""
    known = [card.efficiency for card in cards]
    return [name for name in EFFICIENCY if any(name in figures for figures in known)]


def build_score_table(measurements: Sequence[Measurement]) -> Table:
    """Runs (and topics, if there are any) as rows, measures as columns."""
    measures = list(dict.fromkeys(row.measure for row in measurements))
    shown = shorten_datasets(row.dataset for row in measurements)
    with_topics = any(row.query_id != "all" for row in measurements)
    labels = ("run", "dataset", "topic") if with_topics else ("run", "dataset")
    cells: dict[tuple[str, ...], dict[str, float]] = {}
    for row in measurements:
        cells.setdefault((row.run, shown[row.dataset], row.query_id)[: len(labels)], {})[row.measure] = row.value
    columns = (*(Column(label, number=False) for label in labels), *map(Column, measures))
    rows = (
        (*key, *(FOUR_DECIMALS(values[m]) if m in values else MISSING for m in measures))
        for key, values in cells.items()
    )
    return Table(columns, tuple(rows), ties=measurements[0].ties if measurements else "")


SCORE_FORMATS: dict[str, Callable[[Sequence[Measurement]], str]] = {
    "text": lambda rows: to_text(build_score_table(rows)),
    "json": to_json,
    "csv": format_csv,
}


def render_scores(measured: Iterable[Iterable[Measurement]], per_topic: bool, output_format: str) -> str:
    """The means of several runs in one of `SCORE_FORMATS`, with `select_topics` each topic's value too."""
    rows = [row for rows in measured for row in rows if per_topic or row.query_id == "all"]
    return SCORE_FORMATS[output_format](rows)


def make_system_row(
    card: RunCard, measurements: Sequence[Measurement], marks: Mapping[tuple[str, str], tuple[str, ...]] = {}
) -> SystemRow:
    """The row of one run; `marks` has the measures that differ, by run and dataset."""
    _, dataset, *_ = first = measurements[0]
    marked = marks.get((first.run, dataset), ())
    return SystemRow(card.system, dataset, first.run, means(measurements), card.efficiency, first.ties, marked)


def make_average_rows(averages: Sequence[Measurement]) -> list[SystemRow]:
    """The rows of averages over datasets, one per system."""
    by_system: dict[str, list[Measurement]] = {}
    for row in averages:
        by_system.setdefault(row.run, []).append(row)
    return [SystemRow(rows[0].run, rows[0].dataset, "", means(rows), {}, rows[0].ties) for rows in by_system.values()]


def build_system_table(rows: Sequence[SystemRow], test: str = "") -> Table:
    """Systems as rows; per dataset its measures, then the figures of efficiency that any run has.

    Where two rows of one dataset have the same system, its name has that of the run too.
    """
    shown = shorten_datasets(row.dataset for row in rows)
    names = Counter((row.dataset, row.system) for row in rows)
    rows = [
        row._replace(
            system=f"{row.system} [{row.run}]" if names[row.dataset, row.system] > 1 else row.system,
            dataset=shown[row.dataset],
        )
        for row in rows
    ]
    measures: dict[str, dict[str, None]] = {}
    for row in rows:
        measures.setdefault(row.dataset, {}).update(dict.fromkeys(row.measures))
    figures = list_figures(rows)
    at = {(row.system, row.dataset): row for row in rows}
    systems = list(dict.fromkeys(row.system for row in rows))
    columns = [Column("system", number=False)]
    for dataset, own in measures.items():
        columns += [Column(name, dataset) for name in (*own, *(EFFICIENCY[name].heading for name in figures))]
    cells = tuple(
        (
            system,
            *(cell for name, own in measures.items() for cell in _format_cells(at.get((system, name)), own, figures)),
        )
        for system in systems
    )
    best = {
        (r, c)
        for c, column in enumerate(columns)
        if column.heading in measures.get(column.group, ()) and len(systems) > 1
        for r, row in enumerate(cells)
        if row[c] == max((other[c] for other in cells if other[c] != MISSING), default=None)
    }
    marked = frozenset(
        (r, c)
        for r, system in enumerate(systems)
        for c, column in enumerate(columns)
        if (row_at := at.get((system, column.group))) and column.heading in row_at.significant
    )
    star = f"* differs from {systems[0]}: p < {LEVEL}, {test} test, Holm's correction" if test else ""
    return Table(tuple(columns), cells, frozenset(best), rows[0].ties if rows else "", marked, star)


def _format_cells(row: SystemRow | None, measures: Iterable[str], figures: Sequence[str]) -> Iterable[str]:
    for measure in measures:
        yield FOUR_DECIMALS(row.measures[measure]) if row and measure in row.measures else MISSING
    for name in figures:
        yield format_figure(name, row.efficiency.get(name) if row else None)


def build_caption_table(cards: Sequence[RunCard], measured: Sequence[Sequence[Measurement]]) -> Table:
    """One row per run: measures, then the figures of efficiency that any run has.

    A system with runs in both directions has another row with its rsum over both, at most 600.
    """
    rows, sums, figures = [], dict[str, dict[str, float]](), list_figures(cards)
    shown = shorten_datasets(measurements[0].dataset for measurements in measured)
    for card, measurements in zip(cards, measured, strict=True):
        values = means(measurements)
        sums.setdefault(card.system, {})[measurements[0].dataset] = sum_recalls(values)
        cells = (format_percent(values[measure]) for measure in HEADINGS)
        costs = (format_figure(name, card.efficiency.get(name)) for name in figures)
        rows.append((card.system, shown[measurements[0].dataset], *cells, f"{sum_recalls(values):.1f}", *costs))
    for system, by_direction in sums.items():
        if len(by_direction) == 2:
            blanks, total = (MISSING,) * len(HEADINGS), f"{sum(by_direction.values()):.1f}"
            rows.append((system, "both directions", *blanks, total, *(MISSING,) * len(figures)))
    texts = tuple(Column(heading, number=False) for heading in ("system", "dataset"))
    numbers = (*HEADINGS.values(), RSUM, *(EFFICIENCY[name].heading for name in figures))
    return Table((*texts, *map(Column, numbers)), tuple(rows), ties=measured[0][0].ties)


def render_comparisons(comparisons: Sequence[SystemComparison], output_format: str) -> str:
    """Comparisons in one of `render.FORMATS`; CSV and JSON have all fields with all their digits."""
    if output_format == "csv":
        return format_csv(comparisons)
    return render(build_comparison_table(comparisons), comparisons, output_format)


def _format_p(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


COMPARISON = (
    FieldColumn("system", "system"),
    FieldColumn("measure", "measure"),
    FieldColumn("baseline", "baseline", FOUR_DECIMALS),
    FieldColumn("value", "value", FOUR_DECIMALS),
    FieldColumn("difference", "difference", "{:+.4f}".format),
    FieldColumn(
        "95 % interval", lambda row: MISSING if isnan(row.low) else f"{row.low:+.4f} to {row.high:+.4f}", PLAIN
    ),
    FieldColumn("p", "p", _format_p),
    FieldColumn("p (Holm)", "p_corrected", _format_p),
    *(
        FieldColumn(name.title(), name, lambda value: MISSING if isnan(value) else f"{value:.3f}")
        for name in ("kendall", "pearson")
    ),
    FieldColumn("better/equal/worse", lambda row: f"{row.better}/{row.equal}/{row.worse}", PLAIN),
)


def build_comparison_table(comparisons: Sequence[SystemComparison]) -> Table:
    """One row per system and measure; a star marks significant differences, the best of each measure is bold."""
    first = comparisons[0]
    place = {column.heading: number for number, column in enumerate(COMPARISON)}
    best = set()
    for r, row in enumerate(comparisons):
        values = [other.value for other in comparisons if other.measure == row.measure]
        largest = FOUR_DECIMALS(max(row.baseline, *values))
        best |= {(r, place[name]) for name in ("baseline", "value") if FOUR_DECIMALS(getattr(row, name)) == largest}
    return Table.make_columns(
        comparisons,
        COMPARISON,
        best=frozenset(best),
        ties=first.ties,
        marked=frozenset((r, place["p (Holm)"]) for r, row in enumerate(comparisons) if row.significant),
        about_marks=f"baseline: {first.baseline_system}; better, equal and worse topics than its; "
        f"* p < {LEVEL}, paired {first.test} test, Holm's correction",
    )


# How numbers of a setting are shown; other counts as they are, other values with four decimals.
OF_LOSS: Mapping[str, str] = {"delta": "{:+.4f}"}
OF_PRUNING = {"terms/query": "{:.1f}", "postings": "{:,}", "ms/query": "{:.2f}", "speed-up": "{:.1f}x"}


def build_setting_table(rows: Sequence[Mapping[str, Any]], shown: Mapping[str, str]) -> Table:
    """Rows that name their columns; `ties` among the names is the rule of the whole table."""
    headings = [name for name in rows[0] if name != "ties"]

    def cell(name: str, value: Any) -> str:
        return shown.get(name, "{:.4f}" if isinstance(value, float) else "{}").format(value)

    columns = tuple(Column(name, number=name != "setting") for name in headings)
    cells = tuple(tuple(cell(name, row[name]) for name in headings) for row in rows)
    return Table(columns, cells, ties=rows[0].get("ties", ""))


# The columns of tables of analyses; shares are in percent.
RANKING, SYSTEM, DATASET = (FieldColumn(name, name) for name in ("ranking", "system", "dataset"))
RANK, TERM = FieldColumn("rank", "rank", COUNT), FieldColumn("term", "term")
IMAGES, CLASSES = FieldColumn("images", "images", COUNT), FieldColumn("classes", "classes", COUNT)
MEAN_OVER = FieldColumn("mean over", "mean_over")
TOP_1, TOP_5, TOP_10, TOP_50, TOP_100 = (
    FieldColumn(f"top {k} %", f"top_{k}", format_percent) for k in (1, 5, 10, 50, 100)
)

NAMED_WORDS = (RANKING, IMAGES, TOP_1, TOP_5, TOP_10, FieldColumn("of 10", "words_in_10", TWO_DECIMALS))
CLASS_WORDS = (RANKING, DATASET, IMAGES, CLASSES, TOP_1, TOP_10, TOP_50, TOP_100)
ACCURACIES = (SYSTEM, DATASET, IMAGES, CLASSES, MEAN_OVER, TOP_1, TOP_5)
PROBE = FieldColumn("trained on", "trained_on", COUNT), FieldColumn("lambda", "strength", "{:.3g}".format)
PROBE_ACCURACIES = (SYSTEM, DATASET, *PROBE, IMAGES, CLASSES, MEAN_OVER, TOP_1, TOP_5)
COMPLETENESS = (
    *(RANKING, DATASET, IMAGES),
    FieldColumn("pairs", "pairs", COUNT),
    FieldColumn("complete first %", "complete_first", format_percent),
)
DOCUMENT_TERMS = (FieldColumn("document", "document"), RANK, TERM, FieldColumn("weight", "weight", FOUR_DECIMALS))
MEAN = "{:,.2f}".format
SPARSITY = (
    FieldColumn("shards", "shards"),
    *(FieldColumn("documents", "documents", COUNT), FieldColumn("terms/doc", "terms_per_document", MEAN)),
    *(FieldColumn("most", "most_document_terms", COUNT), FieldColumn("dimensions", "document_dimensions", COUNT)),
    *(FieldColumn("queries", "queries", COUNT), FieldColumn("terms/query", "terms_per_query", MEAN)),
    *(FieldColumn("most", "most_query_terms", COUNT), FieldColumn("dimensions", "query_dimensions", COUNT)),
    FieldColumn("FLOPS", "flops", MEAN),
)


def build_term_table(profiles: Sequence[TermProfile]) -> Table:
    """One row per term of each corpus, by its mean weight."""
    documents = {profile.shards: profile.documents for profile in profiles}
    columns = (
        FieldColumn("shards", "shards"),
        FieldColumn("rank", "rank", PLAIN),
        TERM,
        FieldColumn("documents %", lambda term: format_percent(term.documents / documents[term.shards]), PLAIN),
        FieldColumn("mean", "mean", FOUR_DECIMALS),
        FieldColumn("maximum", "maximum", FOUR_DECIMALS),
    )
    return Table.make_columns((term for profile in profiles for term in profile.first), columns)


def label_runs(cards: Sequence[RunCard], labels: Sequence[str] | None) -> list[RunCard]:
    """The runs under the system names that the user gives, if any."""
    if not labels:
        return list(cards)
    if len(labels) != len(cards):
        raise UsageError(f"{len(labels)} labels for {len(cards)} runs; give one --label per --run, or none")
    return [replace(card, system=label) for card, label in zip(cards, labels, strict=True)]


def name_systems(cards: Sequence[RunCard], measured: Sequence[Sequence[Measurement]]) -> list[list[Measurement]]:
    """The measurements of each run under the name of its system."""
    return [[row._replace(run=card.system) for row in rows] for card, rows in zip(cards, measured, strict=True)]


def name_datasets(measured: Sequence[Sequence[Measurement]], labels: Sequence[str] | None) -> list[list[Measurement]]:
    """The measurements under other names of datasets, if any are given: one per dataset, in order of appearance."""
    if not labels:
        return [list(rows) for rows in measured]
    datasets = list(dict.fromkeys(rows[0].dataset for rows in measured))
    if len(labels) != len(datasets):
        raise UsageError(
            f"{len(labels)} --dataset-label for {len(datasets)} datasets ({', '.join(datasets)}); give one each or none"
        )
    names = dict(zip(datasets, labels, strict=True))
    return [[row._replace(dataset=names[row.dataset]) for row in rows] for rows in measured]


def shorten_datasets(datasets: Iterable[str]) -> dict[str, str]:
    """Names of datasets for a table: of a path in one, its last two parts, if the names are still distinct."""
    names = list(dict.fromkeys(datasets))
    shorter = [re.sub(r"[^/:]*(?:/[^/:]*)+/([^/:]*/[^/:]*)$", r"\1", name) for name in names]
    return dict(zip(names, shorter if len(set(shorter)) == len(names) else names, strict=True))


def split_names(judgements: Sequence[str], labels: Sequence[str] | None) -> list[str]:
    """Names for several splits: the user's, else their own; of files of judgements without folders, if still distinct.

    >>> split_names(["data/dev.qrels", "data/test.qrels"], None), split_names(["dev/a.tsv", "test/a.tsv"], None)
    (['dev.qrels', 'test.qrels'], ['dev/a.tsv', 'test/a.tsv'])
    """
    if labels and len(labels) != len(judgements):
        raise UsageError(f"{len(labels)} --dataset-label for {len(judgements)} splits; give one each or none")
    if labels:
        return list(labels)
    names = [Path(label).name for label in judgements]
    files = len(set(names)) == len(names) and all(Path(label).suffix for label in judgements)
    return names if files else list(judgements)
