"""Published numbers as typed cells, read strictly from `runs/expected/<paper>.yaml`, and what each of them measures.

A file has one entry per table, in the shape of the paper, so that a person can compare it with the paper line by line:

    paper: Zhou et al., VDR, ICLR 2024 (arXiv 2212.07699)
    tables:
      table5:
        title: cross-modal retrieval by the number K of dimensions kept
        protocol: COCO 5k and Flickr30k 1k test images
        columns:
          - text-to-image coco/test [R@1, R@5, R@10]     # three columns
        rows:
          "32": 15.8 35.7 46.8                           # a dash is a cell that the paper leaves out, a question mark
                                                         # one that it draws without a number; <512 or >4: only that
                                                         # it is below 512, above 4
        systems:
          "32": {encoder: vdr-crossmodal, checkpoint: vsearch/vdr-cross-modal, options: {topk: 32}}

Rows name systems and columns quantities; with `rows_are: quantities` it is the reverse. `unit` (%) and `status`
(printed) hold for the table; `units` and `statuses` have exceptions by row, column or "row | column". `source`, of a
table or of the file, says where numbers are from that are not read in the paper. `notes` says at
such places what is doubtful, and is printed beside the verdict; `uncompared` says why a number is no measure of the
row's system, and such a cell gets no verdict. `terms` instead of `rows` lists terms and weights, and `data` names the
corpus, or the user's folder of pictures, that has their items. `runs` says where published runs of the rows are. A
table without numbers says in `missing` why. `tolerance`, in the table's unit, is how far a measured value may be off,
for tables that this project measured itself (`regressions.yaml`). `claims`, beside `tables`, are what the paper says of
these numbers; `claims.py` explains their keys and judges them.

A quantity is a task, the data and a measure, each by its name in this project: `text-to-image coco/test R@1`. The tasks
are rows of `TASKS`:

    text-to-text, text-to-image, image-to-text   retrieval: measures of `eval.measures`; with images also R@k
    captions                                     both directions of a caption set: rsum, the sum of its six R@k
    zero-shot, linear-probe                      classification of images: top-k accuracy
    completeness                                 complete sentences before partial ones (FDT, section 4.4)
    words                                        the class word among all terms of an image (STAIR, section 5.1): top-k
    sparsity                                     terms of queries and documents, FLOPS, and evenness of a lexical model
    distribution                                 how its mean weights spread over images and texts (VDR, figure 2)
    latency                                      of a lexical model and its dense twin, by a paper's protocol
    weight                                       the weights of an image's or a text's terms
    answers                                      passages that contain an answer: top-k
    vqa                                          visual question answering: accuracy by kind of question
    speed                                        of systems of this project: a ratio that `lexvl_plugins.bench` names
    model, training, probe, claim                numbers of other kinds; their names are free, as those of speeds
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

from lexvl_eval.analyses.classes.class_sets import CLASS_SETS
from lexvl_eval.measures.metrics import parse_measure
from pydantic import AfterValidator, FiniteFloat, PositiveFloat

from lexvl_anserini.data.corpora.beir import BEIR_ARCHIVES
from lexvl_anserini.data.yaml_files import Many, read_yaml
from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError
from lexvl_anserini.ground.machine import find_shipped
from lexvl_anserini.ground.registry import CORPORA

from .sources import (
    AS_BEIR,
    MEANS,
    MEANS_OF_CLASSES,
    MEANS_OF_CORPORA,
    OF_DOCUMENTS,
    PRIVATE,
    PROTOCOLS,
    SPLITS,
    STATUSES,
    UNITS,
)

T = TypeVar("T")


class Quantity(NamedTuple):
    """A task, the data (empty where the task has none) and a measure."""

    task: str
    data: str
    measure: str

    def __str__(self) -> str:
        return " ".join(filter(None, self))


# R@k of the papers on images with captions, and the two directions that rsum adds.
SUMMED = ("R@1", "R@5", "R@10")
DIRECTIONS = ("text-to-image", "image-to-text")


def list_parts(quantity: Quantity) -> tuple[Quantity, ...]:
    """What a mean or a sum is computed from; the quantity alone where it is neither."""
    if quantity.measure == "rsum":
        return tuple(Quantity(task, quantity.data, measure) for task in DIRECTIONS for measure in SUMMED)
    return tuple(quantity._replace(data=data) for data in MEANS.get(quantity.data, (quantity.data,)))


def combine_parts(quantity: Quantity, values: Sequence[float]) -> float:
    """The value of a quantity from those of its parts."""
    return sum(values) if quantity.measure == "rsum" else sum(values) / len(values)


def find_direction(task: str, data: str) -> str:
    """The direction in which a task reads a collection; any task but retrieval over documents is its own direction."""
    if task not in OF_DOCUMENTS:
        return task
    return "text-to-text" if data.startswith("beir/") else "text-to-image"


def parse_quantity(text: str) -> Quantity:
    """Parses `task data measure`, or `task measure` for a task without data.

    >>> parse_quantity("text-to-text beir/nq/test nDCG@10")
    Quantity(task='text-to-text', data='beir/nq/test', measure='nDCG@10')
    """
    name, _, rest = text.partition(" ")
    if name not in TASKS:
        raise UnknownName("task", name, TASKS)
    (check_data, check_measure), data, measure = TASKS[name], "", rest
    if check_data:
        data, _, measure = rest.partition(" ")
        check_data(data)
    if not measure:
        raise UsageError(f"{text!r} names no measure")
    check_measure(measure)
    return Quantity(name, data, measure)


def check_corpus(name: str) -> None:
    """Raises UsageError for a name that is neither a corpus with a split nor a mean of corpora."""
    family, _, rest = name.partition("/")
    part, _, split = rest.rpartition("/")
    if name in (*MEANS_OF_CORPORA, *PRIVATE):
        return
    if family not in CORPORA:
        raise UnknownName("corpus", family, (*CORPORA, *MEANS_OF_CORPORA, *PRIVATE))
    if family == "beir" and part not in (*BEIR_ARCHIVES, *AS_BEIR):
        raise UnknownName("BEIR dataset", part, (*BEIR_ARCHIVES, *AS_BEIR))
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)


def _check_name(kind: str, known: tuple[str, ...]) -> Callable[[str], None]:
    def check(name: str) -> None:
        if name not in known:
            raise UnknownName(kind, name, known)

    return check


def _check_top(measure: str) -> None:
    if not re.fullmatch(r"top-[1-9][0-9]*", measure):
        raise UsageError(f"measure {measure!r}, expected top-k, such as top-1")


def _check_measure(measure: str, of_captions: bool = False) -> None:
    if not (of_captions and re.fullmatch(r"R@[1-9][0-9]*", measure)):
        parse_measure(measure)


_CLASSES = _check_name("class set", (*CLASS_SETS, *MEANS_OF_CLASSES))

# What checks the data of each task, None for a task without data, and what checks its measures.
TASKS: Mapping[str, tuple[Callable[[str], None] | None, Callable[[str], object]]] = {
    "text-to-text": (check_corpus, _check_measure),
    **dict.fromkeys(DIRECTIONS, (check_corpus, partial(_check_measure, of_captions=True))),
    "captions": (check_corpus, _check_name("measure", ("rsum",))),
    **dict.fromkeys(("zero-shot", "linear-probe", "words"), (_CLASSES, _check_top)),
    "completeness": (
        _check_name("set of annotated images", ("coco/train",)),
        _check_name("measure", ("sentence pairs", "complete sentence first")),
    ),
    "answers": (_check_name("question set", ("nq-open/test",)), _check_top),
    "vqa": (_check_name("question set", ("vqa-v2",)), _check_name("kind", ("yes/no", "number", "other", "all"))),
    **{task: (check_corpus, _check_name("measure", names)) for task, names in OF_DOCUMENTS.items()},
    **dict.fromkeys(("model", "training", "probe", "speed", "claim", "weight"), (None, lambda name: None)),
}


def _refuse_others(kind: str, names: Iterable[str]) -> AfterValidator:
    """Refuses a text that is none of some names."""

    def check(name: str) -> str:
        if name not in names:
            raise ValueError(UnknownName(kind, name, names))
        return name

    return AfterValidator(check)


Unit = Annotated[str, _refuse_others("unit", UNITS)]
Status = Annotated[str, _refuse_others("status", STATUSES)]


class PrintedNumber(NamedTuple):
    """A number, None for what the source draws without one, its decimals, and < or > where it is only a bound."""

    value: float | None
    decimals: int
    bound: str = ""


class DenseTwin(NamedTuple):
    """The dense model whose latency is compared with a system's; fields as those of `PublishedSystem`."""

    encoder: str
    checkpoint: str = ""
    options: Mapping[str, str] = {}
    weights: str = ""


class SpeedSuite(NamedTuple):
    """What `lexvl efficiency --suite search` compares over a collection that it draws; its options by their names."""

    documents: int
    system: Many[str]
    shape: str = "mixture"
    query_count: int = 100
    query_terms: int | None = None
    repeats: int = 3


class PublishedSystem(NamedTuple):
    """What this project runs for a row: an encoder, a published checkpoint (empty for none), and its options."""

    encoder: str = ""
    checkpoint: str = ""
    options: Mapping[str, str] = {}  # of `--set`; `prompt` is of retrieval only, as classification has its own
    rerank: int = 0  # documents of each list that the complete vectors score again; 0 for none
    corpora: Mapping[str, str] = {}  # another corpus in the place of a collection, as stored vectors of it
    checkpoints: Mapping[str, str] = {}  # another checkpoint for a collection, of models that are trained on each
    weights: str = ""  # what `--checkpoint` calls weights that nobody publishes; empty for the row's heading
    item: str = ""  # the image whose weights the source prints: an id of a corpus, or a file name without suffix
    text: str = ""
    protocol: str = ""  # the key, in `lexvl_plugins.papers.sources`, of the rules by which latency is measured
    dense: DenseTwin | None = None
    origin: str = ""  # where weights are published that have no name of a hub or a file in any source
    recipe: str = ""  # how `train` makes such weights: the name of a recipe and options; empty where no recipe does
    trained_on: str = ""  # the corpus on which the recipe trains the weights when the row is measured; or empty
    seeds: int = 1  # how many trainings, of seeds in a row, the value of such a row is the mean of
    suite: SpeedSuite | None = None  # the systems and the collection of a row of ratios, which has no encoder

    def find_checkpoint_name(self, data: str) -> str:
        """The published checkpoint for a collection; empty for none."""
        return self.checkpoints.get(data, self.checkpoint)


class PublishedRuns(NamedTuple):
    """Runs that others publish, and their judgements, in the data folder; {} in `files` is a row's heading."""

    files: str
    qrels: str
    origin: str


class TableEntry(NamedTuple):
    """An entry of `tables` as the file has it."""

    title: str
    protocol: str = ""
    data: str = ""
    unit: Unit = "%"
    status: Status = "printed"
    source: str = ""
    rows_are: Literal["systems", "quantities"] = "systems"
    columns: Many[str] = ()
    rows: Mapping[str, str] = {}
    terms: Mapping[str, str] = {}
    units: Mapping[str, Unit] = {}
    statuses: Mapping[str, Status] = {}
    notes: Mapping[str, str] = {}
    uncompared: Mapping[str, str] = {}
    systems: Mapping[str, PublishedSystem] = {}
    runs: PublishedRuns | None = None
    missing: str = ""
    tolerance: PositiveFloat | None = None


class ClaimEntry(NamedTuple):
    """An entry of `claims` as the file has it; `claims.py` says what the keys mean."""

    says: str
    where: str
    relation: Literal["ahead", "rises", "falls", "at most", "at least"]
    rows: Many[str]
    tables: Mapping[str, Many[str]]
    than: str = ""
    margin: FiniteFloat = 0.0
    bound: FiniteFloat | None = None
    printed: Many[FiniteFloat] = ()


class PaperEntry(NamedTuple):
    """A file: the paper, its tables, what these lack, the source of those that name none, and the paper's claims."""

    paper: str
    tables: Mapping[str, TableEntry]
    source: str = ""
    missing: Many[str] = ()
    claims: Mapping[str, ClaimEntry] = {}


class PublishedCell(NamedTuple):
    """One published number; `value`, `decimals` and `bound` are those of `PrintedNumber`, texts may be empty."""

    table: str
    row: str
    column: str
    label: str  # the system as the paper names it: the heading of its row or of its column
    quantity: Quantity
    value: float | None
    decimals: int
    unit: str
    status: str
    protocol: str
    note: str  # what is doubtful
    system: PublishedSystem | None  # what this project runs for it; None for other people's systems
    uncompared: str = ""  # why the number is no measure of the system: another checkpoint, another measure
    source: str = ""  # where the number is from, if its status is not printed
    bound: str = ""
    tolerance: float | None = None  # how far a measured value may be off, in its unit; None for the rule of its kind

    @property
    def heading(self) -> str:
        """The heading beside the system's: that of the cell's column, or of its row where columns are systems."""
        return self.row if self.label == self.column else self.column


class PublishedTable(NamedTuple):
    """A table: why numbers are `missing` is empty where none are, `runs` None where nobody publishes its rows' runs."""

    name: str
    paper: str
    title: str
    protocol: str
    cells: tuple[PublishedCell, ...]
    missing: str
    runs: PublishedRuns | None = None


def find_expected_folder() -> Path:
    """The folder of the published numbers."""
    return find_shipped("expected")


@cache
def load_published_tables() -> Mapping[str, PublishedTable]:
    """All tables by name, such as vdr-table4, in the order of files and of their entries."""
    return {table.name: table for path in sorted(find_expected_folder().glob("*.yaml")) for table in read_tables(path)}


def read_tables(path: Path) -> Iterator[PublishedTable]:
    """The tables of one file; their names begin with the name of the file."""
    content: PaperEntry = read_yaml(path, PaperEntry)
    for key, own in content.tables.items():
        entry = own._replace(source=own.source or content.source)
        name, where = f"{path.stem}-{key}", f"{path.name} (tables: {key})"
        cells = tuple(_read_cells(name, entry, where))
        if not cells and not entry.missing:
            raise DataError(f"{where}: no numbers; say in `missing` why")
        _check_names(entry, cells, where)
        _check_systems(entry, where)
        yield PublishedTable(name, content.paper, entry.title, entry.protocol, cells, entry.missing, entry.runs)


def _read_cells(name: str, entry: TableEntry, where: str) -> Iterator[PublishedCell]:
    if entry.terms and (entry.rows or entry.columns):
        raise DataError(f"{where}: both rows and terms; make two tables of them")
    across = entry.rows_are == "quantities"
    columns = read_headings(entry.columns, where)
    quantities = {} if across else {heading: read_text(parse_quantity, heading, where) for heading in columns}
    for row, text in entry.rows.items():
        there = f"{where}: {row}"
        numbers = [None if word == "-" else _read_number(word, there) for word in text.split()]
        if len(numbers) != len(columns):
            raise DataError(f"{there}: {len(numbers)} values, expected {len(columns)}, one per column")
        of_row = read_text(parse_quantity, row, where) if across else None
        for column, number in zip(columns, numbers, strict=True):
            if number:
                yield _make_cell(name, entry, (row, column), of_row or quantities[column], number)
    for row, text in entry.terms.items():
        for term, weight in _read_terms(text, f"{where}: {row}").items():
            yield _make_cell(name, entry, (row, term), Quantity("weight", entry.data, term), weight)


def read_text(read: Callable[[str], T], text: str, where: str) -> T:
    """What is read from a text of the file, whose place an error names."""
    try:
        return read(text)
    except UsageError as error:
        raise DataError(f"{where}: {error}") from None


def read_headings(texts: Iterable[str], where: str) -> list[str]:
    """The headings of columns: `COCO [R@1, R@5] of 5k` is `COCO R@1 of 5k` and `COCO R@5 of 5k`."""
    headings: list[str] = []
    for text in texts:
        before, _, rest = text.partition("[")
        inside, _, after = rest.partition("]")
        headings += [f"{before}{word.strip()}{after}" for word in inside.split(",")]
    if twice := next((heading for heading in headings if headings.count(heading) > 1), None):
        raise DataError(f"{where}: two values for one cell, the column {twice!r} is there twice")
    return headings


def _read_terms(text: str, where: str) -> dict[str, PrintedNumber]:
    """Terms and their weights, in the order of the source: `dog 1.5, ##gy 0.7`."""
    weights: dict[str, PrintedNumber] = {}
    for pair in map(str.strip, text.split(",")):
        term, _, number = pair.rpartition(" ")
        if not term or term in weights:
            problem = "two values for one cell" if term else "expected a term and its weight"
            raise DataError(f"{where}: {pair!r}, {problem}")
        weights[term] = _read_number(number, where)
    return weights


def _read_number(word: str, where: str) -> PrintedNumber:
    if word == "?":
        return PrintedNumber(None, 1)
    number = re.fullmatch(r"([<>]?)(-?[0-9]+(?:\.([0-9]+))?(?:e-?[0-9]+)?)", word)
    if not number:
        raise DataError(f"{where}: {word!r} is no number; a dash is a cell that the paper leaves out")
    return PrintedNumber(float(number[2]), len(number[3] or ""), number[1])


def _make_cell(
    name: str, entry: TableEntry, place: tuple[str, str], quantity: Quantity, number: PrintedNumber
) -> PublishedCell:
    row, column = place
    label = column if entry.rows_are == "quantities" else row
    keys = (f"{row} | {column}", row, column)

    def look_up(texts: Mapping[str, str]) -> list[str]:
        return [texts[key] for key in keys if key in texts]

    [status, *_] = (*look_up(entry.statuses), entry.status)
    [unit, *_] = (*look_up(entry.units), entry.unit)
    decimals = 3 if number.value is None and unit == "1" else number.decimals  # of a drawn share or a mean weight
    return PublishedCell(
        *(name, row, column, label, quantity, number.value, decimals, unit, status, entry.protocol),
        note="; ".join(look_up(entry.notes)),
        system=entry.systems.get(label),
        uncompared="; ".join(look_up(entry.uncompared)),
        source="" if status == "printed" else entry.source,
        bound=number.bound,
        tolerance=entry.tolerance,
    )


def _check_names(entry: TableEntry, cells: tuple[PublishedCell, ...], where: str) -> None:
    """Every key is that of a cell, and every number that the paper was not read for names its source."""
    if without := next((cell for cell in cells if cell.status != "printed" and not cell.source), None):
        raise DataError(f"{where}: {without.row} | {without.column} is {without.status}; name its `source`")
    places = {key for cell in cells for key in (cell.row, cell.column, f"{cell.row} | {cell.column}")}
    labels = {cell.label for cell in cells}
    for field in ("units", "statuses", "notes", "uncompared", "systems"):
        known = labels if field == "systems" else places
        if unknown := [key for key in getattr(entry, field) if key not in known]:
            near = get_close_matches(unknown[0], sorted(known), n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{where}: {field} has {unknown[0]!r}, which is no cell's{hint}")


def _check_systems(entry: TableEntry, where: str) -> None:
    """Every system, and its dense twin, is an encoder of this project and one of its published checkpoints.

    Instead of an encoder a row has a suite; weights that it trains have a recipe and a corpus.
    """
    for label, system in entry.systems.items():
        if bool(system.encoder) == bool(system.suite):
            raise DataError(f"{where}: {label}: expected an encoder or a suite")
        if system.suite:
            continue
        if system.trained_on:
            _, *options = shlex.split(system.recipe) or ("",)
            if system.checkpoint or not system.recipe or any(word != "--set" for word in options[::2]):
                expected = "a recipe with options `--set KEY=VALUE`, and no checkpoint"
                raise DataError(f"{where}: {label}: what is trained has {expected}")
            read_text(check_corpus, system.trained_on, f"{where}: {label}: trained_on")
        if system.seeds != 1:
            if system.seeds < 1 or not system.trained_on:
                raise DataError(f"{where}: {label}: seeds: {system.seeds}, expected a number of trainings `trained_on`")
            if "seed=" in system.recipe:
                raise DataError(f"{where}: {label}: seeds: {system.seeds} and a recipe with `seed=`; leave out one")
        if system.protocol and system.protocol not in PROTOCOLS:
            raise DataError(f"{where}: {label}: {UnknownName('protocol', system.protocol, PROTOCOLS)}")
        models = [(system.encoder, (system.checkpoint, *system.checkpoints.values()))]
        models += [(system.dense.encoder, (system.dense.checkpoint,))] if system.dense else []
        for encoder, checkpoints in models:
            if encoder not in CARDS:
                continue  # that of a plug-in which is not installed: an error where its row runs
            known = CARDS[encoder].checkpoints
            if unknown := [checkpoint for checkpoint in checkpoints if checkpoint and checkpoint not in known]:
                raise DataError(f"{where}: {label}: {UnknownName('checkpoint', unknown[0], known)}")
