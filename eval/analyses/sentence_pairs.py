"""The completeness probe: whether an image is more similar to a complete sentence than to a partial one (FDT, 4.4).

FDT makes the pairs of the annotated objects of COCO's training images: one sentence describes all objects, the other
some of them; the wording is in its supplement, which is not public. Here the complete sentence names every category of
an image's objects once, "a photo of a dog, a frisbee and a person", and each partial one leaves one of them out.
Captions give pairs without annotations: the partial sentence is a caption up to its first "and" or "with".

Vectors of texts have unit length here, so that a longer sentence does not win by its norm; equal similarities do not
count. A second row compares each pair with another image: it says how often the complete sentence wins by itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lexvl_anserini.data.lines import load_function_words
from lexvl_anserini.encoders.encoder import Encoder, encode_inputs
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.machine import expand_path, split_path
from lexvl_anserini.ground.progress import Progress, silent

from .classes.class_sets import LISTS, read_rows
from .classes.classification import Vectors

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset

# Images whose vectors, and those of their sentences, are in memory together.
IMAGES_AT_ONCE = 256

_LETTERS = re.compile(r"[^\W\d_]+")
_JOINT = re.compile(r"[\s,]+(?:and|with)\s", re.IGNORECASE)


class CompletenessShare(NamedTuple):
    """The share of pairs whose complete sentence is more similar to the image, by a model or by the control."""

    ranking: str
    dataset: str
    images: int
    pairs: int
    complete_first: float


def compute_row_products(left: Vectors, right: Vectors) -> np.ndarray:
    """The inner products of the rows of two matrices, [n]."""
    if isinstance(left, np.ndarray):
        return np.einsum("nd,nd->n", left, right)
    return np.asarray(left.multiply(right).sum(axis=1)).ravel()


def compare_sentences(
    model: Encoder, dataset: str, pairs: Sequence[SentencePair], batch_size: int = 32, progress: Progress = silent
) -> list[CompletenessShare]:
    """The rows of a model: each pair with its own image, and with the image before it."""
    from scipy import sparse
    from sklearn.preprocessing import normalize

    pairs_of: dict[str, list[SentencePair]] = defaultdict(list)
    for pair in pairs:
        pairs_of[pair.image].append(pair)
    images = list(pairs_of)
    if len(images) < 2:
        raise DataError(f"{dataset}: pairs of {len(images)} images, expected at least 2")
    preferred = by_chance = 0
    before = encode_inputs(model.document, images[-1:], batch_size)  # the image before the first one is the last
    for start in range(0, len(images), IMAGES_AT_ONCE):
        shown = images[start : start + IMAGES_AT_ONCE]
        piece = [(place, pair) for place, image in enumerate(shown) for pair in pairs_of[image]]
        at = [place for place, _ in piece]
        texts = [pair.complete for _, pair in piece] + [pair.partial for _, pair in piece]
        sentences = normalize(encode_inputs(model.query, texts, batch_size, progress))
        gained = sentences[: len(piece)] - sentences[len(piece) :]
        vectors = encode_inputs(model.document, shown, batch_size, progress)
        rows = [before, vectors[:-1]]
        previous = sparse.vstack(rows, format="csr") if sparse.issparse(vectors) else np.concatenate(rows)
        preferred += int((compute_row_products(gained, vectors[at]) > 0).sum())
        by_chance += int((compute_row_products(gained, previous[at]) > 0).sum())
        before = vectors[-1:]
    return [
        CompletenessShare(ranking, dataset, len(images), len(pairs), wins / len(pairs))
        for ranking, wins in ((model.name, preferred), ("another image", by_chance))
    ]


class SentencePair(NamedTuple):
    """An image, a complete sentence about it, and a partial one."""

    image: str
    complete: str
    partial: str


def load_sentence_pairs(source: str, data_dir: str | None = None) -> list[SentencePair]:
    """Pairs of a list, of COCO's annotations or of captions."""
    from lexvl_anserini.data.dataset import load_dataset

    annotations, images = split_path(source)
    path = expand_path(source)
    if path.suffix.lower() in LISTS:
        pairs = list(read_pairs(path))
    elif annotations.lower().endswith(".json") and not source.startswith("karpathy:"):
        if not images:
            raise UsageError(f"{source} names no images; expected {source},IMAGES with the folder of its images")
        pairs = list(read_object_pairs(expand_path(annotations), expand_path(images)))
    else:
        pairs = list(make_caption_pairs(load_dataset(source, data_dir=data_dir, direction="text-to-image")))
    if not pairs:
        raise DataError(f"{source}: no pair of sentences in it")
    return pairs


def read_pairs(path: Path) -> Iterator[SentencePair]:
    """Streams the pairs of a list; images are relative to it."""
    for where, (image, complete, partial) in read_rows(path, SentencePair._fields):
        if complete == partial:
            raise DataError(f"{where}: the two sentences are equal: {complete[:80]!r}")
        yield SentencePair(str(path.parent / image), complete, partial)


def read_object_pairs(annotations: Path, images: Path) -> Iterator[SentencePair]:
    """Streams the pairs of COCO's annotated objects; an image of one category has none."""
    content = read_json(annotations, "annotations of objects", DataError)
    try:
        names = {entry["id"]: str(entry["name"]) for entry in content["categories"]}
        files = {entry["id"]: str(entry["file_name"]) for entry in content["images"]}
        within: dict[Any, set[Any]] = defaultdict(set)
        for entry in content["annotations"]:
            within[entry["image_id"]].add(entry["category_id"])
        for image, categories in within.items():
            shown = sorted(names[category] for category in categories)
            for left_out in shown if len(shown) > 1 else ():
                rest = [name for name in shown if name != left_out]
                yield SentencePair(str(images / files[image]), format_sentence(shown), format_sentence(rest))
    except (KeyError, TypeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else "another structure"
        raise DataError(f"{annotations}: no annotations of objects as COCO's ({why})") from error


def format_sentence(names: Sequence[str]) -> str:
    """One sentence that names everything."""
    *others, last = [f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in names]
    return f"a photo of {' and '.join([', '.join(others), last] if others else [last])}"


def make_caption_pairs(dataset: Dataset) -> Iterator[SentencePair]:
    """Streams pairs made from the captions that can be cut, which need words on both sides of the cut."""
    if dataset.direction != "text-to-image":
        raise UsageError(f"{dataset.name} is {dataset.direction}; expected images that captions describe")
    image_of = {document.doc_id: document.image for document in dataset.documents()}
    judged = {qrel.query_id: qrel.doc_id for qrel in dataset.qrels() if qrel.relevance > 0}
    for topic in dataset.topics():
        image = image_of.get(judged.get(topic.query_id, ""))
        if image and topic.text and (partial := split_caption(topic.text)):
            yield SentencePair(image, topic.text, partial)


def list_words(text: str) -> list[str]:
    """The words of a caption without function words, in their order."""
    return [word for word in _LETTERS.findall(text.lower()) if word not in load_function_words()]


def collect_words(text: str) -> frozenset[str]:
    """The words of a caption without function words."""
    return frozenset(list_words(text))


def split_caption(caption: str) -> str | None:
    """A caption up to its first "and" or "with"; None if there is none, or no word on one side of it."""
    match = _JOINT.search(caption)
    if not match or not collect_words(caption[match.end() :]) or not collect_words(caption[: match.start()]):
        return None
    return caption[: match.start()]
