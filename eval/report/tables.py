"""The tables that commands print: what measures return as texts, rendered as text, Markdown, LaTeX, CSV or JSON."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isnan
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from lexvl_anserini.ground.errors import UnknownName
from lexvl_anserini.ground.records import Measurement

from ..measures.inputs import ABOUT, RunCard
from ..measures.metrics import HEADINGS, LEVEL, RSUM, means, sum_recalls

if TYPE_CHECKING:
    from ..measures.significance import SystemComparison

# The text of a cell without a value.
MISSING = "–"

# Between two columns of text.
GAP = "  "


class Column(NamedTuple):
    """A heading, and above it the group it belongs to (a dataset); `number` cells are aligned right."""

    heading: str
    group: str = ""
    number: bool = True


class FieldColumn(NamedTuple):
    """A column of a table over records: the field that it shows, or what computes it, and how it is shown.

    Columns of `str` are texts, aligned left.
    """

    heading: str
    field: str | Callable[[Any], Any]
    shown: Callable[[Any], str] = str


# How a field is shown; PLAIN is a text that is aligned as a number.
PLAIN, COUNT, TWO_DECIMALS, FOUR_DECIMALS = (text.format for text in ("{}", "{:,}", "{:.2f}", "{:.4f}"))


def format_percent(share: float) -> str:
    """A share in percent, one decimal."""
    return f"{100 * share:.1f}"


@dataclass(frozen=True)
class Table:
    """Columns and rows of as many cells; `best` are the (row, column) to emphasise, `marked` those with a star.

    `ties` is the rule of `inputs.TIES` that all measures were computed by, empty if there are none.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()
    ties: str = ""
    marked: frozenset[tuple[int, int]] = frozenset()
    about_marks: str = ""

    @classmethod
    def make_columns(cls, rows: Iterable[Any], fields: Sequence[FieldColumn], **facts: Any) -> Table:
        """One row per record, one column per field; `facts` are the table's other fields."""
        columns = tuple(Column(column.heading, number=column.shown is not str) for column in fields)
        values = [attrgetter(column.field) if isinstance(column.field, str) else column.field for column in fields]
        cells = (tuple(column.shown(value(row)) for column, value in zip(fields, values, strict=True)) for row in rows)
        return cls(columns, tuple(cells), **facts)

    @property
    def notes(self) -> list[str]:
        """The lines below the table: what a star means, and the rule of equal scores in words."""
        ties = f"ties: {self.ties} ({ABOUT[self.ties]})" if self.ties else ""
        return [*filter(None, [self.about_marks, ties])]

    def shown(self, bold: str = "{}", star: str = "*", no_star: str = "") -> list[list[str]]:
        """The rows with the best cells in bold, and a star after marked ones."""
        starred = {c for _, c in self.marked}
        return [
            [
                (bold.format(cell) if (r, c) in self.best else cell)
                + (star if (r, c) in self.marked else no_star if c in starred else "")
                for c, cell in enumerate(row)
            ]
            for r, row in enumerate(self.rows)
        ]


def to_text(table: Table) -> str:
    """Aligned columns; groups are a line above the headings, centred above their columns."""
    rows = table.shown(no_star=" ")
    widths = [max(map(len, [column.heading, *(row[c] for row in rows)])) for c, column in enumerate(table.columns)]
    spans = _group_columns(table.columns)
    for group, start, stop in spans:
        widths[stop - 1] += max(0, len(group) - _measure_room(widths[start:stop]))

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(cells, widths, table.columns, strict=True)
        )
        return GAP.join(aligned).rstrip()

    groups = GAP.join(group.center(_measure_room(widths[start:stop])) for group, start, stop in spans).rstrip()
    lines = [line([column.heading for column in table.columns]), *map(line, rows)]
    return "\n".join(filter(None, [groups, *lines, *table.notes])) + "\n"


def to_markdown(table: Table) -> str:
    """A GitHub table; the best of each measure is bold."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    head = line(f"{column.group} {column.heading}".strip() for column in table.columns)
    rule = "|" + "|".join("--:" if column.number else "---" for column in table.columns) + "|"
    body = map(line, table.shown("**{}**", star="\\*"))
    notes = [part for note in table.notes for part in ("", note.replace("*", "\\*"))]
    return "\n".join([head, rule, *body, *notes]) + "\n"


def to_latex(table: Table) -> str:
    r"""A `tabular` for booktabs; the best of each measure is bold."""
    spec = "".join("r" if column.number else "l" for column in table.columns)
    lines = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule"]
    spans = _group_columns(table.columns)
    if any(group for group, _, _ in spans):
        groups = [rf"\multicolumn{{{stop - start}}}{{c}}{{{_replace_signs(group)}}}" for group, start, stop in spans]
        lines.append(" & ".join(groups) + r" \\")
        lines += [rf"\cmidrule(lr){{{start + 1}-{stop}}}" for group, start, stop in spans if group]
    lines += [" & ".join(_replace_signs(column.heading) for column in table.columns) + r" \\", r"\midrule"]
    escaped = replace(table, rows=tuple(tuple(map(_replace_signs, row)) for row in table.rows))
    lines += [" & ".join(row) + r" \\" for row in escaped.shown(r"\textbf{{{}}}", "$^{*}$")]
    lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Comma-separated values with one line of headings; the rule of equal scores is the last column."""
    last = (("ties",), (table.ties,)) if table.ties else ((), ())
    head = (*(f"{column.group} {column.heading}".strip() for column in table.columns), *last[0])
    return _write_csv(head, ((*row, *last[1]) for row in table.rows))


TABLE_FORMATS: dict[str, Callable[[Table], str]] = {
    "text": to_text,
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}

FORMATS = (*TABLE_FORMATS, "json")

# Characters of labels that LaTeX has in formulas only.
_SIGNS = {
    "→": "rightarrow", "←": "leftarrow", "↔": "leftrightarrow", "↑": "uparrow", "↓": "downarrow", "⇒": "Rightarrow",
    "≤": "leq", "≥": "geq", "≠": "neq", "≈": "approx", "±": "pm", "×": "times", "·": "cdot", "÷": "div", "∞": "infty",
    "√": "surd", "∈": "in", "∪": "cup", "∩": "cap", "∅": "emptyset", "α": "alpha", "β": "beta", "γ": "gamma",
    "δ": "delta", "ε": "varepsilon", "λ": "lambda", "μ": "mu", "µ": "mu", "π": "pi", "σ": "sigma", "τ": "tau",
    "φ": "varphi", "ω": "omega", "Δ": "Delta", "Σ": "Sigma", "Ω": "Omega",
}  # fmt: skip

# In LaTeX's default encoding, < > | print other characters; after a line, [ and * begin its options.
_LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
        ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "[": "{[}", "]": "{]}", "*": "$^{*}$",
        "\N{MINUS SIGN}": "$-$", MISSING: "--", "\N{EM DASH}": "---",
        **{sign: f"$\\{name}$" for sign, name in _SIGNS.items()},
    }
)  # fmt: skip

# A minus sign of a number, not a hyphen.
_MINUS = re.compile(r"(?<![^\s(])-(?=[0-9.])")


def to_json(value: Any) -> str:
    """Mappings, sequences and records (as objects of their fields) as indented JSON."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(value, default=methodcaller("_asdict"), option=options).decode()


def render(table: Table, value: Any, output_format: str) -> str:
    """The table in one of `FORMATS`; for "json" the exact value instead, with all its digits."""
    return to_json(value) if output_format == "json" else TABLE_FORMATS[output_format](table)


def print_records(rows: Sequence[Any], fields: Sequence[FieldColumn], output_format: str) -> None:
    """Prints one row per record, one column per field; JSON has the records."""
    sys.stdout.write(render(Table.make_columns(rows, fields), rows, output_format))


def format_csv(rows: Sequence[NamedTuple]) -> str:
    """Records as comma-separated values, headed by the names of their fields; NaN is an empty cell."""
    return _write_csv(rows[0]._fields, (["" if value != value else value for value in row] for row in rows))


def _write_csv(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *rows])
    return out.getvalue()


def check_format(name: str, known: Iterable[str] = FORMATS) -> None:
    """Raises an error for an unknown format, before anything is computed."""
    if name not in (known := list(known)):
        raise UnknownName("format", name, known)


def _group_columns(columns: Sequence[Column]) -> list[tuple[str, int, int]]:
    """Adjacent columns of one group: (group, first, one past the last)."""
    spans = []
    for group, places in groupby(range(len(columns)), key=lambda c: columns[c].group):
        first, *others = places
        spans.append((group, first, first + 1 + len(others)))
    return spans


def _measure_room(widths: Sequence[int]) -> int:
    """The width of columns and of the gaps between them."""
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _replace_signs(text: str) -> str:
    return _MINUS.sub("\N{MINUS SIGN}", text).translate(_LATEX)


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


def render_scores(measured: Iterable[Iterable[Measurement]], per_topic: bool, output_format: str) -> str:
    """The means of several runs, with `per_topic` each topic's value too; CSV and JSON have all fields and digits."""
    rows = [row for rows in measured for row in rows if per_topic or row.query_id == "all"]
    return format_csv(rows) if output_format == "csv" else render(build_score_table(rows), rows, output_format)


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
    """Comparisons in one of `FORMATS`; CSV and JSON have all fields with all their digits."""
    if output_format == "csv":
        return format_csv(comparisons)
    return render(build_comparison_table(comparisons), comparisons, output_format)


def _format_p(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


COMPARISON = (
    *(FieldColumn(name, name) for name in ("system", "measure")),
    *(FieldColumn(name, name, FOUR_DECIMALS) for name in ("baseline", "value")),
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
IMAGES, CLASSES = FieldColumn("images", "images", COUNT), FieldColumn("classes", "classes", COUNT)
TOP_1, TOP_5, TOP_10, TOP_50, TOP_100 = (
    FieldColumn(f"top {k} %", f"top_{k}", format_percent) for k in (1, 5, 10, 50, 100)
)


def shorten_datasets(datasets: Iterable[str]) -> dict[str, str]:
    """Names of datasets for a table: of a path in one, its last two parts, if the names are still distinct."""
    names = list(dict.fromkeys(datasets))
    shorter = [re.sub(r"[^/:]*(?:/[^/:]*)+/([^/:]*/[^/:]*)$", r"\1", name) for name in names]
    return dict(zip(names, shorter if len(set(shorter)) == len(names) else names, strict=True))
