"""The tables that `eval.reproduce` prints: cells with their verdicts, and what can be reproduced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..report.render import MISSING, Column, Table
from .matrix import TablePlan
from .quantities import MEANS
from .reproducing import ReproducedCell
from .rows import Need

GB, HOUR = 1e9, 3600.0

# Checkpoints or corpora of a table that one cell names.
LISTED = 3


def cell_table(cells: Sequence[ReproducedCell]) -> Table:
    """One row per cell; the reason follows a verdict that needs one."""
    headings = ("table", "row", "quantity", "measured", "published", "difference", "verdict")
    texts = (0, 1, 2, 6)
    return Table(
        columns=tuple(Column(heading, number=n not in texts) for n, heading in enumerate(headings)),
        rows=tuple(
            (
                cell.table,
                cell.row,
                cell.quantity,
                MISSING if cell.measured is None else f"{cell.measured:.{shown_decimals(cell)}f}",
                f"{cell.published:.{cell.decimals}f}",
                MISSING if cell.difference is None else f"{cell.difference:+z.{shown_decimals(cell)}f}",
                cell.verdict + (f" ({cell.reason})" if cell.reason else ""),
            )
            for cell in cells
        ),
    )


def shown_decimals(cell: ReproducedCell) -> int:
    """One decimal more than the paper prints, at most four."""
    return max(cell.decimals, min(cell.decimals + 1, 4))


def summary(cells: Iterable[ReproducedCell]) -> str:
    """How many cells have which verdict, in one line."""
    counts = Counter(cell.verdict for cell in cells)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{counts.total()} cells: {listed or 'none'}"


def plan_table(plans: Sequence[TablePlan]) -> Table:
    """One row per table: how many cells are of which kind, what they need and how much of it is here, disk and time."""
    headings = ("cells", "run", "own", "later", "others", "here", "disk", "CPU time")
    texts = ("weights", "data", "about")
    columns = (Column("table", number=False), *map(Column, headings), *(Column(text, number=False) for text in texts))
    rows = (
        (
            plan.table,
            *map(str, (plan.cells, plan.runs, plan.own, plan.later, plan.others)),
            here(plan),
            disk(plan.bytes),
            cpu_time(plan.seconds),
            listed(plan, "weights"),
            listed(plan, "data"),
            plan.title if plan.cells or not plan.missing else f"{plan.title} (no numbers: {plan.missing})",
        )
        for plan in plans
    )
    return Table(columns, tuple(rows))


def here(plan: TablePlan) -> str:
    """How many of the published checkpoints and corpora of a table are on this machine."""
    public = [need for need in plan.needs if need.public]
    return f"{len(public) - len(plan.lacking)} of {len(public)}" if public else MISSING


def listed(plan: TablePlan, kind: str) -> str:
    """The first published needs of a kind; all collections of a mean are one name."""
    names = [need.name for need in plan.needs if need.kind == kind and need.public]
    for mean, parts in reversed([*MEANS.items()]):
        if {*parts} <= {*names}:
            names = [mean, *(name for name in names if name not in parts)]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more or MISSING


def disk(size: float) -> str:
    """Bytes in GB; a dash for nothing."""
    return MISSING if not size else f"{size / GB:,.1f} GB" if size >= GB / 10 else f"{size * 1000 / GB:,.0f} MB"


def cpu_time(seconds: float) -> str:
    """Seconds in hours or minutes; a dash for nothing."""
    return MISSING if not seconds else f"{seconds / HOUR:,.0f} h" if seconds >= HOUR else f"{seconds / 60:,.0f} min"


def need_table(needs: Sequence[Need]) -> Table:
    """One row per checkpoint and corpus: whether it is here, and where to get it."""
    rows = ((need.kind, need.name, "yes" if need.here else "no", need.origin or MISSING) for need in needs)
    return Table(tuple(Column(heading, number=False) for heading in ("kind", "name", "here", "from")), tuple(rows))
