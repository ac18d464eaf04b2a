"""What must hold of a whole corpus, in one pass and with flat memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from hashlib import blake2b, sha256
from typing import NamedTuple

import numpy as np

from lexvl_anserini.errors import DataError
from lexvl_anserini.records import Document

# Ids named in an error: enough to see a pattern, few enough for one line.
NAMED = 5

Documents = Callable[[], Iterator[Document]]


class CorpusSummary(NamedTuple):
    """How many documents a corpus has, and the SHA-256 (hex) of their ids and contents in order."""

    documents: int
    digest: str


def check_corpus(documents: Documents, where: str) -> CorpusSummary:
    """Counts the documents, digests them, and verifies that no id comes twice.

    Memory: 8 bytes per document (a short digest of each id). Equal short digests are looked at again in a second
    pass, so two different ids are never taken for one.

    Raises:
        DataError: no document, or ids that come more than once.
    """
    short = array("Q")
    whole = sha256()
    for document in documents():
        short.append(_short_digest(document.doc_id))
        whole.update(document_bytes(document))
    if not short:
        raise DataError(f"{where}: no document in it")
    if repeated := duplicate_ids(documents, _repeated(short)):
        told = "; ".join(
            f"{doc_id!r} at {', '.join(map(str, positions))}" for doc_id, positions in list(repeated.items())[:NAMED]
        )
        more = f" and {len(repeated) - NAMED} more" if len(repeated) > NAMED else ""
        raise DataError(
            f"{where}: ids that come more than once (documents counted from 1): {told}{more}; ids must be distinct"
        )
    return CorpusSummary(len(short), whole.hexdigest())


def duplicate_ids(documents: Documents, suspects: frozenset[int]) -> dict[str, list[int]]:
    """The ids among the suspected short digests that come more than once, with their positions counted from 1."""
    if not suspects:
        return {}
    positions: dict[str, list[int]] = {}
    for position, document in enumerate(documents(), start=1):
        if _short_digest(document.doc_id) in suspects:
            positions.setdefault(document.doc_id, []).append(position)
    return {doc_id: found for doc_id, found in positions.items() if len(found) > 1}


def document_bytes(document: Document) -> bytes:
    """A document's id, title, text and image such that no two documents, nor sequences of them, give the same bytes.

    Each field is a mark (absent or present), its length, its UTF-8. Of an image only the file name counts: the same
    corpus in another folder is the same corpus.
    """
    image = document.image and document.image.rsplit("/", 1)[-1]
    return b"".join(map(_field_bytes, (document.doc_id, document.title, document.text, image)))


def _field_bytes(value: str | None) -> bytes:
    if value is None:
        return b"-"
    data = value.encode("utf-8")
    return b"+" + len(data).to_bytes(8, "little") + data


def _short_digest(doc_id: str) -> int:
    return int.from_bytes(blake2b(doc_id.encode("utf-8"), digest_size=8).digest(), "little")


def _repeated(short: array[int]) -> frozenset[int]:
    """Values that occur more than once; sorts `short` in place, which saves a copy."""
    values = np.frombuffer(short, dtype=np.uint64)
    values.sort()
    return frozenset(values[1:][values[1:] == values[:-1]].tolist())
