"""What can be reproduced: per table the cells, weights, data, disk and time, without loading or fetching anything.

`WAYS` has one row per task, so that a new task is one function and one row. Retrieval and classification have modules
of their own; numbers of parameters are counted here, in networks that are built without weights and without memory, and
so are published runs of other systems measured again: every printed digit must come out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.installed import shipped_folder
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.registry import import_home

from ..measures.inputs import JudgementSource, describe_run
from ..measures.measure_runs import measure_runs
from ..measures.metrics import means
from ..measures.names import parse_measure
from .prepared import (
    cost_of_classification,
    cost_of_latency,
    cost_of_retrieval,
    cost_of_speed,
    needs_of_classification,
    needs_of_completeness,
    needs_of_latency,
    needs_of_retrieval,
    needs_of_weights,
)
from .published import PublishedTable
from .quantities import parts_of
from .rows import Finding, Need, PartCost, PublishedRow, RowPart, Workplace, rows_of


def needed_files(part: RowPart, place: Workplace) -> list[Need]:
    """The run of a row and its judgements, in the data folder."""
    assert part.runs is not None, "the table has published runs"
    names = (part.runs.files.format(part.label), part.runs.qrels)
    return [Need("data", name, (data_root(place.data_dir) / name).is_file(), part.runs.origin) for name in names]


def measure_published(part: RowPart, place: Workplace) -> Finding:
    """The measures of a published run, with equal scores in trec_eval's order, as its manifest does not vouch for it.

    They are stored as those of runs that this project searches.
    """
    run, qrels = (data_root(place.data_dir) / need.name for need in needed_files(part, place))
    if not qrels.is_file():
        raise DataError(f"{qrels}: no such judgements")
    card = replace(describe_run(run), system=part.label)
    judgements = JudgementSource(qrels, CorpusRef(part.data))
    [rows] = measure_runs([card], judgements, part.measures, results=place.output / "results")
    values = means(rows)
    return Finding({name: values[str(parse_measure(name))] for name in part.measures}, 0)


# The tokens of BERT's uncased vocabulary, whose tokenizer the recipes name.
BERT_TOKENS = 30_522


def stair_side(number: int) -> float:
    """The side of texts (0, with the embeddings) or of images (1) that `train` makes of the recipe of STAIR's paper."""
    import numpy as np
    import torch

    from lexvl_anserini.encoders.parts.tokens import TokenColumns
    from lexvl_anserini.ground.vocabulary import Vocabulary
    from lexvl_plugins.train.images.sides import SIDES
    from lexvl_plugins.train.model_settings import ModelSettings
    from lexvl_plugins.train.recipe import read_recipe

    model = read_recipe(shipped_folder("recipes") / "stair-paper.yaml").model
    assert isinstance(model, ModelSettings)
    terms = Vocabulary(map(str, range(BERT_TOKENS)), "the numbers of tokens")
    with torch.device("meta"):
        sides = SIDES[model.kind](model, TokenColumns(terms, np.arange(BERT_TOKENS)), None)
    return millions(sides[number])


def d2s_head() -> float:
    """D2S's head over BLIP's vectors of 256 dimensions, with DistilBERT's width and vocabulary."""
    import torch

    from lexvl_anserini.encoders.families.d2s import D2SHead

    with torch.device("meta"):
        return millions(D2SHead(256, 768, BERT_TOKENS))


# OpenAI's merges with the three special symbols of FDT's code.
BPE_TOKENS = 49_409


def fdt_share() -> float:
    """What FDT adds to CLIP's parameters, as a share: the mean over the image encoders of the paper's Table 6.

    The networks have the projections that CLIP uses and FDT does not.
    """
    import torch

    from lexvl_plugins.train.images.fdt_networks import clip_texts
    from lexvl_plugins.train.images.networks import Networks, TextNetwork, fresh_patches, no_columns
    from lexvl_plugins.train.images.sides import SIDES
    from lexvl_plugins.train.model_settings import BpeTextSettings, ModelSettings, PretrainedImage
    from lexvl_plugins.train.recipe import read_recipe

    shares = []
    for name, changes in (("fdt", {}), ("fdt", {"model.image.patch_size": 16}), ("fdt-swin", {})):
        model = read_recipe(shipped_folder("recipes") / f"{name}-paper.yaml", changes).model
        assert isinstance(model, ModelSettings) and isinstance(model.text, BpeTextSettings)
        assert not isinstance(model.image, PretrainedImage)
        with torch.device("meta"):
            texts = clip_texts(model.text, BPE_TOKENS, model.codebook.width)
            images = fresh_patches(model.image, model.codebook.width)
            networks = Networks(TextNetwork(None, "", texts, None, no_columns(BPE_TOKENS), {}), images)
            sides = SIDES[model.kind](model, networks.text.columns, networks)
        clip = millions(texts, images.network)
        shares.append(millions(*sides) / clip - 1)
    return sum(shares) / len(shares)


def millions(*modules: Any) -> float:
    """The parameters of networks, in millions."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters()) / 1e6


# Encoder -> what papers count -> the function that counts it.
COUNTS: Mapping[str, Mapping[str, Callable[[], float]]] = {
    "stair": {"text parameters": partial(stair_side, 0), "image parameters": partial(stair_side, 1)},
    "d2s": {"parameters": d2s_head},
    "fdt": {"additional parameters": fdt_share},
}


def can_be_counted(part: RowPart) -> bool:
    """True for the numbers of parameters of a network that this project builds."""
    return part.system is not None and {*part.measures} <= COUNTS.get(part.system.encoder, {}).keys()


def count_parameters(part: RowPart, place: Workplace) -> Finding:
    """What is counted in a part's network: millions of parameters, or a share. All printed digits must agree."""
    assert part.system is not None, "`can_be_counted` is true of it"
    counts = COUNTS[part.system.encoder]
    return Finding({name: counts[name]() for name in part.measures}, 0)


class TablePlan(NamedTuple):
    """What this version does with a table.

    cells     published numbers, and what the source draws without numbers
    runs      of these: it measures, with published weights and data, or without any
    own       of these: it measures with weights or data that the user names, because they are not published
    later     of these: of systems of this project, but it does not measure them
    needs     weights and data of `runs` and `own`, each once
    bytes     of shards and indexes of `runs`, about
    seconds   of one CPU core for `runs`, about
    missing   what the table lacks, or why it has no numbers
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

    @property
    def lacking(self) -> tuple[Need, ...]:
        """What is published and not on this machine."""
        return tuple(need for need in self.needs if need.public and not need.here)


def plan_of(table: PublishedTable, place: Workplace, pattern: str = "*") -> TablePlan:
    """The plan of the rows of a table that match the pattern."""
    counts: Counter[str] = Counter()
    needs: dict[str, Need] = {}
    runnable: list[RowPart] = []
    for row in rows_of(table, pattern):
        parts = list(needs_of(row, place))
        needs |= {need.name: need for _, of_part in parts for need in of_part}
        runnable += [part for part, of_part in parts if all(need.public for need in of_part)]
        counts.update(kinds_of(row, parts))
    size, seconds = cost_of(runnable, place)
    return TablePlan(
        table=table.name,
        title=table.title,
        paper=table.paper,
        cells=counts.total(),
        runs=counts["runs"],
        own=counts["own"],
        later=counts["later"],
        needs=tuple(needs.values()),
        bytes=size,
        seconds=seconds,
        missing=table.missing,
    )


def needs_of(row: PublishedRow, place: Workplace) -> Iterator[tuple[RowPart, list[Need]]]:
    """The parts of a row that this version measures, and what each needs."""
    for part in row.parts():
        if way := way_of(part):
            yield part, way.needs(part, place)


def kinds_of(row: PublishedRow, needs: Sequence[tuple[RowPart, list[Need]]]) -> Iterator[str]:
    """What happens to each cell of a row: runs, own, later or others, as in `TablePlan`."""
    public = {(part.task, part.data): all(need.public for need in of_part) for part, of_part in needs}
    measured = {(part.task, part.data, measure) for part, _ in needs for measure in part.measures}
    for cell in row.cells:
        parts = parts_of(cell.quantity)
        if not row.is_ours:
            yield "others"
        elif not measured.issuperset(parts):
            yield "later"
        else:
            yield "runs" if all(public[part.task, part.data] for part in parts) else "own"


def cost_of(parts: Iterable[RowPart], place: Workplace) -> tuple[float, float]:
    """Bytes and CPU seconds of some parts; documents that several share are counted once."""
    encoded: dict[str, tuple[float, float]] = {}
    topics = 0.0
    for part in parts:
        way = way_of(part)
        if way and (cost := way.cost(part, place)):
            encoded[cost.documents] = (cost.bytes, cost.encoding_s)
            topics += cost.topics_s
    return sum(size for size, _ in encoded.values()), sum(time for _, time in encoded.values()) + topics


class Way(NamedTuple):
    """How a part of a row is measured.

    target  `module:function` that measures it, so that a plan imports nothing of what measures
    needs   what it reads, without reading it
    cost    what it costs; None where that is nothing, or not known
    """

    target: str
    needs: Callable[[RowPart, Workplace], list[Need]]
    cost: Callable[[RowPart, Workplace], PartCost | None]

    def measure(self, part: RowPart, place: Workplace) -> Finding:
        """Measures a part.

        Raises:
            CheckpointError, DataError: weights or data are missing.
        """
        finding: Finding = import_home(self.target)(part, place)
        return finding


def nothing_needed(part: RowPart, place: Workplace) -> list[Need]:
    """For what is computed from a configuration."""
    return []


def no_cost(part: RowPart, place: Workplace) -> None:
    """For what takes seconds and writes nothing."""


RETRIEVAL = Way(f"{__package__}.retrieval:measure_retrieval", needs_of_retrieval, cost_of_retrieval)
TRAINED = Way(f"{__package__}.trained:measure_trained", needs_of_retrieval, cost_of_retrieval)
CLASSIFICATION = Way(
    f"{__package__}.classification:measure_classification", needs_of_classification, cost_of_classification
)
PUBLISHED_RUN = Way(f"{__name__}:measure_published", needed_files, no_cost)
SPARSITY = Way(f"{__package__}.vectors:measure_sparsity", needs_of_retrieval, cost_of_retrieval)
SPEED = Way(f"{__package__}.vectors:measure_speed", nothing_needed, cost_of_speed)
LATENCY = Way(f"{__package__}.vectors:measure_latency", needs_of_latency, cost_of_latency)
WEIGHTS = Way(f"{__package__}.vectors:measure_weights", needs_of_weights, no_cost)
COMPLETENESS = Way(f"{__package__}.vectors:measure_completeness", needs_of_completeness, no_cost)
COUNT = Way(f"{__name__}:count_parameters", nothing_needed, no_cost)

# Task -> how it is measured. Tasks that are no key are not measured by this version.
WAYS: Mapping[str, Way] = {
    "text-to-text": RETRIEVAL,
    "text-to-image": RETRIEVAL,
    "image-to-text": RETRIEVAL,
    "zero-shot": CLASSIFICATION,
    "linear-probe": CLASSIFICATION,
    "words": CLASSIFICATION,
    "model": COUNT,
    "sparsity": SPARSITY,
    "latency": LATENCY,
    "speed": SPEED,
    "completeness": COMPLETENESS,
    "weight": WEIGHTS,
}


def way_of(part: RowPart) -> Way | None:
    """How a part is measured; None if this version does not measure it, or its system is not ours."""
    if part.runs is not None:
        return PUBLISHED_RUN
    if part.system is None or (part.task == "model" and not can_be_counted(part)):
        return None
    if part.task == "weight" and not (part.system.item or part.system.text):
        return None
    if part.task == "speed" and not part.system.suite:
        return None
    if part.task == "latency" and not (part.system.protocol and part.system.dense):
        return None
    return TRAINED if part.system.trained_on else WAYS.get(part.task)
