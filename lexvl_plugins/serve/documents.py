"""The documents of an index's corpus as a page shows them: text, metadata, and where the picture is.

Pictures of a page: scaled copies of the corpus's, and those that a user sends as queries.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from sys import getsizeof
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from lexvl_anserini.data.pictures.archives import find_file
from lexvl_anserini.data.pictures.images import keep_pixels
from lexvl_anserini.ground.errors import DataError, LexvlError
from lexvl_anserini.ground.records import Document
from lexvl_plugins.serve import limits
from lexvl_plugins.serve.decoding import decode

if TYPE_CHECKING:
    from PIL.Image import Image

    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.engines.engine import ImpactEngine

# Corpora whose documents are vectors: an `image` of theirs is the place of a vector.
WITHOUT_PICTURES = "embeddings"

# The key of metadata that says from where the words of a picture are (`lexvl_plugins/pages/corpus.py`).
READ = "words"

# Topics from which examples are taken, how many, and the characters that fit on a button.
READ_TOPICS = 200
EXAMPLES = 4
MOST_LETTERS = 60

# Letters of a word that an example query begins with; words that begin alike are often forms of one.
ALIKE = 3

# Pictures of a corpus on a page without a query; longest side in pixels by name.
SAMPLES = 12
SIDES = {"small": 320, "large": 1280}

# Pictures up to this side are drawings or icons more often than photos, and are sent without loss.
LOSSLESS = 256


class ShownDocument(NamedTuple):
    """A document: its title, the begin of its text, its metadata, and its picture with the file that it leads to."""

    title: str
    text: str
    metadata: Mapping[str, str | int | float | bool]
    picture: str | None
    file: str | None


# A document of a corpus that cannot be read.
UNKNOWN = ShownDocument("", "", {}, None, None)


class ShownCorpus(NamedTuple):
    """The documents by id; `problem` says why there are none."""

    documents: Mapping[str, ShownDocument]
    problem: str = ""

    def find_picture(self, doc_id: str) -> str:
        """The reference of a document's picture, whose name leads to the same file as when the corpus was read."""
        document = self.documents.get(doc_id, UNKNOWN)
        if document.picture is None:
            raise DataError(f"no picture of a document {doc_id[:80]!r}")
        if os.path.realpath(find_file(document.picture)) != document.file:
            raise DataError(f"the picture of document {doc_id[:80]!r} is another file now; start the server again")
        return document.picture

    def sample(self) -> list[str]:
        """The ids of some documents with pictures."""
        return take_spaced([doc_id for doc_id, document in self.documents.items() if document.picture], SAMPLES)

    def list_values(self, key: str) -> list[str]:
        """The values of a metadata key, in order; none if there are too many to offer."""
        values = {str(document.metadata[key]) for document in self.documents.values() if key in document.metadata}
        return sorted(values) if len(values) <= limits.OFFERED_VALUES else []


def read_corpus(dataset: Dataset) -> ShownCorpus:
    """Reads all documents of a corpus."""
    pictures = not dataset.name.startswith(WITHOUT_PICTURES)
    # The folders of many files are followed once.
    follow = cache(os.path.realpath)
    return ShownCorpus({one.doc_id: _read_document(one, pictures, follow) for one in dataset.documents()})


def _read_document(document: Document, pictures: bool, follow: Callable[[Path], str]) -> ShownDocument:
    picture, real = document.image if pictures else None, None
    if picture:
        file = find_file(picture)
        whole = Path(follow(file.parent)) / file.name
        real = os.path.realpath(whole) if whole.is_symlink() else str(whole)
    plain = {key: value for key, value in document.metadata.items() if isinstance(value, str | int | float | bool)}
    text = document.text or ""
    if len(text) > limits.SNIPPET:  # whole words of its begin
        text = (text[: limits.SNIPPET].rpartition(" ")[0] or text[: limits.SNIPPET]) + " …"
    return ShownDocument(document.title or "", text, plain, picture, real)


def list_examples(dataset: Dataset) -> list[str]:
    """Some texts of the corpus's own topics, evenly spaced; none if it has no topics."""
    try:
        topics = list(islice(dataset.topics(), READ_TOPICS))
    except (LexvlError, OSError):
        return []
    return take_spaced([topic.text for topic in topics if topic.text and len(topic.text) <= MOST_LETTERS], EXAMPLES)


def take_spaced(items: Sequence[str], most: int) -> list[str]:
    """Some of the items, evenly spaced."""
    count = min(most, len(items))
    return [items[(2 * number + 1) * len(items) // (2 * count)] for number in range(count)]


def build_examples(corpus: ShownCorpus, engine: ImpactEngine, terms: Iterable[str]) -> list[str]:
    """Queries for a corpus without topics: the one or two heaviest words of some documents."""
    words = [term for term in terms if term.isalpha() and len(term) >= ALIKE]
    queries = []
    for doc_id in take_spaced(list(corpus.documents), EXAMPLES):
        impacts: Mapping[str, int] = {}
        with suppress(LexvlError):  # the corpus may have documents that the index has not
            impacts = engine.impacts(doc_id, words)
        first, *others = [*sorted(impacts, key=lambda word: (-impacts[word], word)), ""]
        second = next((word for word in others if word[:ALIKE] != first[:ALIKE]), "")
        queries.append(f"{first} {second}".strip())
    return list(filter(None, dict.fromkeys(queries)))


class EncodedPicture(NamedTuple):
    """A picture as bytes, and their media type."""

    content: bytes
    media_type: str


def measure_held(*values: Any) -> int:
    """About how many bytes values take, with what they hold; a vocabulary behind terms is no part of them."""
    size, left = 0, list(values)
    while left:
        value = left.pop()
        size += getsizeof(value)
        if isinstance(value, Mapping):
            left += chain.from_iterable(value.items())
        elif isinstance(value, tuple | list | frozenset):
            left += value
        elif not isinstance(value, str | bytes):
            left += getattr(value, "__dict__", {}).values()
    return size


class Recent:
    """The values that were used last, at most so many, or of such a size together; safe for threads.

    With their keys they hold at most `limits.KEPT_BYTES`.
    """

    def __init__(self, most: int, size: Callable[[Any], int] = lambda _: 1):
        self.most, self.size = most, size
        self._values: OrderedDict[Hashable, tuple[Any, int, int]] = OrderedDict()
        self._total = self._bytes = 0
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """The value of a key; None if it is not kept."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: Any) -> None:
        """Keeps a value; forgets those that were not used for longest."""
        size, held = self.size(value), measure_held(key, value)
        with self._lock:
            if key in self._values:
                self._forget(key)
            self._values[key] = (value, size, held)
            self._total, self._bytes = self._total + size, self._bytes + held
            while self._total > self.most or self._bytes > limits.KEPT_BYTES:
                self._forget(next(iter(self._values)))

    def _forget(self, key: Hashable) -> None:
        _, size, held = self._values.pop(key)
        self._total, self._bytes = self._total - size, self._bytes - held

    def ensure(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of a key, made where it is not kept."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value


def scale(picture: Image, side: int, lossless: int = LOSSLESS) -> EncodedPicture:
    """A picture as bytes, at most `side` pixels wide and high; what the file holds besides pixels is left out."""
    copy, out = keep_pixels(picture.copy()), io.BytesIO()
    copy.thumbnail((side, side))
    kind = "PNG" if max(copy.size) <= lossless else "JPEG"
    copy.save(out, format=kind, quality=85)  # PNG has no quality
    return EncodedPicture(out.getvalue(), f"image/{kind.lower()}")


class SentPictures:
    """Pictures that users sent, by the first digits of their SHA-256."""

    def __init__(self) -> None:
        self._pictures = Recent(limits.KEPT_UPLOADS)
        self._decoding = BoundedSemaphore(limits.DRAWINGS)  # of which each may take `DECODE_BYTES`

    def add(self, content: bytes) -> str:
        """Decodes and keeps a picture; returns its id."""
        picture_id = sha256(content).hexdigest()[:32]
        if self._pictures.get(picture_id) is None:
            with self._decoding:
                limits.refuse_late()
                picture = decode(content)
            self._pictures.put(picture_id, picture)
        return picture_id

    def get(self, picture_id: str) -> Image:
        """A picture that was sent."""
        picture: Image | None = self._pictures.get(picture_id)
        if picture is None:
            raise DataError("the picture of this query is not on the server any more; send it again")
        return picture
