"""What is encoded of a document besides its texts: its picture or vector, and the metadata that the shards store.

The digest of ids, titles, texts and names of pictures (`data.checks`) does not see that a picture was replaced by
another of its name. The digest of this module does; a corpus of texts without stored metadata has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import orjson

from lexvl_anserini.data.checks import field_bytes
from lexvl_anserini.data.digests import FileDigests
from lexvl_anserini.encoders.encoder import Tower
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import Document

# In the place of the digest of a picture that cannot be read.
UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Covered:
    """What is encoded of the documents besides their texts.

    tower     reads the documents
    metadata  whether the shards store metadata
    files     the digests of pictures and of tables of vectors
    """

    tower: Tower
    metadata: bool
    files: FileDigests

    def fields(self, document: Document) -> tuple[str | None, str | None]:
        """SHA-256 (hex) of the picture or of the vector's table, and the metadata as JSON; None for what is not read."""
        reference = self._reference(document)
        picture = None if reference is None else self.files.of(reference) or UNREADABLE
        return picture, _json(document) if self.metadata else None

    def _reference(self, document: Document) -> str | None:
        """The reference of the picture or vector that the tower reads; None if it reads the text only."""
        if document.image is None:
            return None
        reference = self.tower.read(document)
        return document.image if getattr(reference, "vector", reference) == document.image else None


class CoveredDigest:
    """SHA-256 of what is encoded of some documents besides their texts, in order."""

    def __init__(self, covered: Covered):
        self._covered = covered
        self._whole = sha256()
        self._any = False

    def add(self, documents: Iterable[Document]) -> str:
        """Adds the next documents; returns the SHA-256 (hex) of these alone."""
        these = sha256()
        for document in documents:
            fields = self._covered.fields(document)
            self._any |= fields != (None, None)
            data = b"".join(map(field_bytes, fields))
            these.update(data)
            self._whole.update(data)
        return these.hexdigest()

    def hexdigest(self) -> str | None:
        """The digest; None if nothing but texts was encoded."""
        return self._whole.hexdigest() if self._any else None


def _json(document: Document) -> str:
    """A document's metadata as the shards store it."""
    try:
        return orjson.dumps(dict(document.metadata)).decode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise DataError(
            f"document {document.doc_id!r}: its metadata cannot be stored as JSON ({problem}); change it, or encode "
            "without --store-metadata"
        ) from problem
