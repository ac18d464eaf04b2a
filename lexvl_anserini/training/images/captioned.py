"""Captioned images in memory: pixels once per image, token ids once per caption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import orjson

from lexvl_anserini.data.corpora.embeddings import REFERENCE, read_embeddings
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.pictures.images import open_source
from lexvl_anserini.encoders.parts.features import Embedded
from lexvl_anserini.encoders.parts.tokens import TextReader
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.training.common.inputs import Tokens


@dataclass(frozen=True)
class CaptionedImages:
    """Images with their captions.

    ids       doc_id of each image
    images    reference of each image
    captions  texts of each image, at least one
    """

    ids: Sequence[str]
    images: Sequence[str]
    captions: Sequence[Sequence[str]]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def texts(self) -> list[str]:
        """All captions, image by image."""
        return [text for texts in self.captions for text in texts]

    def at(self, positions: Sequence[int]) -> CaptionedImages:
        """The images at some positions."""
        return CaptionedImages(
            [self.ids[number] for number in positions],
            [self.images[number] for number in positions],
            [self.captions[number] for number in positions],
        )

    def digest(self) -> str:
        """SHA-256 (hex) of the ids, the captions and the bytes of the images (or the stored vectors), in order.

        Only the bytes of an image file count, not its name, folder or time: a copy elsewhere has the same digest, a
        replaced image has another.

        Raises:
            DataError: an image does not exist.
        """
        whole = sha256()
        for doc_id, image, texts in zip(self.ids, self.images, self.captions, strict=True):
            if REFERENCE.fullmatch(image):
                vectors = [image, *(text.vector for text in texts if isinstance(text, Embedded))]
                content = read_embeddings(vectors).tobytes()  # type: ignore[arg-type]
            else:
                with open_source(image) as source:
                    content = source.read()
            whole.update(orjson.dumps([doc_id, [str(text) for text in texts], sha256(content).hexdigest()]))
        return whole.hexdigest()


def caption_of(topic: Topic) -> str:
    """The text of a topic, with the reference of its stored vector where it has one."""
    text = topic.text or ""
    return Embedded(text, topic.image) if topic.image else text


def read_captioned(dataset: Dataset, limit: int | None = None) -> CaptionedImages:
    """The images of a dataset (direction text-to-image) that have captions, in the order of the dataset.

    Raises:
        DataError: a document has no image, or no image has a caption.
    """
    texts = {topic.query_id: caption_of(topic) for topic in dataset.topics()}
    captions: dict[str, list[str]] = {}
    for qrel in dataset.qrels():
        if qrel.relevance > 0:
            captions.setdefault(qrel.doc_id, []).append(texts[qrel.query_id])
    ids, images, chosen = [], [], []
    for document in dataset.documents():
        if document.image is None:
            raise DataError(
                f"{dataset.name}: document {document.doc_id!r} has no image; training needs captioned images"
            )
        if document.doc_id in captions:
            ids.append(document.doc_id)
            images.append(document.image)
            chosen.append(captions[document.doc_id])
        if len(images) == limit:
            break
    if not images:
        raise DataError(f"{dataset.name}/{dataset.split}: no image has a caption")
    return CaptionedImages(ids, images, chosen)


def tokenise(captions: Sequence[Sequence[str]], reader: TextReader) -> Tokens:
    """Tokenises all captions once; `captions` has the texts of each image."""
    rows = reader([text for texts in captions for text in texts])
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.full((len(rows), int(lengths.max())), reader.pad_id, dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    first = np.concatenate([[0], np.cumsum([len(texts) for texts in captions])])
    return Tokens(ids, lengths, first.astype(np.int64))
