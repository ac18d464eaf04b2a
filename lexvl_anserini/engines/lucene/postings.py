"""Reads single documents: their impacts for given terms from the postings, their vectors, their texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.jvm import java_calls, java_class, java_errors, our_class
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, TEXT, close, open_reader
from lexvl_anserini.ground.errors import DataError, UsageError


@java_calls()
def impacts_of(reader: Any, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
    """The document's impact for each of the terms that it has, in their order.

    Each term's postings are entered at the document; nothing is scanned.
    """
    leaf, number = place_of(reader, doc_id)
    bytes_ref, frequencies = java_class("org.apache.lucene.util.BytesRef"), _postings().FREQS
    found: dict[str, int] = {}
    with java_errors(f"document {doc_id!r} cannot be read"):
        held = leaf.terms(CONTENTS)
        if held is None:
            return found
        iterator = held.iterator()
        for term in terms:
            if iterator.seekExact(bytes_ref(term.encode())):
                postings = iterator.postings(None, frequencies)
                if postings.advance(number) == number:
                    found[term] = int(postings.freq())
    return found


@java_calls()
def vector_of(reader: Any, doc_id: str) -> dict[str, int]:
    """The document's whole vector, from its term vector.

    Raises:
        DataError: the index has no such document.
        UsageError: the index was built without term vectors.
    """
    leaf, number = place_of(reader, doc_id)
    with java_errors(f"document {doc_id!r} cannot be read"):
        vectors = leaf.termVectors().get(number)
        held = None if vectors is None else vectors.terms(CONTENTS)
    if held is None:
        fields = leaf.getFieldInfos()
        # Lucene 10 renamed this method.
        has_vectors = getattr(fields, "hasTermVectors", None) or fields.hasVectors
        if fields.fieldInfo(CONTENTS) is None or not has_vectors():
            raise UsageError(
                "this index has no term vectors; build it with --term-vectors, or name the shards (--feedback-shards)"
            )
        return {}
    iterator = held.iterator()
    return {str(term.utf8ToString()): int(iterator.totalTermFreq()) for term in _terms(iterator)}


@java_calls()
def text_of(reader: Any, doc_id: str) -> str | None:
    """The document's text as it was indexed; None in an index without stored texts."""
    leaf, number = place_of(reader, doc_id)
    with java_errors(f"document {doc_id!r} cannot be read"):
        text = our_class("IndexCensus").stored(leaf, number, TEXT)
    return None if text is None else text.tostring().decode()


def stored_texts(index: Path, doc_ids: Iterable[str]) -> dict[str, str]:
    """Texts by document, from an index that stores them."""
    jvm.start()
    with java_errors(f"{index}: cannot be opened as a Lucene index"):
        reader = open_reader(index)
    try:
        return {doc_id: text_of(reader, doc_id) or "" for doc_id in doc_ids}
    finally:
        close(reader)


@java_calls()
def place_of(reader: Any, doc_id: str) -> tuple[Any, int]:
    """The segment that holds a document, and its number there.

    Raises:
        DataError: the index has no such document.
    """
    term = java_class("org.apache.lucene.index.Term")(ID, doc_id)
    with java_errors(f"document {doc_id!r} cannot be read"):
        leaves = reader.leaves()
        for place in range(leaves.size()):
            leaf = leaves.get(place).reader()
            postings, live = leaf.postings(term, _postings().NONE), leaf.getLiveDocs()
            while postings is not None and (number := postings.nextDoc()) != _postings().NO_MORE_DOCS:
                if live is None or live.get(number):
                    return leaf, int(number)
    raise DataError(f"no document {doc_id!r} in the index")


def _postings() -> Any:
    return java_class("org.apache.lucene.index.PostingsEnum")


def _terms(iterator: Any) -> Iterator[Any]:
    while (term := iterator.next()) is not None:
        yield term
