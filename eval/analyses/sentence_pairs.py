"""Pairs of sentences about an image, one of which names only a part of what the other names (FDT, section 4.4).

FDT makes them of the annotated objects of COCO's training images: one sentence describes all objects, the other some of
them; the wording is in its supplement, which is not public. Here the complete sentence names every category of an
image's objects once, "a photo of a dog, a frisbee and a person", and each partial one leaves one of them out.

Captions give pairs without annotations: the partial sentence is a caption up to its first "and" or "with".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.data.lists import LISTS, read_rows
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import read_json

from .caption_words import words_of

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset

COLUMNS = ("image", "complete", "partial")

_JOINT = re.compile(r"[\s,]+(?:and|with)\s", re.IGNORECASE)


class SentencePair(NamedTuple):
    """An image, a sentence about it, and one about a part of the same."""

    image: str
    complete: str
    partial: str


def sentence_pairs(source: str, data_dir: str | None = None) -> list[SentencePair]:
    """Pairs of a list, of COCO's annotations or of captions.

    Args:
        source: a file with a suffix of `LISTS` (image, complete, partial), COCO's `instances_*.json,IMAGES`, or a
            dataset of captioned images, as `flickr8k/val`.
        data_dir: folder of the datasets; default $LEXVL_DATA, else ~/.cache/lexvl.

    Raises:
        DataError: it cannot be read, or has no pair.
        UsageError: the dataset has no images, or annotations have no folder of images.
    """
    from lexvl_anserini.data.dataset import load_dataset

    annotations, comma, images = source.partition(",")
    path = Path(source).expanduser()
    if path.suffix.lower() in LISTS:
        found = list(listed_pairs(path))
    elif annotations.endswith(".json") and not source.startswith("karpathy:"):
        if not comma:
            raise UsageError(f"{source} names no images; expected {source},IMAGES with the folder of its images")
        found = list(object_pairs(Path(annotations).expanduser(), Path(images).expanduser()))
    else:
        found = list(caption_pairs(load_dataset(source, data_dir=data_dir, direction="text-to-image")))
    if not found:
        raise DataError(f"{source}: no pair of sentences in it")
    return found


def listed_pairs(path: Path) -> Iterator[SentencePair]:
    """Streams the pairs of a list; images are relative to it.

    Raises:
        DataError: it cannot be read, or the two sentences of a line are equal.
    """
    for where, (image, complete, partial) in read_rows(path, COLUMNS):
        if complete == partial:
            raise DataError(f"{where}: the two sentences are equal: {complete[:80]!r}")
        yield SentencePair(str(path.parent / Path(image).expanduser()), complete, partial)


def object_pairs(annotations: Path, images: Path) -> Iterator[SentencePair]:
    """Streams the pairs of COCO's annotated objects; an image of one category has none.

    Args:
        annotations: COCO's `instances_*.json`.
        images: the folder of its images.

    Raises:
        DataError: the file cannot be read, or lacks a key.
    """
    found = read_json(annotations, "annotations of objects", DataError)
    try:
        names = {entry["id"]: str(entry["name"]) for entry in found["categories"]}
        files = {entry["id"]: str(entry["file_name"]) for entry in found["images"]}
        within: dict[Any, set[Any]] = defaultdict(set)
        for entry in found["annotations"]:
            within[entry["image_id"]].add(entry["category_id"])
        for image, categories in within.items():
            shown = sorted(names[category] for category in categories)
            for left_out in shown if len(shown) > 1 else ():
                rest = [name for name in shown if name != left_out]
                yield SentencePair(str(images / files[image]), sentence(shown), sentence(rest))
    except (KeyError, TypeError) as problem:
        raise DataError(f"{annotations}: no annotations of objects as COCO's ({problem!r} is missing)") from problem


def sentence(names: Sequence[str]) -> str:
    """One sentence that names everything.

    >>> sentence(["apple", "dog", "person"])
    'a photo of an apple, a dog and a person'
    """
    *others, last = [f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in names]
    return f"a photo of {' and '.join([', '.join(others), last] if others else [last])}"


def caption_pairs(dataset: Dataset) -> Iterator[SentencePair]:
    """Streams the captions that a partial one can be made of, which must have words on both sides.

    Raises:
        UsageError: the topics are no captions of images.
        DataError: files are missing.
    """
    if dataset.direction != "text-to-image":
        raise UsageError(f"{dataset.name} is {dataset.direction}; expected images that captions describe")
    image_of = {document.doc_id: document.image for document in dataset.documents()}
    judged = {qrel.query_id: qrel.doc_id for qrel in dataset.qrels() if qrel.relevance > 0}
    for topic in dataset.topics():
        image = image_of.get(judged.get(topic.query_id, ""))
        if image and topic.text and (partial := partial_caption(topic.text)):
            yield SentencePair(image, topic.text, partial)


def partial_caption(caption: str) -> str | None:
    """A caption up to its first "and" or "with"; None if there is none, or no word on one side of it.

    >>> partial_caption("Two dogs , and a man with a ball .")
    'Two dogs'
    """
    found = _JOINT.search(caption)
    if not found or not words_of(caption[found.end() :]) or not words_of(caption[: found.start()]):
        return None
    return caption[: found.start()]
