"""The pages of papers: what the paper claims, then a table per table, a row per system, a cell per number.

Numbers are those of `runs/expected` and of `runs/measured.json`. A click on a cell shows the command that measures its
row and what it needs; the next click copies it.

`lexvl_eval` decides everything that is shown: what a row needs, what of it is public, what it costs, and the verdicts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from glob import escape as glob_escape
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from lexvl_plugins.papers.claims import (
    JudgedClaim,
    format_interval,
    format_published,
    format_signed,
    judge_record,
    load_claims,
)
from lexvl_plugins.papers.prepared import Need, PublishedRow, Workplace, list_rows
from lexvl_plugins.papers.published import PublishedCell, PublishedTable, find_expected_folder, read_tables
from lexvl_plugins.papers.tables import (
    AGREES,
    DIFFERS,
    HOUR,
    LATER,
    OTHERS,
    RecordedCell,
    estimate_cost,
    format_number,
    format_time,
    list_kinds,
    list_needs,
    make_key,
    read_record,
)

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "runs" / "measured.json"
FOLDER = Path("docs/papers")

# The place in docs/plugins/papers.md where the site lists the pages.
MARK = "<!-- the site lists the pages of papers here -->"

# Above so many hours of one CPU core an accelerator is advisable.
CPU_HOURS = 8

# Tables of more columns have cells that wrap, because their rows have columns of their own.
MOST_COLUMNS = 16

# Origins of data that need no folder of the reader's.
FREE = re.compile("the package|fetched when|tools/world draw")

# A kind of cell in a plan -> why it has no measured value.
REASONS = {"runs": "not measured yet", "own": "needs weights or data of your own", "later": LATER, "others": OTHERS}

INTRODUCTION = """\
A cell has what this project measured, what is published, or computed from what is, the difference and the verdict, or
why it has no value. A click on it shows the command of its row and what that needs; the next click copies the command.
[Reproducing tables](../plugins/papers.md) explains verdicts and options.
"""

CLAIMS = """\
## What the paper claims

A number is the least difference that speaks for the claim: above 0, it holds. Each claim has the verdicts of the
tables by which it can be judged, of the paper's size and of this project's small trainings.
[Claims](../plugins/papers.md#claims) explains relations and verdicts.

| claim | where | verdicts |
|---|---|---|
"""

FILTERS = """\
```{raw} html
<fieldset class="filters" aria-label="rows shown">
<label><input type="checkbox" data-filter="public"> needs no weights or data that cannot be downloaded</label>
<label><input type="checkbox" data-filter="cpu"> needs no accelerator</label>
<label><input type="checkbox" data-filter="measured"> measured</label>
<output></output>
</fieldset>
<noscript><style>tr.how[hidden] { display: table-row } .how button, .filters { display: none }</style></noscript>
<script src="../../_static/papers.js" defer></script>
```
"""


class ShownRow(NamedTuple):
    """A row and what its page says about it.

    kinds    per cell, as in a plan: runs, own, later or others
    needs    weights and data of the cells that this version measures
    seconds  of one CPU core, about
    command  empty where this version measures no cell of the row
    """

    row: PublishedRow
    kinds: tuple[str, ...]
    needs: tuple[Need, ...]
    seconds: float
    command: str

    @property
    def is_public(self) -> bool:
        """True if everything can be downloaded."""
        return "runs" in self.kinds and all(need.public for need in self.needs)

    @property
    def is_for_cpus(self) -> bool:
        """True if no accelerator is needed."""
        return bool(self.command) and self.seconds <= CPU_HOURS * HOUR


def shown_row(row: PublishedRow) -> ShownRow:
    """What a page says about a row, for a machine of which nothing is known."""
    place = Workplace(Path("reproduction"))
    parts = list(list_needs(row, place))
    needs = {need.name: need for _, of_part in parts for need in of_part}
    kinds = tuple(list_kinds(row, parts))
    command = command_of(row, [*needs.values()]) if {"runs", "own"} & {*kinds} else ""
    seconds = estimate_cost([part for part, _ in parts], place)[1]
    return ShownRow(row, kinds, tuple(needs.values()), seconds, command)


def command_of(row: PublishedRow, needs: Sequence[Need]) -> str:
    """The command that measures a row; names in capitals are the reader's own."""
    words = ["lexvl reproduce", row.table.name]
    if len(list_rows(row.table)) > 1:
        words += ["--rows", shlex.quote(glob_escape(row.label))]
    texts = [re.findall(r"--(?:checkpoint|corpus) (?:'[^']+'|[^ =]+)=\w+\S*", need.origin) for need in needs]
    words += dict.fromkeys(option for several in texts for option in several)
    if any(need.kind == "data" and need.public and not FREE.search(need.origin) for need in needs):
        words += ["--data-dir DATA"]
    return " ".join(words)


def place_of(cell: PublishedCell) -> str:
    """The heading of a cell beside that of its row, as the record has it."""
    return cell.heading


def heading(cell: PublishedCell) -> str:
    """The heading of a column: data, measure and task; of a weight its term alone."""
    task, data, measure = map(escape, cell.quantity)
    if task == "weight":
        return measure
    return f"{data or measure}<small>{measure if data else ''}</small><small>{task}</small>"


def cell_html(cell: PublishedCell, kind: str, recorded: RecordedCell | None, with_heading: bool) -> str:
    """A cell: a button where a command measures it, else a text."""
    published = "–" if cell.value is None else f"{cell.bound}{cell.value:.{cell.decimals}f}"
    lines = [f"<i>{heading(cell)}</i>"] if with_heading else []
    # This project's own numbers are in no paper, and some are computed from published files.
    own = cell.tolerance or cell.bound == ">"
    word = "stated" if own else "computed" if cell.status == "derived" else "published"
    if recorded:
        difference = "" if cell.value is None else format_number(cell.decimals, recorded.measured - cell.value, "+z")
        lines += [f"<b>{format_number(cell.decimals, recorded.measured)}</b>"]
        lines += [f"<span>{word} {escape(published)}</span><span>{difference}</span>"]
        name, text = recorded.verdict.replace(" ", "-"), recorded.verdict
    else:
        lines += [f"<span>{word} {escape(published)}</span>"]
        name, text = kind, REASONS[kind]
    lines += [f'<span class="verdict">{text}</span>']
    inside = "".join(lines)
    if kind in ("later", "others") and not recorded:
        return f'<div class="cell {name}">{inside}</div>'
    return f'<button type="button" class="cell {name}" aria-expanded="false">{inside}</button>'


def how_html(shown: ShownRow, recorded: Sequence[RecordedCell | None]) -> str:
    """What a click shows: the command, what it needs, and how the values were measured."""
    sources: dict[tuple[str, str], list[str]] = {}
    for need in shown.needs:
        sources.setdefault((need.kind, need.origin), []).append(f"<code>{escape(need.name)}</code>")
    needs = [f"{kind} {', '.join(names)}: {escape(origin)}" for (kind, origin), names in sources.items()]
    if shown.is_for_cpus:
        duration = f"; about {format_time(shown.seconds)} of one CPU core" if shown.seconds else ""
        needs += [f"accelerator: none{duration}"]
    else:
        needs += [f"accelerator: advisable; about {format_time(shown.seconds)} of one CPU core without one"]
    measured = [cell for cell in recorded if cell]
    reasons = dict.fromkeys(cell.reason for cell in measured if cell.reason)
    notes = [escape(reason) for reason in reasons] + [*dict.fromkeys(map(provenance, measured))]
    listed = "".join(f"<li>{text}</li>" for text in (*needs, *notes))
    copy = '<button type="button" class="copy">Copy</button>'
    return f"<pre><code>{escape(shown.command)}</code></pre>{copy}<ul>{listed}</ul>"


def provenance(cell: RecordedCell) -> str:
    """When, where and with what a value was measured."""
    versions = ", ".join(f"{name} {number}" for name, number in cell.environment["versions"].items())
    model = f"; model <code>{cell.model[:16]}</code>" if cell.model else ""
    machine = f"Python {cell.environment['python']}, {cell.environment['processor']}"
    return f"measured {cell.date}{model}; {escape(machine)}; {escape(versions)}"


def table_html(table: PublishedTable, record: dict[str, RecordedCell]) -> Iterator[str]:
    """The lines of a table."""
    first = {place_of(cell): cell for cell in reversed(table.cells)}
    columns = list(dict.fromkeys(map(place_of, table.cells)))
    wraps = len(columns) > MOST_COLUMNS
    heads = "" if wraps else "".join(f"<th scope=col>{heading(first[column])}</th>" for column in columns)
    yield '<div class="published"><table>'
    yield f"<thead><tr><th scope=col>system</th>{heads or '<th scope=col>cells</th>'}</tr></thead><tbody>"
    for row in list_rows(table):
        shown = shown_row(row)
        recorded = [record.get(make_key(table.name, cell.label, place_of(cell))) for cell in row.cells]
        cells = {
            place_of(cell): cell_html(cell, kind, value, wraps)
            for cell, kind, value in zip(row.cells, shown.kinds, recorded, strict=True)
        }
        flags = {"public": shown.is_public, "cpu": shown.is_for_cpus, "measured": any(recorded)}
        names = " ".join(name for name, flag in flags.items() if flag)
        inside = "".join(f"<td>{cells.get(column, '')}</td>" for column in columns)
        if wraps:
            inside = f'<td><div class="wrapped">{"".join(cells.values())}</div></td>'
        yield f'<tr data-flags="{names}"><th scope=row>{escape(row.label)}</th>{inside}</tr>'
        if shown.command:
            width = 2 if wraps else len(columns) + 1
            yield f'<tr class="how" hidden><td colspan="{width}"><div>{how_html(shown, recorded)}</div></td></tr>'
    yield "</tbody></table></div>"


def claims_text(judged: Sequence[JudgedClaim]) -> str:
    """A table of claims in Markdown: a row per claim, with the verdict of each quantity and its numbers."""
    lines = []
    for _, of_claim in groupby(judged, key=lambda one: one.claim):
        several = list(of_claim)
        first, parts = several[0], []
        for (verdict, table, scale), alike in groupby(several, key=lambda one: (one.verdict, one.table, one.scale)):
            where = ", ".join(filter(None, (table, f"scale: {scale}" if scale else "")))
            parts.append(f"**{verdict}** ({where}): {'; '.join(plain(numbers_text(one)) for one in alike)}")
        cells = (f"{plain(first.says)} ({plain(first.relation)})", plain(first.where), "<br>".join(parts))
        lines.append(f"| {' | '.join(cells)} |")
    return CLAIMS + "\n".join(lines) + "\n"


def numbers_text(judged: JudgedClaim) -> str:
    """A quantity with the numbers that there are."""
    numbers = [judged.quantity]
    if judged.published is not None:
        numbers.append(f"published {format_published(judged)}")
    if judged.difference is not None:
        numbers.append(f"measured {format_signed(judged, judged.difference)}")
    if judged.low is not None:
        numbers.append(format_interval(judged))
    return ", ".join(numbers)


def plain(text: str) -> str:
    """A text in a cell of a Markdown table, without marks."""
    return re.sub(r"([|*_])", r"\\\1", text)


def page_of(
    tables: Sequence[PublishedTable], record: dict[str, RecordedCell], claims: Sequence[JudgedClaim] = ()
) -> str:
    """The page of a paper, in Markdown."""
    parts = [f"# {tables[0].paper}\n\n{INTRODUCTION}", *([claims_text(claims)] if claims else [])]
    if any(table.cells for table in tables):
        parts.append(FILTERS)
    for table in tables:
        about = f"{table.title[0].upper()}{table.title[1:]}. {table.protocol and f'Protocol: {table.protocol}.'}"
        parts.append(f"## {table.name}\n\n{about.replace('*', chr(92) + '*')}\n")
        if not table.cells:
            parts.append(f"No numbers: {table.missing}.\n")
            continue
        parts.append("\n".join(("```{raw} html", *table_html(table, record), "```\n")))
    return "\n".join(parts)


def write_pages(folder: Path) -> None:
    """Writes the pages below the folder of collected pages, and the list of them into that of reproduction."""
    record = read_record(RECORD)
    (folder / FOLDER).mkdir(parents=True)
    nothing = Workplace(folder / "reproduction")
    lines, names = [], []
    for path in sorted(find_expected_folder().glob("*.yaml")):
        tables = list(read_tables(path))
        claims = [claim for claim in load_claims() if claim.name.startswith(f"{path.stem}-")]
        judged = judge_record(claims, record, nothing)
        (folder / FOLDER / f"{path.stem}.md").write_text(page_of(tables, record, judged), encoding="utf-8")
        names.append(f"../papers/{path.stem}")
        cells = [cell for table in tables for cell in table.cells]
        recorded = [record.get(make_key(cell.table, cell.label, place_of(cell))) for cell in cells]
        verdicts = [cell.verdict for cell in recorded if cell]
        counts = (len(cells), len(verdicts), verdicts.count(AGREES), verdicts.count(DIFFERS))
        lines.append(f"| [{tables[0].paper}](../papers/{path.stem}.md) | {' | '.join(map(str, counts))} |")
    table = "| page | cells | measured | agree | differ |\n|---|--:|--:|--:|--:|\n" + "\n".join(lines)
    hidden = "```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```"
    page = folder / "docs" / "plugins" / "papers.md"
    text = page.read_text(encoding="utf-8")
    if MARK not in text:
        raise SystemExit(f"error: docs/plugins/papers.md: no {MARK}, where the site lists the pages of papers")
    page.write_text(text.replace(MARK, f"{table}\n\n{hidden}"), encoding="utf-8")
