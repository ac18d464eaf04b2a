"""What a published number measures: a task, the data and a measure, each by its name in this project.

`text-to-image coco/test R@1` is a task, a corpus with its split, and a measure. The tasks are rows of `TASKS`:

    text-to-text, text-to-image, image-to-text   retrieval: measures of `eval.measures`; with images also R@k
    captions                                     both directions of a caption set: rsum, the sum of its six R@k
    zero-shot, linear-probe                      classification of images: top-k accuracy
    completeness                                 complete sentences before partial ones (FDT, section 4.4)
    words                                        the class word among all terms of an image (STAIR, section 5.1): top-k
    sparsity                                     terms of queries and documents, and FLOPS, of a lexical model
    latency                                      of a lexical model and its dense twin, by a paper's protocol
    weight                                       the weights of an image's or a text's terms
    answers                                      passages that contain an answer: top-k
    vqa                                          visual question answering: accuracy by kind of question
    speed                                        of systems of this project: a ratio that `lexvl_plugins.bench` names
    model, training, probe, claim                numbers of other kinds; their names are free, as those of speeds
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from lexvl_anserini.data.corpora.beir import BEIR_ARCHIVES
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.registry import CORPORA

from ..analyses.classes.class_sets import CLASS_SETS
from ..measures.averages import AVERAGES
from ..measures.metrics import parse_measure

# Corpora in BEIR's layout that are not part of BEIR.
AS_BEIR = ("limit", "limit-small")

# Corpora that nobody publishes: of papers, and the judged pool of TREC DL 2019.
PRIVATE = ("coco-1m", "msmarco-dl19-pool")

SPLITS = ("dev", "test", "train", "val")

FDT_10 = ("cifar10", "cifar100", "food101", "pets", "flowers102", "sun397", "cars", "dtd", "caltech101", "aircraft")

# Means that papers print, and what they are means of.
MEANS_OF_CORPORA: Mapping[str, tuple[str, ...]] = {
    **{name: AVERAGES[name] for name in ("beir-12", "beir-13")},
    "vidore-2": tuple(name.removesuffix(" text-to-image") for name in AVERAGES["vidore-2"]),
}
MEANS_OF_CLASSES: Mapping[str, tuple[str, ...]] = {
    "zero-shot-9": (*(name for name in FDT_10 if name not in ("cars", "aircraft")), "imagenet"),
    "linear-probe-10": FDT_10,
}
MEANS: Mapping[str, tuple[str, ...]] = {**MEANS_OF_CORPORA, **MEANS_OF_CLASSES}


# Measures of tasks over the documents of a collection.
OF_DOCUMENTS: Mapping[str, tuple[str, ...]] = {
    "sparsity": ("query terms", "document terms", "FLOPS"),
    "latency": ("queries per second", "ms per query", "dense ms per query", "times faster", "times smaller"),
}


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


class PublishedTask(NamedTuple):
    """What the data and the measures of a task may be; `data` is None for a task without data."""

    data: Callable[[str], None] | None
    measure: Callable[[str], object]


def parse_quantity(text: str) -> Quantity:
    """Parses `task data measure`, or `task measure` for a task without data.

    >>> parse_quantity("text-to-text beir/nq/test nDCG@10")
    Quantity(task='text-to-text', data='beir/nq/test', measure='nDCG@10')
    """
    name, _, rest = text.partition(" ")
    if name not in TASKS:
        raise UnknownName("task", name, TASKS)
    task, data, measure = TASKS[name], "", rest
    if task.data:
        data, _, measure = rest.partition(" ")
        task.data(data)
    if not measure:
        raise UsageError(f"{text!r} names no measure")
    task.measure(measure)
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

TASKS: Mapping[str, PublishedTask] = {
    "text-to-text": PublishedTask(check_corpus, _check_measure),
    "text-to-image": PublishedTask(check_corpus, partial(_check_measure, of_captions=True)),
    "image-to-text": PublishedTask(check_corpus, partial(_check_measure, of_captions=True)),
    "captions": PublishedTask(check_corpus, _check_name("measure", ("rsum",))),
    "zero-shot": PublishedTask(_CLASSES, _check_top),
    "linear-probe": PublishedTask(_CLASSES, _check_top),
    "words": PublishedTask(_CLASSES, _check_top),
    "completeness": PublishedTask(
        _check_name("set of annotated images", ("coco/train",)),
        _check_name("measure", ("sentence pairs", "complete sentence first")),
    ),
    "answers": PublishedTask(_check_name("question set", ("nq-open/test",)), _check_top),
    "vqa": PublishedTask(
        _check_name("question set", ("vqa-v2",)), _check_name("kind", ("yes/no", "number", "other", "all"))
    ),
    **{task: PublishedTask(check_corpus, _check_name("measure", names)) for task, names in OF_DOCUMENTS.items()},
    **{
        task: PublishedTask(None, lambda name: None)
        for task in ("model", "training", "probe", "speed", "claim", "weight")
    },
}
