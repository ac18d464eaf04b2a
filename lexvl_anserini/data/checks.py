"""Checks that a corpus has documents with distinct ids, and digests them in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import NamedTuple

from lexvl_anserini.data.ids import SeenIds
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import Document

# Ids named in an error: enough to see a pattern, few enough for one line.
NAMED = 5

Documents = Callable[[], Iterator[Document]]


class CorpusSummary(NamedTuple):
    """A corpus that was read once.

    documents  number of documents
    digest     SHA-256 (hex) of their ids, titles, texts and names of images, in order
    images     number of documents with an image
    """

    documents: int
    digest: str
    images: int = 0


def check_corpus(
    documents: Documents, where: str, visit: Callable[[Document], None] = lambda document: None
) -> CorpusSummary:
    """Counts the documents, digests them, and verifies that their ids are distinct.

    Memory: 8 bytes per document. A second pass is read only where ids may be equal.

    Args:
        visit: what else to do with each document of the first pass.

    Raises:
        DataError: no document, or ids that occur more than once.
    """
    seen, digest = SeenIds(), sha256()
    images = 0
    for document in documents():
        seen.add(document.doc_id)
        images += document.image is not None
        digest.update(document_bytes(document))
        visit(document)
    if not len(seen):
        raise DataError(f"{where}: no document in it")
    if repeated := seen.repeated(lambda: (document.doc_id for document in documents())):
        named = "; ".join(
            f"{doc_id!r} at {', '.join(map(str, positions))}" for doc_id, positions in list(repeated.items())[:NAMED]
        )
        more = f" and {len(repeated) - NAMED} more" if len(repeated) > NAMED else ""
        raise DataError(
            f"{where}: ids that occur more than once (documents counted from 1): {named}{more}; ids must be distinct"
        )
    return CorpusSummary(len(seen), digest.hexdigest(), images)


def document_bytes(document: Document) -> bytes:
    """A document's id, title, text and image such that no two documents, nor sequences of them, give the same bytes.

    Of an image only the file name counts: the same corpus in another folder is the same corpus. What the image shows is
    the matter of `shards.covered`.
    """
    image = document.image and document.image.rsplit("/", 1)[-1]
    return b"".join(map(field_bytes, (document.doc_id, document.title, document.text, image)))


def field_bytes(value: str | None) -> bytes:
    """A mark (absent or present), the length of the text, its UTF-8: fields in a row are unambiguous."""
    if value is None:
        return b"-"
    data = value.encode("utf-8")
    return b"+" + len(data).to_bytes(8, "little") + data
