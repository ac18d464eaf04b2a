"""The documents of an index's corpus as a page shows them: text, metadata, and where the picture is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lexvl_anserini.data.pictures.archives import MEMBER
from lexvl_anserini.doors.serving import limits
from lexvl_anserini.ground.errors import DataError, LexvlError
from lexvl_anserini.ground.records import Document

if TYPE_CHECKING:
    from lexvl_anserini.data.dataset import Dataset

# Corpora whose documents are vectors: an `image` of theirs is the place of a vector.
WITHOUT_PICTURES = "embeddings"

# Topics from which examples are taken, and how many.
READ_TOPICS = 200
EXAMPLES = 4


class ShownDocument(NamedTuple):
    """A document: its title, the begin of its text, its metadata, and its picture with the file that it leads to."""

    title: str
    text: str
    metadata: Mapping[str, str | int | float | bool]
    picture: str | None
    file: str | None


class ShownCorpus(NamedTuple):
    """The documents by id; `problem` says why there are none."""

    documents: Mapping[str, ShownDocument]
    problem: str = ""

    def picture(self, doc_id: str) -> str:
        """The reference of a document's picture, whose name leads to the same file as when the corpus was read.

        Raises:
            DataError: no such document, no picture of it, or another file.
        """
        document = self.documents.get(doc_id)
        if document is None or document.picture is None:
            raise DataError(f"no picture of a document {doc_id[:80]!r}")
        if os.path.realpath(_file_of(document.picture)) != document.file:
            raise DataError(f"the picture of document {doc_id[:80]!r} is another file now; start the server again")
        return document.picture

    def values(self, key: str) -> list[str]:
        """The values of a metadata key, in order; none if there are too many to offer."""
        found: set[str] = set()
        for document in self.documents.values():
            if (value := document.metadata.get(key)) is not None:
                found.add(str(value))
                if len(found) > limits.OFFERED_VALUES:
                    return []
        return sorted(found)


def read_corpus(dataset: Dataset) -> ShownCorpus:
    """Reads all documents of a corpus; one that cannot be read any more gives a problem instead of documents."""
    places = None if dataset.name.startswith(WITHOUT_PICTURES) else RealPaths()
    try:
        return ShownCorpus({document.doc_id: shown(document, places) for document in dataset.documents()})
    except (LexvlError, OSError) as error:
        return ShownCorpus({}, f"the corpus cannot be read, so that hits have their ids alone: {error}")


def shown(document: Document, places: RealPaths | None) -> ShownDocument:
    """A document as it is shown; without `places`, it has no picture."""
    picture = document.image if places else None
    plain = {key: value for key, value in document.metadata.items() if isinstance(value, str | int | float | bool)}
    text = beginning(document.text or "")
    file = places.of(_file_of(picture)) if places and picture else None
    return ShownDocument(document.title or "", text, plain, picture, file)


def beginning(text: str) -> str:
    """A text, or whole words of its begin and an ellipsis."""
    if len(text) <= limits.SNIPPET:
        return text
    cut = text[: limits.SNIPPET]
    return (cut.rpartition(" ")[0] or cut) + " …"


def example_queries(dataset: Dataset) -> list[str]:
    """Some texts of the corpus's own topics, evenly spaced; none if it has no topics."""
    try:
        texts = list(islice(_short_texts(dataset), READ_TOPICS))
    except (LexvlError, OSError):
        return []
    count = min(EXAMPLES, len(texts))
    return [texts[(2 * number + 1) * len(texts) // (2 * count)] for number in range(count)]


def _short_texts(dataset: Dataset) -> Iterator[str]:
    """Texts of topics that fit on a button."""
    return (topic.text for topic in islice(dataset.topics(), READ_TOPICS) if topic.text and len(topic.text) <= 60)


def _file_of(picture: str) -> Path:
    """The file of a picture: of a member of an archive, the archive."""
    match = MEMBER.fullmatch(picture)
    return Path(match["archive"] if match else picture).expanduser()


class RealPaths:
    """As `os.path.realpath`, with the folders of many files followed once."""

    def __init__(self) -> None:
        self._folders: dict[Path, Path] = {}

    def of(self, file: Path) -> str:
        """Where a file is, after all links."""
        parent = self._folders.get(file.parent)
        if parent is None:
            parent = self._folders[file.parent] = Path(os.path.realpath(file.parent))
        whole = parent / file.name
        return os.path.realpath(whole) if whole.is_symlink() else str(whole)
