"""Rows of published tables, cut into what one run, or one count, measures; and where the work for them happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.progress import Progress, silent

from .published import PublishedCell, PublishedRuns, PublishedSystem, PublishedTable
from .quantities import list_parts

# (what is done, how many there are, what is counted) -> a bar that `with` opens.
Bars = Callable[[str, int | None, str], AbstractContextManager[Progress]]


class RowPart(NamedTuple):
    """What one run, or one count, measures for a row: the measures of one task on one collection."""

    table: str
    label: str
    system: PublishedSystem | None
    runs: PublishedRuns | None
    task: str
    data: str
    measures: tuple[str, ...]

    @property
    def name(self) -> str:
        """For a line of a log: table, row and collection."""
        return " ".join(filter(None, (f"{self.table}, {self.label}:", self.task, self.data)))


class PublishedRow(NamedTuple):
    """The cells of one system in a table."""

    table: PublishedTable
    label: str
    cells: tuple[PublishedCell, ...]

    @property
    def system(self) -> PublishedSystem | None:
        """What this project runs for the row; None for other people's systems."""
        return self.cells[0].system

    @property
    def is_ours(self) -> bool:
        """True if this project runs the row's system, or measures a published run of it."""
        return self.system is not None or self.table.runs is not None

    def parts(self) -> Iterator[RowPart]:
        """What measures the cells; a mean over collections needs a run of each."""
        quantities = dict.fromkeys(part for cell in self.cells for part in list_parts(cell.quantity))
        measures: dict[tuple[str, str], list[str]] = {}
        for task, data, measure in quantities:
            measures.setdefault((task, data), []).append(measure)
        for (task, data), names in measures.items():
            yield RowPart(self.table.name, self.label, self.system, self.table.runs, task, data, tuple(names))


def list_rows(table: PublishedTable, pattern: str = "*") -> list[PublishedRow]:
    """The rows of a table whose headings match, in their order; `*` and `?` match other characters."""
    by_label: dict[str, list[PublishedCell]] = {}
    for cell in table.cells:
        by_label.setdefault(cell.label, []).append(cell)
    return [
        PublishedRow(table, label, tuple(cells)) for label, cells in by_label.items() if fnmatchcase(label, pattern)
    ]


class Finding(NamedTuple):
    """What a part measured.

    Attributes:
        values: measure -> its value: of retrieval from 0 to 1, of parameters in millions
        tolerance: a value within it of the published one agrees; 0 compares the printed digits
        remark: why the values cannot be compared with published ones; empty if they can
        note: what the comparison assumes, printed beside the verdict
        model: the digest of the checkpoint; empty where none is loaded
    """

    values: Mapping[str, float]
    tolerance: float
    remark: str = ""
    note: str = ""
    model: str = ""


class Need(NamedTuple):
    """Weights or data that a part reads: whether they are here, where they come from, and whether anyone can get them.

    Something `fetchable` is fetched when it is read, if the network allows; something `public` is published.
    """

    kind: str
    name: str
    here: bool
    origin: str
    fetchable: bool = False
    public: bool = True


class PartCost(NamedTuple):
    """About what a part costs: disk and CPU seconds; parts with one name of `documents` share what is encoded."""

    documents: str
    bytes: float
    encoding_s: float
    topics_s: float


@dataclass(frozen=True)
class Workplace:
    """Where the line of each row runs, and what the user has.

    Attributes:
        checkpoints: a published checkpoint, or a row without one -> the folder, file or packaged name of weights
        as_published: the user vouches that the folders and files of `checkpoints` are what their names say
        corpora: a collection -> the corpus that is read instead
        limit: documents of each collection that are encoded; None for all
    """

    output: Path
    data_dir: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    corpora: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    as_published: bool = False
    device: str = "auto"
    batch_size: int = 32
    overwrite: bool = False
    bars: Bars = lambda what, total, unit: nullcontext(silent)


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
