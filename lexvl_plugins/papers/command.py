"""Tables of papers: runs the whole line of each row, and compares what it measures with what the paper prints."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import orjson
import typer
from lexvl_eval import options
from lexvl_eval.report.tables import Table, print_records, render

from lexvl_anserini.cli import BatchSize, DataDir, Device, Overwrite, Verbose, expand_options, run
from lexvl_anserini.ground.errors import LexvlError, UnknownName, UsageError
from lexvl_anserini.ground.files import atomic_write
from lexvl_anserini.ground.progress import progress_bar

from . import tables as verdicts
from .claims import CLAIMS, PaperClaim, count_claims, judge_cells, judge_record, load_claims
from .prepared import Workplace, list_checkpoints, list_rows
from .published import PublishedTable, find_expected_folder, load_published_tables
from .tables import ReproducedCell, TablePlan, count_verdicts, make_plan, read_record, reproduce_rows, write_record

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_plugins.papers.command")


# What stands in the place of a table for the claims of all papers.
ALL_CLAIMS = "claims"


@dataclass(frozen=True)
class SelectionOptions:
    """Which tables and rows, or claims."""

    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables, such as vdr-table4; or the word claims.",
            autocompletion=lambda: [*load_published_tables(), ALL_CLAIMS],
        ),
    ] = None
    every: Annotated[bool, typer.Option("--all", help="All tables.")] = False
    rows: Annotated[str, typer.Option(help="Only rows whose heading matches: 'VDR k=*'; or claims: 'stair-*'.")] = "*"

    def chosen_claims(self) -> list[PaperClaim]:
        """The claims, where the word stands for a table; else none."""
        if ALL_CLAIMS not in (self.tables or ()):
            return []
        if self.tables != [ALL_CLAIMS] or self.every:
            raise UsageError("claims are of all tables: give the word alone, and --rows 'stair-*' for some")
        if not (claims := [claim for claim in load_claims() if fnmatchcase(claim.name, self.rows)]):
            names = dict.fromkeys(claim.name for claim in load_claims())
            raise UsageError(f"--rows {self.rows!r} matches no claim; claims: {', '.join(names)}")
        return claims

    def chosen(self) -> list[PublishedTable]:
        """The tables."""
        known = load_published_tables()
        if bool(self.tables) == self.every:
            raise UsageError("name a table, or give --all; --all --dry-run lists them")
        for name in self.tables or ():
            if name not in known:
                raise UnknownName("table", name, known)
        chosen = [known[name] for name in self.tables or known]
        if self.rows != "*" and not any(list_rows(table, self.rows) for table in chosen):
            cells = [cell for table in chosen for cell in table.cells]
            headings = dict.fromkeys([*(cell.label for cell in cells), *(cell.row for cell in cells)])
            raise UsageError(f"--rows {self.rows!r} matches no row; rows: {', '.join(headings)}")
        return chosen


CHECKPOINT = "NAME=FOLDER: weights for a published checkpoint or a row without one; repeatable."
CORPUS = "NAME=CORPUS: a corpus in the place of a collection; repeatable."
AS_PUBLISHED = "The folders and files of --checkpoint are the published weights, by your word."
OUTPUT = "Folder of shards, indexes, runs and results; found again later."
RECORD = "Add measured cells to this JSON file, with date, versions and digest of the model; claims read it."


def parse_assignments(texts: list[str], known: set[str], option: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping; a name may have equals signs, because headings do ("VDR k=32")."""
    values: dict[str, str] = {}
    for text in texts:
        names = [name for name in known if text.startswith(f"{name}=")]
        if not names:
            raise UsageError(
                f"{option} {text!r}: expected NAME=VALUE with a name of the selected tables: {', '.join(sorted(known))}"
            )
        name = max(names, key=len)
        value = text[len(name) + 1 :]
        if not value or values.setdefault(name, value) != value:
            raise UsageError(f"{option} {text!r}: {'two values for' if value else 'no value after'} {name!r}")
    return values


@dataclass(frozen=True)
class PlaceOptions:
    """What the user has, and where the line writes."""

    checkpoints: Annotated[list[str] | None, typer.Option("--checkpoint", help=CHECKPOINT)] = None
    corpora: Annotated[list[str] | None, typer.Option("--corpus", help=CORPUS)] = None
    as_published: Annotated[bool, typer.Option("--as-published", help=AS_PUBLISHED)] = False
    data_dir: DataDir = None
    output: Annotated[Path, typer.Option(help=OUTPUT)] = Path("reproduction")
    limit: Annotated[
        int | None, typer.Option(min=1, help="Encode that many documents only, relevant ones first; no verdict.")
    ] = None
    device: Device = "auto"
    batch_size: BatchSize = 32
    overwrite: Overwrite = False

    def place(self, tables: Sequence[PublishedTable]) -> Workplace:
        """The workplace."""
        rows = [row for table in tables for row in list_rows(table)]
        names = {name for row in rows for name in list_checkpoints(row)}
        checkpoints = parse_assignments(self.checkpoints or [], names, "--checkpoint")
        parts = [part for row in rows if row.is_ours for part in row.parts()]
        data = {name for part in parts for name in (part.data, part.system and part.system.trained_on) if name}
        corpora = parse_assignments(self.corpora or [], data, "--corpus")
        how = (self.limit, self.as_published, self.device, self.batch_size, self.overwrite, progress_bar)
        return Workplace(self.output, self.data_dir, checkpoints, corpora, *how)


@dataclass(frozen=True)
class OutcomeOptions:
    """Where the cells go, and which of them end with exit code 1."""

    results: Annotated[Path | None, typer.Option(help="Write the cells as JSON lines to this file too.")] = None
    record: Annotated[Path | None, typer.Option(help=RECORD)] = None
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if a row is skipped or a cell differs.")] = False
    agreeing: Annotated[
        bool, typer.Option("--agreeing", help="Exit 1 if a cell differs; skipped rows are no failure.")
    ] = False

    def write(self, cells: Sequence[ReproducedCell], fresh: Sequence[ReproducedCell]) -> None:
        """Writes the cells so far as results, and adds the fresh ones to the record."""
        if self.results:
            with atomic_write(self.results) as out:
                out.writelines(orjson.dumps(cell._asdict()) + b"\n" for cell in cells)
        if self.record:
            write_record(self.record, fresh)

    def read_claims_record(self) -> dict[str, verdicts.RecordedCell]:
        """The record by which claims are judged: the user's, or that of the checkout."""
        if self.results or self.strict or self.agreeing:
            raise UsageError("claims are read and not measured: leave out --results, --strict and --agreeing")
        if self.record and not self.record.exists():
            raise UsageError(f"--record {self.record}: no such record of measured cells")
        return read_record(self.record or find_expected_folder().with_name("measured.json"))

    def check(self, cells: Sequence[ReproducedCell]) -> None:
        """Raises LexvlError for parts that failed, and for verdicts that the user does not accept."""
        if failed := [cell for cell in cells if cell.verdict == verdicts.FAILED]:
            raise LexvlError(f"{len(failed)} of {len(cells)} cells: their systems failed ({failed[0].reason})")
        refused = {verdicts.DIFFERS: self.strict or self.agreeing, verdicts.SKIPPED: self.strict}
        if failed := [cell for cell in cells if refused.get(cell.verdict)]:
            what, option = ("are skipped or differ", "--strict") if self.strict else ("differ", "--agreeing")
            raise LexvlError(f"{len(failed)} of {len(cells)} cells {what} ({option})")


@expand_options
def command(
    selection: SelectionOptions,
    place: PlaceOptions,
    outcome: OutcomeOptions,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the tables need, what is missing and where to get it.")
    ] = False,
    output_format: options.TableFormat = "text",
    verbose: Verbose = False,
) -> None:
    """Reproduce tables of papers: encode, index, search, measure; print measured and published values with verdicts.

    Rows whose weights or data are missing are named and skipped; the exit code is 1 if a system fails. A second call
    finds finished rows. What the paper claims of measured cells follows them; `claims` prints all claims.

    Example: lexvl reproduce vdr-table4 --dry-run
    """
    claims = selection.chosen_claims()
    tables = list_tables(claims) if claims else selection.chosen()
    workplace = place.place(tables)
    if claims:
        judged = judge_record(claims, outcome.read_claims_record(), workplace)
        print_records(judged, CLAIMS, output_format)
        log.info("%s", count_claims(judged))
        return
    if outcome.record and (place.limit or (place.checkpoints and not place.as_published)):
        raise UsageError("--record takes whole collections and published weights: leave out --limit and --checkpoint")
    if dry_run:
        plans = [make_plan(table, workplace, selection.rows) for table in tables]
        sys.stdout.write(render_plans(plans, output_format, with_needs=not selection.every))
        return
    rows = [row for table in tables for row in list_rows(table, selection.rows) if row.is_ours]
    cells: list[ReproducedCell] = []
    for of_row in reproduce_rows(rows, workplace):
        cells += of_row
        outcome.write(cells, of_row)  # a call of hours that ends at a later row has the rows before
    if not rows:
        outcome.write(cells, cells)
    print_records(cells, verdicts.CELLS, output_format)
    if output_format not in ("json", "csv"):  # one table each
        of_tables = [claim for claim in load_claims() if claim.table in {table.name for table in tables}]
        if judged := judge_cells(of_tables, cells, workplace):
            print()
            print_records(judged, CLAIMS, output_format)
    log.info("%s", count_verdicts(cells))
    for table in tables:
        if not any(row.is_ours for row in list_rows(table)):
            log.info(
                "%s: nothing to measure: %s", table.name, table.missing or "its rows are no systems of this project"
            )
    outcome.check(cells)


def list_tables(claims: Sequence[PaperClaim]) -> list[PublishedTable]:
    """The tables that claims are about."""
    return [table for name, table in load_published_tables().items() if name in {claim.table for claim in claims}]


def render_plans(plans: Sequence[TablePlan], output_format: str, with_needs: bool) -> str:
    """The plans of tables; of named tables also each checkpoint and corpus with its origin, and what is not there."""
    texts = [render(Table.make_columns(plans, verdicts.PLANS), plans, output_format)]
    needs = {need.name: need for plan in plans for need in plan.needs}
    if with_needs and needs and output_format != "json":
        texts.append(render(Table.make_columns(needs.values(), verdicts.NEEDS), None, output_format))
    return "\n".join(texts)


if __name__ == "__main__":
    run(command)
