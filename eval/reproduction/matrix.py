"""What can be reproduced: per table the cells, weights, data, disk and time, without loading or fetching anything.

`WAYS` has one row per task, so that a new task is one function and one row. Retrieval and classification have modules
of their own; numbers of parameters are counted here, in networks that are built without weights and without memory, and
so are published runs of other systems measured again: every printed digit must come out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import CorpusRef
from lexvl_anserini.ground.registry import Registry, Way

from ..measures.inputs import JudgementSource, describe_run
from ..measures.measure_runs import measure_runs
from ..measures.metrics import means, parse_measure
from .published import PublishedTable
from .quantities import list_parts
from .rows import Finding, Need, PublishedRow, RowPart, Workplace, list_rows


def list_needed_files(part: RowPart, place: Workplace) -> list[Need]:
    """The run of a row and its judgements, in the data folder."""
    assert part.runs is not None, "the table has published runs"
    names = (part.runs.files.format(part.label), part.runs.qrels)
    return [Need("data", name, (data_root(place.data_dir) / name).is_file(), part.runs.origin) for name in names]


def measure_published(part: RowPart, place: Workplace) -> Finding:
    """The measures of a published run, with equal scores in trec_eval's order, as its manifest does not vouch for it.

    They are stored as those of runs that this project searches.
    """
    run, qrels = (data_root(place.data_dir) / need.name for need in list_needed_files(part, place))
    if not qrels.is_file():
        raise DataError(f"{qrels}: no such judgements")
    card = replace(describe_run(run), system=part.label)
    judgements = JudgementSource(qrels, CorpusRef(part.data))
    [rows] = measure_runs([card], judgements, part.measures, results=place.output / "results")
    values = means(rows)
    return Finding({name: values[str(parse_measure(name))] for name in part.measures}, 0)


class TablePlan(NamedTuple):
    """What this version does with the cells of a table.

    Attributes:
        runs: it measures them, with published weights and data, or without any
        own: it measures them with weights or data that the user names, because they are not published
        later: they are of systems of this project, but it does not measure them
        needs: weights and data of `runs` and `own`, each once
        bytes: of shards and indexes of `runs`, about, and `seconds` of one CPU core
        missing: what the table lacks, or why it has no numbers
    """

    table: str
    title: str
    paper: str
    cells: int
    runs: int
    own: int
    later: int
    needs: tuple[Need, ...]
    bytes: float
    seconds: float
    missing: str

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


_NEEDED = f"{__package__}.prepared"
_RETRIEVED = (f"{_NEEDED}:list_retrieval_needs", f"{_NEEDED}:estimate_retrieval")
RETRIEVAL = Way(f"{__package__}.retrieval:measure_retrieval", *_RETRIEVED)
CLASSIFICATION = Way(
    f"{__package__}.retrieval:measure_classification",
    f"{_NEEDED}:list_classification_needs",
    f"{_NEEDED}:estimate_classification",
)
PUBLISHED_RUN = Way(f"{__name__}:measure_published", f"{__name__}:list_needed_files")
SPARSITY = Way(f"{__package__}.retrieval:measure_sparsity", *_RETRIEVED)
WEIGHTS = Way(
    f"{__package__}.retrieval:measure_weights", f"{_NEEDED}:list_weight_needs", fitting=f"{__name__}:has_dimensions"
)
COMPLETENESS = Way(f"{__package__}.retrieval:measure_completeness", f"{_NEEDED}:list_completeness_needs")

# Task -> how it is measured; plug-ins add tasks. A task that is no key is not measured by this installation.
WAYS: Registry[Way] = Registry(
    "task",
    "lexvl.ways",
    {
        **dict.fromkeys(("text-to-text", "text-to-image", "image-to-text"), RETRIEVAL),
        **dict.fromkeys(("zero-shot", "linear-probe", "words"), CLASSIFICATION),
        "sparsity": SPARSITY,
        "completeness": COMPLETENESS,
        "weight": WEIGHTS,
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
