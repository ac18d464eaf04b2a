"""Rows of published tables, cut into what one run, or one count, measures; and each such part before it is measured.

A part has weights, a corpus, names of its files, and what it needs and costs. The weights of a row's system are the
published checkpoint, or what the user has in its place. Needs are weights and a corpus or images, on this machine or
elsewhere; costs are disk and time.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_eval.analyses.classes.class_sets import CLASS_SETS
from lexvl_eval.measures.inputs import make_slug

from lexvl_anserini.data.corpora.beir import BEIR_ARCHIVES, find_beir
from lexvl_anserini.data.dataset import data_root, load_reference
from lexvl_anserini.encoders.cards import CARDS, PACKAGED
from lexvl_anserini.encoders.checkpoints.find import (
    WEIGHT_SUFFIXES,
    compute_content_sha256,
    find_cached,
    list_model_files,
    list_names,
)
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.machine import expand_path, find_package, split_path
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.records import CorpusRef

from .published import PublishedCell, PublishedRuns, PublishedSystem, PublishedTable, find_direction, list_parts
from .sources import (
    ARCHIVE,
    COLLECTIONS,
    DIGESTS,
    DOCUMENT_COSTS,
    FILES,
    HUB,
    IMAGE_SETS,
    PACKAGED_SPEED,
    PRIVATE,
    PROTOCOLS,
    SPLITS,
    TEXTS_PER_S,
    TRAINING_S,
    UNCONFIRMED,
)

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
    seed: int | None = None  # of the training, where the row is the mean of several

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
    """The rows of a table whose headings match, in their order; `*` and `?` match other characters.

    Where columns are systems, the heading of a quantity matches too: all systems then have its cells alone.
    """
    by_label: dict[str, list[PublishedCell]] = {}
    for cell in table.cells:
        if fnmatchcase(cell.label, pattern) or fnmatchcase(cell.row, pattern):
            by_label.setdefault(cell.label, []).append(cell)
    return [PublishedRow(table, label, tuple(cells)) for label, cells in by_label.items()]


class Finding(NamedTuple):
    """What a part measured, by measure, with the digest of the checkpoint, empty where none is loaded."""

    values: Mapping[str, float]
    tolerance: float  # a value within it of the published one agrees; 0 compares the printed digits
    remark: str = ""  # why the values cannot be compared with published ones; empty if they can
    note: str = ""  # what the comparison assumes, printed beside the verdict
    model: str = ""
    seeds: tuple[Mapping[str, float], ...] = ()  # the values by seed, where `values` are means over several trainings


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
    """Where the line of each row runs, and what the user has."""

    output: Path
    data_dir: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)  # a published one, or a row without -> weights
    corpora: Mapping[str, str] = field(default_factory=dict)  # a collection -> the corpus that is read instead
    limit: int | None = None
    as_published: bool = False  # the user vouches that the folders and files of `checkpoints` are what their names say
    device: str = "auto"
    batch_size: int = 32
    overwrite: bool = False
    bars: Bars = lambda what, total, unit: nullcontext(silent)
    digests: dict[Any, str] = field(default_factory=dict, compare=False)  # of what parts read, once for each command


# Options of queries alone: one index serves all their values.
QUERY_OPTIONS = ("query_topk", "query_max_length")


class Names(NamedTuple):
    """The names of a part's files: of its encoded documents, which other rows may share, and of its run."""

    documents: str
    run: str


class Prepared(NamedTuple):
    """What runs for a part of a row."""

    system: PublishedSystem
    weights: Weights
    corpus: CorpusRef
    names: Names


def prepare(part: RowPart, place: Workplace) -> Prepared | None:
    """The choices for a part; None where it has no weights."""
    if part.system is None or (weights := find_weights(part, part.system, place)) is None:
        return None
    return Prepared(part.system, weights, find_corpus(part, place), make_names(part, part.system, weights, place))


def find_corpus(part: RowPart, place: Workplace) -> CorpusRef:
    """The corpus of a part. Its ids are escaped, because those of LIMIT have white space."""
    name, _, split = part.data.rpartition("/") if "/" in part.data else (part.data, "", "test")
    own = part.system.corpora.get(part.data) if part.system else None
    direction = find_direction(part.task, part.data)
    given = place.corpora.get(part.data, "")
    if ":" not in given and given.rpartition("/")[2] in SPLITS:
        given, _, split = given.rpartition("/")
    return CorpusRef(given or own or name, split, place.data_dir, True, direction)


def find_limit(part: RowPart, place: Workplace) -> int | None:
    """How many documents are encoded: the user's limit, or that of the protocol of a latency; None for all."""
    protocol = part.system.protocol if part.system and part.task == "latency" else ""
    limits = [place.limit, PROTOCOLS[protocol].items if protocol else None]
    return min((limit for limit in limits if limit), default=None)


def select_document_options(encoder: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that change the documents.

    With `mode: alpha` the documents are those of `full`, the default; but not for `svdr`, whose default is `beta`.
    """
    of_queries = {name: options[name] for name in QUERY_OPTIONS if name in options}
    if options.get("mode") == "alpha" and encoder != "svdr":
        of_queries["mode"] = "alpha"
    return {name: value for name, value in options.items() if name not in of_queries}


def make_names(part: RowPart, system: PublishedSystem, weights: Weights, place: Workplace) -> Names:
    """Names of everything that a user may vary: `beir-nq-test.vdr.vdr-msmarco` and, of the run, `.query_topk-32`."""
    shared = select_document_options(system.encoder, weights.options)
    own = {name: value for name, value in weights.options.items() if name not in shared}
    direction, limit = find_direction(part.task, part.data), find_limit(part, place)
    fields = [part.data, "" if direction == "text-to-text" else direction, f"first={limit}" if limit else ""]
    fields += [system.encoder, weights.name, *map("=".join, shared.items())]
    of_run = [*map("=".join, own.items()), f"rerank={system.rerank}" if system.rerank else ""]
    of_run.append(part.task if direction != part.task else "")
    documents, run = (".".join(make_slug(field) for field in own if field) for own in (fields, [*fields, *of_run]))
    return Names(documents, run)


# Options that name another checkpoint.
OTHERS = "_checkpoint"


class Weights(NamedTuple):
    """The weights of a system: what `load_encoder` takes, None for none, and their name in names of files.

    `places` are the user's weights by the published checkpoint in whose place they are (empty: none is).
    """

    reference: str | None
    name: str
    options: dict[str, Any]
    places: Mapping[str, str]


def is_without_weights(system: PublishedSystem) -> bool:
    """True for an encoder without weights (BM25), for one that is not installed, and for a suite."""
    card = CARDS.get(system.encoder)
    return card is None or card.licence == "none"


def list_checkpoints(row: PublishedRow) -> Iterator[str]:
    """The names by which `--checkpoint` gives weights for a row: published checkpoints, or the row without one."""
    if row.system is None or is_without_weights(row.system):
        return
    for part in row.parts():
        for model in (part, find_twin(part)):
            if model and model.system:
                yield model.system.find_checkpoint_name(model.data) or model.system.weights or model.label
                yield from (value for name, value in model.system.options.items() if name.endswith(OTHERS))


def find_twin(part: RowPart) -> RowPart | None:
    """The part of the dense model whose latency is compared; None where none is."""
    if part.task != "latency" or part.system is None or part.system.dense is None:
        return None
    system = PublishedSystem(**part.system.dense._asdict(), protocol=part.system.protocol)
    return part._replace(system=system)


def find_weights(part: RowPart, system: PublishedSystem, place: Workplace) -> Weights | None:
    """The weights to load for a part of a row; None where none are published and the user gives none."""
    checkpoints = place.checkpoints
    others = {name: checkpoints.get(value, value) for name, value in system.options.items() if name.endswith(OTHERS)}
    options: dict[str, Any] = {**system.options, **others}
    if is_without_weights(system):
        return Weights(None, "", options, {})
    name = system.find_checkpoint_name(part.data)
    published = name or (str(place_trained_model(part, place)) if system.trained_on else "")
    reference = checkpoints.get(name or system.weights or part.label, published)
    if not reference:
        return None
    trained = system.trained_on and reference == published
    named = {published: reference, **{system.options[name]: value for name, value in others.items()}}
    short = Path(reference).parent.name if trained else Path(reference).name
    return Weights(reference, short, options, {name: place for name, place in named.items() if place != name})


def place_trained_model(part: RowPart, place: Workplace) -> Path:
    """The checkpoint of the weights that a row trains; rows of one recipe and corpus share it."""
    assert part.system is not None, "it trains"
    recipe, *_ = shlex.split(part.system.recipe)
    digest = sha256(" ".join((part.system.recipe, part.system.trained_on)).encode()).hexdigest()[:8]
    names = (Path(recipe).stem, digest, "" if part.seed is None else f"seed={part.seed}")
    return place.output / "training" / ".".join(make_slug(name) for name in names if name) / "model"


# The first seed of a row of several trainings: that of recipes which name none.
FIRST_SEED = 12345


def list_trainings(part: RowPart, place: Workplace) -> list[RowPart]:
    """A part once for each seed that its row trains; the part alone where it trains once, or has other weights."""
    system = part.system
    if system is None or system.seeds == 1 or (system.weights or part.label) in place.checkpoints:
        return [part]
    return [part._replace(seed=FIRST_SEED + number) for number in range(system.seeds)]


def write_remarks(weights: Weights, as_published: bool) -> tuple[str, str]:
    """Why the values of some weights cannot be compared with published ones, and what a comparison assumes.

    The user's weights count as a published checkpoint by their digest, where `DIGESTS` knows it, or by the user's word.
    """
    unproven = [name for name, place in weights.places.items() if not (name and is_published(place, name))]
    if not unproven:
        return "", ""
    if as_published and all(name and expand_path(weights.places[name]).exists() for name in unproven):
        return "", "--as-published"
    return "other weights", ""


def is_published(place: str, name: str) -> bool:
    """True for a folder or file whose weights have the known digest of a published checkpoint."""
    path = expand_path(place)
    if name not in DIGESTS or not path.exists():
        return False
    files = [path] if path.is_file() else [path / name for name in list_model_files(list_names(path), True)]
    return DIGESTS[name] in {compute_content_sha256(file) for file in files if file.suffix in WEIGHT_SUFFIXES}


def list_needed_weights(part: RowPart, place: Workplace) -> list[Need]:
    """The checkpoints that a part reads, or the corpus that it trains its own on."""
    if part.system is None or is_without_weights(part.system):
        return []
    weights = find_weights(part, part.system, place)
    if weights is None:
        others = (value for name, value in part.system.options.items() if name.endswith(OTHERS))
        how = f"lexvl train --recipe {part.system.recipe.replace('.yaml', '')}; " if part.system.recipe else ""
        how = f"{part.system.origin or 'not published'}; {how}"
        return [
            Need("weights", name, False, f"{how}--checkpoint '{name}'=FOLDER names yours", public=False)
            for name in (part.system.weights or part.label, *others)
        ]
    if part.system.trained_on and weights.reference == str(place_trained_model(part, place)):
        return [describe_needed_corpus(part._replace(data=part.system.trained_on), place)]
    names = [weights.reference, *(value for name, value in weights.options.items() if name.endswith(OTHERS))]
    return [describe_checkpoint(name) for name in names if name]


def describe_checkpoint(reference: str) -> Need:
    """Whether a checkpoint is on this machine, without asking the hub."""
    if reference in PACKAGED:
        packaged = PACKAGED[reference]
        here = find_package(packaged.module) is not None
        source = f"pip: the extra [{packaged.extra}]" if packaged.extra else "the package"
        return Need("weights", reference, here, source)
    if expand_path(reference).exists():
        return Need("weights", reference, True, "")
    if is_file_name(reference):
        origin = FILES.get(reference, "no such file or folder")
        return Need("weights", reference, False, f"{origin}; --checkpoint '{reference}'=FILE names it")
    name, _, revision = reference.partition("@")
    folder = find_cached(name, revision or None)
    here = folder is not None and bool(list_model_files(list_names(folder), True))
    origin = f"{HUB}; no source confirms the id, {UNCONFIRMED[name]}" if name in UNCONFIRMED else HUB
    return Need("weights", reference, here, origin, fetchable=True)


def is_file_name(reference: str) -> bool:
    """True for the name of a weight file or of a row, which is no hub id."""
    return reference.endswith(WEIGHT_SUFFIXES) or reference.startswith(("/", ".", "~")) or " " in reference


# Encoders that read stored vectors of images and captions.
OF_VECTORS = ("d2s", "joint")
STORED = "embeddings:"


def list_retrieval_needs(part: RowPart, place: Workplace) -> list[Need]:
    """The weights and the corpus of a part."""
    return [*list_needed_weights(part, place), describe_needed_corpus(part, place)]


def list_weight_needs(part: RowPart, place: Workplace) -> list[Need]:
    """The model and, unless the item is a text, the picture or the vectors whose term weights are measured."""
    assert part.system is not None, "its weights are measured"
    needs, ref = list_needed_weights(part, place), find_corpus(part, place)
    if part.system.text:
        return needs
    if ref.name.startswith(STORED):
        return [*needs, describe_needed_corpus(part, place)]
    if part.data in place.corpora:
        here, how = find_picture(part.system, ref.name) is not None, f"--corpus {part.data} names the folder"
        return [*needs, Need("data", f"{ref.name}/{part.system.item}.*", here, how)]
    how = f"--corpus {part.data}=FOLDER has yours, named {part.system.item}.jpg and so on"
    return [*needs, Need("data", part.data, False, f"pictures of the paper, not published; {how}", public=False)]


# COCO's annotations of objects and the images that they are of, in the data folder.
OBJECTS = ("coco/annotations/instances_train2017.json", "coco/train2017")


def find_pairs(part: RowPart, place: Workplace) -> str:
    """What the completeness probe reads: the user's corpus, or COCO's annotations of objects and its images."""
    return place.corpora.get(part.data) or ",".join(str(data_root(place.data_dir) / name) for name in OBJECTS)


def list_completeness_needs(part: RowPart, place: Workplace) -> list[Need]:
    """The weights, COCO's annotations of objects and its images."""
    source = place.corpora.get(part.data)
    if source:
        # A dataset of captions is found, or not, when it is read.
        return [*list_needed_weights(part, place), Need("data", source, True, f"--corpus {part.data}")]
    here = all(expand_path(name).exists() for name in find_pairs(part, place).split(","))
    origin = "cocodataset.org: annotations_trainval2017.zip and train2017.zip"
    return [*list_needed_weights(part, place), Need("data", ", ".join(OBJECTS), here, origin)]


def find_picture(system: PublishedSystem, folder: str) -> Path | None:
    """The picture of an item in the user's folder: the file with its name and any suffix; None if it is not there."""
    return next((path for path in sorted(expand_path(folder).glob("*")) if path.stem == system.item), None)


def describe_needed_corpus(part: RowPart, place: Workplace) -> Need:
    """The corpus of a part, and whether it is here; nothing is fetched."""
    ref = find_corpus(part, place)
    if part.data in PRIVATE and part.data not in place.corpora:
        return Need("data", part.data, False, f"not published; --corpus {part.data}=CORPUS names yours", public=False)
    system = part.system
    if system and system.encoder in OF_VECTORS and not (system.trained_on or ref.name.startswith(STORED)):
        how = f"--corpus {part.data}={STORED}FOLDER[,COLUMN] names them"
        origin = f"of the dense model that the head was trained on; {how}"
        return Need("data", f"vectors of {part.data}", False, origin, public=False)
    if ref.name.startswith(STORED):
        where, _ = split_path(ref.name.removeprefix(STORED))
        here = expand_path(where).is_dir()
        return Need("data", ref.name, here, HUB, fetchable=not where.startswith(("/", ".", "~")))
    if ref.name.startswith("beir/"):
        name = ref.name.removeprefix("beir/")
        folder = find_beir(name, ref.data_dir)
        here = folder is not None and (folder / "qrels" / f"{ref.split}.tsv").is_file()
        return Need("data", part.data, here, COLLECTIONS[part.data].origin, folder is None and name in BEIR_ARCHIVES)
    if part.data in place.corpora:
        problem = find_problem(ref)
        how = f"--corpus names it for {part.data}, and it cannot be read: {problem}"
        return Need("data", ref.name, not problem, how)
    return Need("data", part.data, not find_problem(ref), COLLECTIONS[part.data].origin)


def find_problem(ref: CorpusRef) -> str:
    """Why the first document or the first topic of a corpus is not here; empty if both are. Either may be an image."""
    try:
        dataset = load_reference(ref)
        without = [what for what in ("documents", "topics") if next(getattr(dataset, what)(), None) is None]
        return f"the split {ref.split} has no {' and no '.join(without)}" if without else ""
    except LexvlError as error:
        return str(error)


def estimate_retrieval(part: RowPart, place: Workplace) -> PartCost | None:
    """Disk and time of a part; None where it has no weights, or its collection is not public."""
    work = prepare(part, place)
    if work is None or part.data not in COLLECTIONS:
        return None
    options, collection = work.weights.options, COLLECTIONS[part.data]
    cost = DOCUMENT_COSTS["vdr" if options.get("mode") == "full" else work.system.encoder]
    sizes = (collection.documents, collection.topics)
    documents, topics = reversed(sizes) if part.task == "image-to-text" else sizes
    documents = min(documents, find_limit(part, place) or documents)
    size = documents * int(options.get("topk", cost.numbers)) * cost.bytes
    topics_s = topics / (cost.topics_per_s or cost.documents_per_s) + topics * work.system.rerank / TEXTS_PER_S
    speed = PACKAGED_SPEED if work.system.trained_on or work.weights.reference in {*PACKAGED, "minilm"} else 1.0
    training_s = TRAINING_S * work.system.seeds if work.system.trained_on else 0
    encoding_s = documents / cost.documents_per_s / speed + training_s
    return PartCost(work.names.documents, size, encoding_s, topics_s / speed)


def list_classification_needs(part: RowPart, place: Workplace) -> list[Need]:
    """The weights and the images of a part; a linear probe needs a split for training, which not every set has."""
    name = place.corpora.get(part.data, part.data)
    where = Path(name.partition(":")[2] or name) if part.data in place.corpora else data_root(place.data_dir) / name
    where = expand_path(where)
    needs = [*list_needed_weights(part, place), Need("data", name, where.exists(), ARCHIVE)]
    if part.task == "linear-probe" and "train" not in CLASS_SETS[part.data].files:
        how = "its authors fix no split; class folders in `train` and `test` of its folder are yours"
        needs.append(Need("data", f"{name}, train", (where / "train").is_dir(), how, public=False))
    return needs


def estimate_classification(part: RowPart, place: Workplace) -> PartCost | None:
    """The time of a part; None where it has no weights. It writes no vectors."""
    work = prepare(part, place)
    if work is None:
        return None
    own = IMAGE_SETS[part.data]
    images = [min(number, place.limit or number) for number in own[: 2 if part.task == "linear-probe" else 1]]
    return PartCost(work.names.run, 0, sum(images) / DOCUMENT_COSTS[work.system.encoder].documents_per_s, 0)
