"""Captioned images: read from Karpathy's `dataset_*.json`, and seen in three directions.

text-to-image  documents are images, topics are captions; each caption has one relevant image
image-to-text  documents are captions, topics are images; all captions of an image are relevant
text-to-text   no images: a document is the first four captions of an image, the topic its fifth

The file of COCO has 144 MB, most of it tokens that are not used: its list is decoded element by element.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.data.checks import checked_id
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.lines import whole_characters
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.records import Document, Qrel, Topic

# Captions of an image that make its document, text to text; the next one is the topic, further ones are not used.
DOCUMENT_CAPTIONS = 4

_BLANK = re.compile(r"[ \t\n\r]*")


class Caption(NamedTuple):
    """One sentence about an image."""

    caption_id: str
    text: str


class CaptionedImage(NamedTuple):
    """One image of a Karpathy file: `imgid`, split, file (with its folder, as `val2014/x.jpg`), its captions."""

    image_id: str
    split: str
    file: str
    captions: tuple[Caption, ...]


class ViewItem(NamedTuple):
    """A document or a topic: an image, one of its captions, or several."""

    item_id: str
    text: str | None = None
    file: str | None = None


# The images, from the start at each call.
Images = Callable[[], Iterable[CaptionedImage]]
# Makes ready what is needed to read images, and returns how a file is referred to.
Opened = Callable[[], Callable[[str], str]]
# The documents or the topics of an image.
Items = Callable[[CaptionedImage], list[ViewItem]]


class View(NamedTuple):
    """What documents and topics are in one direction; all documents of an image are relevant to all its topics."""

    documents: Items
    topics: Items


def whole_image(image: CaptionedImage) -> list[ViewItem]:
    """The image itself."""
    return [ViewItem(image.image_id, file=image.file)]


def each_caption(image: CaptionedImage) -> list[ViewItem]:
    """The captions one by one."""
    return [ViewItem(caption.caption_id, caption.text) for caption in image.captions]


def first_captions(image: CaptionedImage) -> list[ViewItem]:
    """The first captions together."""
    return [ViewItem(image.image_id, " ".join(caption.text for caption in image.captions[:DOCUMENT_CAPTIONS]))]


def next_caption(image: CaptionedImage) -> list[ViewItem]:
    """The caption after the first ones, if there is one."""
    return each_caption(image)[DOCUMENT_CAPTIONS : DOCUMENT_CAPTIONS + 1]


VIEWS: Mapping[str, View] = {
    "text-to-image": View(whole_image, each_caption),
    "image-to-text": View(each_caption, whole_image),
    "text-to-text": View(first_captions, next_caption),
}


def viewed(ref: CorpusRef, images: Images, opened: Opened) -> Dataset:
    """The dataset of captioned images in the direction of the reference."""
    view = VIEWS[ref.direction or ""]
    return Dataset.of(
        ref,
        documents=partial(_documents, images, view, opened),
        topics=partial(_topics, images, view, opened),
        qrels=partial(_qrels, images, view),
    )


def _documents(images: Images, view: View, opened: Opened) -> Iterator[Document]:
    for item in _referred(images, view.documents, opened):
        yield Document(item.item_id, text=item.text, image=item.file)


def _topics(images: Images, view: View, opened: Opened) -> Iterator[Topic]:
    for item in _referred(images, view.topics, opened):
        yield Topic(item.item_id, item.text, item.file)


def _referred(images: Images, items: Items, opened: Opened) -> Iterator[ViewItem]:
    """The items with references in the place of files; opens nothing for captions."""
    refer = cache(opened)
    for image in images():
        for item in items(image):
            yield item if item.file is None else item._replace(file=refer()(item.file))


def _qrels(images: Images, view: View) -> Iterator[Qrel]:
    for image in images():
        for topic in view.topics(image):
            for document in view.documents(image):
                yield Qrel(topic.item_id, document.item_id, 1)


# --- the file -------------------------------------------------------------------------------------------------------


def read_karpathy(
    path: Path, splits: frozenset[str] | None = None, escape_ids: bool = False
) -> Iterator[CaptionedImage]:
    """Streams the images of a Karpathy file in file order.

    Args:
        splits: whose images are wanted; None for all.

    Raises:
        DataError: not there, malformed, an image without id, split, file name or captions (names which), or no image
            of the splits (names those there).
    """
    there: set[str] = set()
    for number, record in enumerate(_elements(path), start=1):
        where = f"{path} image {number}"
        if not isinstance(record, dict):
            raise DataError(f"{where}: {record!r} is not an object")
        where += f" ({record.get('filename', 'without a file name')})"
        split = _string(record, "split", where)
        there.add(split)
        if splits is None or split in splits:
            yield _image(record, split, where, escape_ids)
    if not there:
        raise DataError(f"{path}: no image in it")
    if splits is not None and not there & splits:
        names = " or ".join(map(repr, sorted(splits)))
        raise DataError(f"{path}: no image of split {names}; splits there: {', '.join(sorted(there))}")


def _image(record: dict[str, Any], split: str, where: str, escape_ids: bool) -> CaptionedImage:
    file = _string(record, "filename", where)
    if record.get("filepath"):
        file = f"{_string(record, 'filepath', where)}/{file}"
    sentences = _field(record, "sentences", where)
    if not isinstance(sentences, list):
        raise DataError(f"{where}: 'sentences' is not a list")
    return CaptionedImage(
        checked_id(_field(record, "imgid", where), where, escape_ids),
        split,
        file,
        tuple(_caption(sentence, f"{where} caption {n}", escape_ids) for n, sentence in enumerate(sentences, start=1)),
    )


def _caption(record: Any, where: str, escape_ids: bool) -> Caption:
    if not isinstance(record, dict):
        raise DataError(f"{where}: not an object")
    text = _string(record, "raw", where)
    return Caption(checked_id(_field(record, "sentid", where), where, escape_ids), text.strip())


def _field(record: dict[str, Any], key: str, where: str) -> Any:
    if key not in record:
        raise DataError(f"{where}: no {key!r}; keys found: {', '.join(map(str, record)) or 'none'}")
    return record[key]


def _string(record: dict[str, Any], key: str, where: str) -> str:
    value = _field(record, key, where)
    if not isinstance(value, str):
        raise DataError(f"{where}: {key!r} is {value!r}, expected a string")
    return str(whole_characters(value))


def _elements(path: Path) -> Iterator[Any]:
    """The elements of the list `images`, at any place in the object."""
    text = _text(path)
    decoder = json.JSONDecoder()
    try:
        at = _expect(text, 0, "{")
        while text[at : at + 1] != "}":
            key, at = decoder.raw_decode(text, at)
            at = _expect(text, at, ":")
            if key == "images":
                yield from _list(text, _expect(text, at, "["), decoder)
                return
            _, at = decoder.raw_decode(text, at)
            at = _skip(text, at)
            if text[at : at + 1] == ",":
                at = _expect(text, at, ",")
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path}: malformed JSON ({problem}); fetch the file again") from problem
    raise DataError(f"{path}: no 'images' in it; expected Karpathy's dataset_<name>.json")


def _list(text: str, at: int, decoder: json.JSONDecoder) -> Iterator[Any]:
    while text[at : at + 1] != "]":
        element, at = decoder.raw_decode(text, at)
        yield element
        at = _skip(text, at)
        if text[at : at + 1] != "]":
            at = _expect(text, at, ",")


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, mark: str) -> int:
    """The position after a mark and the blanks around it."""
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise json.JSONDecodeError(f"expected {mark!r}", text, at)
    return _skip(text, at + 1)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(f"{path}: not valid UTF-8 (byte {problem.start + 1}); fetch the file again") from problem
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror or problem})") from problem
