"""Tables of texts, rendered as text, Markdown, LaTeX or CSV; records, rendered as JSON or CSV."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import orjson

from lexvl_anserini.ground.errors import UnknownName

from ..measures.ties import ABOUT

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
    """Columns and rows of as many cells.

    Attributes:
        best: the (row, column) of the cells to emphasise
        ties: the rule of `ties.TIES` that all measures of the table were computed by; empty if there are none
        marked: the (row, column) of the cells with a star, whose meaning is `about_marks`
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
