"""Captioned images in memory, ready to be drawn from: pixels once per image, token ids once per caption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from scipy import sparse

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.data.images import open_source, read_images
from lexvl_anserini.encoders.parts.tokens import Columns
from lexvl_anserini.encoders.parts.vision import Pixels
from lexvl_anserini.errors import DataError
from lexvl_anserini.progress import Progress, silent


@dataclass(frozen=True)
class Captioned:
    """Images with their captions.

    ids       of the images
    images    references, one per image
    captions  texts of each image, at least one
    """

    ids: Sequence[str]
    images: Sequence[str]
    captions: Sequence[Sequence[str]]

    @property
    def texts(self) -> list[str]:
        """All captions, image by image."""
        return [text for texts in self.captions for text in texts]


def read_captioned(dataset: Dataset, limit: int | None = None) -> Captioned:
    """The images of a data set (direction text-to-image) that have captions, in its order.

    Raises:
        DataError: a document that is no image, or no image has a caption.
    """
    texts = {topic.query_id: topic.text or "" for topic in dataset.topics()}
    captions: dict[str, list[str]] = {}
    for qrel in dataset.qrels():
        if qrel.relevance > 0:
            captions.setdefault(qrel.doc_id, []).append(texts[qrel.query_id])
    ids, images, told = [], [], []
    for document in dataset.documents():
        if document.image is None:
            raise DataError(
                f"{dataset.name}: document {document.doc_id!r} is no image; training needs captioned images"
            )
        if document.doc_id in captions:
            ids.append(document.doc_id)
            images.append(document.image)
            told.append(captions[document.doc_id])
        if len(images) == limit:
            break
    if not images:
        raise DataError(f"{dataset.name}/{dataset.split}: no image has a caption")
    return Captioned(ids, images, told)


def digest(captioned: Captioned) -> str:
    """SHA-256 (hex) of ids, captions and the bytes of the pictures, in order.

    The bytes count, not a file's name, place or time: a copy elsewhere is the same data, a picture that was replaced or
    drawn anew is not.

    Raises:
        DataError: a picture that is not there.
    """
    whole = sha256()
    for doc_id, image, texts in zip(captioned.ids, captioned.images, captioned.captions, strict=True):
        with open_source(image) as source:
            picture = sha256(source.read()).hexdigest()
        whole.update(orjson.dumps([doc_id, list(texts), picture]))
    return whole.hexdigest()


def read_pixels(images: Sequence[str], pixels: Pixels, path: Path, progress: Progress = silent) -> np.ndarray:
    """uint8 [n, R, R, 3], decoded once into a file that is mapped into memory; an unfinished file is made again."""
    shape = (len(images), pixels.resolution, pixels.resolution, 3)
    if path.is_file():
        found = np.load(path, mmap_mode="r")
        if found.shape == shape:
            return found
    part = path.with_name(path.name + ".part")
    crops = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape)
    for image in read_images(images, prepare=pixels.crop):
        crops[image.position] = image.value
        progress(1)
    crops.flush()
    part.replace(path)
    return np.load(path, mmap_mode="r")


@dataclass(frozen=True)
class Tokens:
    """Token ids of captions, padded to the longest.

    ids       int64 [n captions, L]
    lengths   int64 [n captions], special tokens included
    first     int64 [n images + 1]: captions of image i are first[i] to first[i + 1]
    """

    ids: np.ndarray
    lengths: np.ndarray
    first: np.ndarray


def named_terms(tokens: Tokens, columns: Columns) -> sparse.csr_matrix:
    """CSR [n images, V] float32: the share of an image's captions that hold a term."""
    counts = np.diff(tokens.first)
    owner = np.repeat(np.arange(len(counts)), counts)
    real = np.arange(tokens.ids.shape[1]) < tokens.lengths[:, None]
    caption, place = np.nonzero(real & (columns.of_token[tokens.ids] >= 0))
    terms = columns.of_token[tokens.ids[caption, place]]
    held = np.unique(np.stack([caption, terms]), axis=1)  # a term that a caption repeats counts once
    images = owner[held[0]]
    shares = (1 / counts[images]).astype(np.float32)
    return sparse.csr_matrix((shares, (images, held[1])), shape=(len(counts), len(columns.vocabulary)))


def tokenise(captions: Sequence[Sequence[str]], reader: Any) -> Tokens:
    """Tokenises all captions once.

    Args:
        captions: per image.
        reader: a `TextReader`.
    """
    rows = reader([text for texts in captions for text in texts])
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.full((len(rows), int(lengths.max())), reader.pad_id, dtype=np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    first = np.concatenate([[0], np.cumsum([len(texts) for texts in captions])])
    return Tokens(ids, lengths, first.astype(np.int64))
