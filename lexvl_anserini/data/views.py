"""Captioned images seen in three directions: what are the documents, the topics, the judgements.

text-to-image  documents are images, topics are captions; each caption has one relevant image
image-to-text  documents are captions, topics are images; all captions of an image are relevant
text-to-text   no images: a document is the first four captions of an image, the topic its fifth
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from lexvl_anserini.data.corpora.karpathy import Caption
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.records import Document, Qrel, Topic

# Captions of an image that make its document, text to text; the next one is the topic, further ones are not used.
DOCUMENT_CAPTIONS = 4


class Captioned(Protocol):
    """An image with its captions, such as a `karpathy.CaptionedImage`."""

    @property
    def image_id(self) -> str:
        """The image's id."""

    @property
    def file(self) -> str:
        """The image's file, as `Opened` refers to it."""

    @property
    def captions(self) -> Sequence[Caption]:
        """The captions; an implementation may generate them on each call."""


# The images, from the start at each call.
Images = Callable[[], Iterable[Captioned]]
# Makes ready what is needed to read images, and returns how a file is referred to.
Opened = Callable[[], Callable[[str], str]]


class View(NamedTuple):
    """The documents, topics and judgements of one direction."""

    documents: Callable[[Images, Opened], Iterator[Document]]
    topics: Callable[[Images, Opened], Iterator[Topic]]
    qrels: Callable[[Images], Iterator[Qrel]]


def _image_documents(images: Images, opened: Opened) -> Iterator[Document]:
    refer = opened()
    for image in images():
        yield Document(image.image_id, image=refer(image.file))


def _caption_documents(images: Images, opened: Opened) -> Iterator[Document]:
    for image in images():
        for caption in image.captions:
            yield Document(caption.caption_id, text=caption.text)


def _joined_documents(images: Images, opened: Opened) -> Iterator[Document]:
    for image in images():
        yield Document(image.image_id, text=" ".join(caption.text for caption in image.captions[:DOCUMENT_CAPTIONS]))


def _image_topics(images: Images, opened: Opened) -> Iterator[Topic]:
    refer = opened()
    for image in images():
        yield Topic(image.image_id, image=refer(image.file))


def _caption_topics(images: Images, opened: Opened) -> Iterator[Topic]:
    for image in images():
        for caption in image.captions:
            yield Topic(caption.caption_id, caption.text)


def _fifth_topics(images: Images, opened: Opened) -> Iterator[Topic]:
    for image in images():
        for caption in image.captions[DOCUMENT_CAPTIONS : DOCUMENT_CAPTIONS + 1]:
            yield Topic(caption.caption_id, caption.text)


def _caption_to_image(images: Images) -> Iterator[Qrel]:
    for image in images():
        for caption in image.captions:
            yield Qrel(caption.caption_id, image.image_id, 1)


def _image_to_caption(images: Images) -> Iterator[Qrel]:
    for image in images():
        for caption in image.captions:
            yield Qrel(image.image_id, caption.caption_id, 1)


def _fifth_to_image(images: Images) -> Iterator[Qrel]:
    for image in images():
        for caption in image.captions[DOCUMENT_CAPTIONS : DOCUMENT_CAPTIONS + 1]:
            yield Qrel(caption.caption_id, image.image_id, 1)


VIEWS: Mapping[str, View] = {
    "text-to-image": View(_image_documents, _caption_topics, _caption_to_image),
    "image-to-text": View(_caption_documents, _image_topics, _image_to_caption),
    "text-to-text": View(_joined_documents, _fifth_topics, _fifth_to_image),
}


def viewed(ref: CorpusRef, images: Images, opened: Opened) -> Dataset:
    """The dataset of captioned images in the direction of the reference."""
    view = VIEWS[ref.direction or ""]
    documents, topics = partial(view.documents, images, opened), partial(view.topics, images, opened)
    return Dataset.of(ref, documents, topics, partial(view.qrels, images))
