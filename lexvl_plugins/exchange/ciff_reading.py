"""Reads the Common Index File Format, an inverted index as one file (https://github.com/osirrc/ciff), plain or packed.

A CIFF file is a sequence of protobuf messages, each behind its length as a varint: a Header, as many PostingsLists as
the header says, as many DocRecords. A posting is the distance of its document to the one before, and an integer. The
package protobuf makes an object of each, and takes 25 times longer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from scipy import sparse

from lexvl_anserini.data.checks import check_id, show_id
from lexvl_anserini.data.lines import DAMAGED_GZIP, open_packed
from lexvl_anserini.engines.compiling import kernel
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.progress import Progress
from lexvl_anserini.ground.records import Vocabulary
from lexvl_anserini.shards.layout import Shard
from lexvl_anserini.shards.reading import MAX_IMPACT

VERSION = 1
# What protobuf allows a message to have, and what one call reads of it.
LONGEST_MESSAGE = 1 << 31
PIECE_BYTES = 1 << 24
# Protobuf's wire types. A field has one; a file with another is no CIFF.
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
HEADER_TYPES = {1: VARINT, 2: VARINT, 3: VARINT, 4: VARINT, 5: VARINT, 6: VARINT, 7: EIGHT_BYTES, 8: BYTES}
RECORD_TYPES = {1: VARINT, 2: BYTES, 3: VARINT}
# What is wrong with a PostingsList, and what `parse_list` says about one that is read.
FINE, CUT, OTHER_TYPE, NOT_ASCENDING, BEYOND, NO_IMPACT = range(6)
COUNT, TERM_START, TERM_END, FREQUENCY, DOCUMENT, VALUE = range(6)
PROBLEMS = {
    OTHER_TYPE: "a value after document {document:,} is no integer of protobuf, as CIFF has; quantise the weights",
    NOT_ASCENDING: "a document {value} after document {document:,}, expected a distance of 1 or more",
    BEYOND: "a document {value:,} after document {document:,}, the header says {documents:,} documents",
    NO_IMPACT: f"document {{document:,}} has the impact {{value:,}}, expected an integer from 1 to {MAX_IMPACT:,}",
}
# Postings that are sorted in memory at once, and their form on the disk until all are read.
CHUNK = 1 << 21
POSTING = np.dtype([("document", "<i4"), ("dimension", "<i4"), ("impact", "<i4")])


@kernel
def read_varint(raw: Any, at: int, end: int) -> Any:
    """Returns the number at a place, and the place after it, which is -1 where the number is cut off."""
    value, shift = np.int64(0), 0
    while at < end and shift < 70:
        octet = np.int64(raw[at])
        at += 1
        value |= (octet & 127) << shift
        if octet < 128:
            return value, at
        shift += 7
    return value, -1


@kernel
def read_field(raw: Any, at: int, end: int) -> Any:
    """Returns number, wire type and value of a field (of bytes: their number), and the places of its bytes and its end.

    The last is -1 where the field is cut off, or protobuf has no such type.
    """
    tag, at = read_varint(raw, at, end)
    field, wire, size = tag >> 3, tag & 7, np.int64(-1)
    after: Any = -1
    value, start = read_varint(raw, at, end) if at >= 0 else (np.int64(0), -1)
    if wire == VARINT:
        return field, wire, value, start, start
    if wire == BYTES:
        size, at = value, start
    elif wire == EIGHT_BYTES:
        size = np.int64(8)
    elif wire == FOUR_BYTES:
        size = np.int64(4)
    if at >= 0 and 0 <= size <= end - at:
        after = at + size
    return field, wire, value, start, after


@kernel
def parse_list(raw: Any, limit: int, most: int, documents: Any, impacts: Any, facts: Any) -> int:
    """Parses the PostingsList `raw`, uint8, into int32 documents and impacts; returns what is wrong with it.

    `facts`, int64 [6], receives the number of postings, the places of the term's bytes, the document frequency, and the
    document and the value of a posting that is wrong: a document from `limit` on, or an impact above `most`.
    """
    facts[:] = 0
    at, document, count = 0, np.int64(0), 0
    while at < len(raw):
        field, wire, value, start, at = read_field(raw, at, len(raw))
        if at < 0:
            return CUT
        if 1 <= field <= 4 and wire != (BYTES if field == 1 or field == 4 else VARINT):
            return OTHER_TYPE
        if field == 1:
            facts[TERM_START], facts[TERM_END] = start, at
        elif field == 2:
            facts[FREQUENCY] = value
        elif field == 4:
            gap, impact = np.int64(0), np.int64(0)
            while start < at:
                part, wire, value, _, start = read_field(raw, start, at)
                if start < 0:
                    return CUT
                if part == 1:
                    gap = value
                elif part == 2:
                    impact = value
                if 1 <= part <= 2 and wire != VARINT:
                    facts[DOCUMENT] = document
                    return OTHER_TYPE
            facts[DOCUMENT], facts[VALUE] = document, gap
            if gap < 0 or gap == 0 and count:
                return NOT_ASCENDING
            if gap >= limit - document:
                return BEYOND
            document += gap
            facts[DOCUMENT], facts[VALUE] = document, impact
            if not 1 <= impact <= most:
                return NO_IMPACT
            documents[count], impacts[count] = document, impact
            count += 1
    facts[COUNT] = count
    return FINE


class Messages:
    """The messages of an open file, one after the other; an error names the message that is wrong."""

    def __init__(self, source: BinaryIO, path: Path):
        self._source, self._path = source, path

    def read(self, what: str) -> bytes:
        """Reads the next message, which the file must have."""
        length, shift = 0, 0
        while octet := self._source.read(1):
            length |= (octet[0] & 127) << shift
            shift += 7
            if octet[0] < 128 or shift > 35:
                break
        if not octet or length >= LONGEST_MESSAGE:
            raise self.describe_cut(what)
        message = bytearray()
        while len(message) < length and (piece := self._source.read(min(length - len(message), PIECE_BYTES))):
            message += piece
        if len(message) < length:
            raise self.describe_cut(what)
        return bytes(message)

    def describe_cut(self, what: str) -> DataError:
        """Returns the error about a message that is not whole."""
        return DataError(f"{self._path}: cut off or damaged in {what}; copy or export the file again")

    def read_fields(self, what: str, types: Mapping[int, int]) -> dict[int, Any]:
        """Reads the fields of the next message by number: integers, or bytes; unknown ones too."""
        raw, at = np.frombuffer(self.read(what), np.uint8), 0
        values: dict[int, Any] = {}
        while at < len(raw):
            field, wire, value, start, at = read_field(raw, at, len(raw))
            if (expected := types.get(field, wire)) != wire:
                held = f"protobuf's wire type {wire}, expected {expected}"
                raise DataError(f"{self._path}: field {field} of {what} has {held}; this is no CIFF file")
            if at < 0:
                raise self.describe_cut(what)
            values[field] = value if wire == VARINT else raw[start:at].tobytes()
        return values


class Spill:
    """Postings that come term by term and are read `span` documents at a time, on the disk in between."""

    def __init__(self, file: Path, documents: int, span: int):
        self._file, self._out, self._span = file, file.open("w+b"), span
        self._documents, self._spans = documents, -(-documents // span)
        self._waiting: list[tuple[np.ndarray, int, np.ndarray]] = []
        self._size, self._written = 0, 0
        # For each chunk, the places where the postings of each span begin, and the end of the last.
        self._chunks: list[np.ndarray] = []

    def add(self, dimension: int, documents: np.ndarray, impacts: np.ndarray) -> None:
        """Adds the postings of a term."""
        self._waiting.append((documents, dimension, impacts))
        self._size += len(documents)
        if self._size >= CHUNK:
            self._write_chunk()

    def _write_chunk(self) -> None:
        documents, dimensions, impacts = zip(*self._waiting, strict=True)
        chunk = np.empty(self._size, POSTING)
        chunk["document"], chunk["impact"] = np.concatenate(documents), np.concatenate(impacts)
        chunk["dimension"] = np.repeat(dimensions, [len(each) for each in documents])
        spans = (chunk["document"] // self._span).astype(np.min_scalar_type(self._spans))
        self._chunks.append(np.concatenate([[0], np.cumsum(np.bincount(spans, minlength=self._spans))]) + self._written)
        chunk[np.argsort(spans, kind="stable")].tofile(self._out)
        self._written += self._size
        self._waiting, self._size = [], 0

    def read_spans(self, terms: int) -> Iterator[sparse.csr_matrix]:
        """Yields CSR [span, terms] int32 of each span of documents, and removes the file at the end."""
        if self._waiting:
            self._write_chunk()
        for number in range(self._spans):
            first = number * self._span
            rows = [self._read(places[number], places[number + 1]) for places in self._chunks]
            postings = np.concatenate([np.empty(0, POSTING), *rows])
            shape = (min(self._span, self._documents - first), terms)
            where = (postings["document"] - first, postings["dimension"])
            yield sparse.coo_matrix((postings["impact"], where), shape=shape).tocsr()
        self._out.close()
        self._file.unlink(missing_ok=True)

    def _read(self, start: int, end: int) -> np.ndarray:
        self._out.seek(int(start) * POSTING.itemsize)
        return np.fromfile(self._out, POSTING, int(end - start))


class CiffVectors:
    """The documents of a CIFF file; see `importing.Vectors`. Memory: a term's postings, and the ids."""

    integers, peaks = True, np.empty(0)

    def __init__(self, path: Path, room: Path, span: int, escape_ids: bool = False):
        self._path, self._span = path, span
        with ciff_errors(path), open_packed(path) as source:
            messages = Messages(source, path)
            header = messages.read_fields("the header", HEADER_TYPES)
            version, lists, self.documents = (header.get(field, 0) for field in (1, 2, 3))
            if version != VERSION or lists < 0 or not 0 < self.documents < 1 << 31:
                held = f"version {version}, num_postings_lists {lists}, num_docs {self.documents}"
                raise DataError(f"{path}: header with {held}; expected version {VERSION} and at least one document")
            self._spill = Spill(room / "postings.part", self.documents, span)
            terms = [self._read_list(messages, number, lists) for number in range(lists)]
            self._ids = self._read_records(messages, escape_ids)
            if source.read(1):
                last = f"document record {self.documents:,}, the header's last"
                raise DataError(f"{path}: more after {last}, expected the end of the file; export it again")
        self.terms: Sequence[str] = Vocabulary(terms, str(path)).terms

    def _read_list(self, messages: Messages, dimension: int, lists: int) -> str:
        """Reads a postings list, keeps its postings, and returns its term."""
        raw = np.frombuffer(messages.read(what := f"postings list {dimension + 1:,} of {lists:,}"), np.uint8)
        most = len(raw) // 4 + 1
        documents, impacts, facts = np.empty(most, "<i4"), np.empty(most, "<i4"), np.empty(6, np.int64)
        problem = parse_list(raw, self.documents, MAX_IMPACT, documents, impacts, facts)
        if problem == CUT:
            raise messages.describe_cut(what)
        name = raw[facts[TERM_START] : facts[TERM_END]].tobytes()
        where = f"{self._path}: {what}, term {show_id(name.decode('utf-8', 'replace'))}"
        if problem:
            numbers = {"document": facts[DOCUMENT], "value": facts[VALUE], "documents": self.documents}
            raise DataError(f"{where}: {PROBLEMS[problem].format(**numbers)}")
        count = int(facts[COUNT])
        if count != facts[FREQUENCY]:
            raise DataError(f"{where}: {count:,} postings, its document frequency says {facts[FREQUENCY]:,}")
        self._spill.add(dimension, documents[:count].copy(), impacts[:count].copy())
        return _decode(name, f"{where}: the term")

    def _read_records(self, messages: Messages, escape_ids: bool) -> list[str]:
        """Returns the ids of the documents in the order of their numbers."""
        numbers, ids = array("q"), []
        for number in range(self.documents):
            record = messages.read_fields(what := f"document record {number + 1:,} of {self.documents:,}", RECORD_TYPES)
            where = f"{self._path}: {what}"
            ids.append(check_id(_decode(record.get(2, b""), f"{where}: the id"), where, escape_ids))
            numbers.append(record.get(1, 0))
            if not 0 <= numbers[-1] < self.documents:
                raise DataError(f"{where}: document {numbers[-1]:,}, expected 0 to {self.documents - 1:,}")
        order = np.argsort(numbers)
        if (twice := np.flatnonzero(np.diff(np.asarray(numbers)[order]) == 0)).size:
            first, second = order[twice[0]], order[twice[0] + 1]
            both = f"{ids[first]!r} and {ids[second]!r}"
            raise DataError(f"{self._path}: two records of document {numbers[first]:,}, {both}")
        return [ids[place] for place in order.tolist()]

    def read_shards(self, progress: Progress) -> Iterator[Shard]:
        """Yields the documents, `span` at a time; CIFF has neither texts nor metadata."""
        first = 0
        for vectors in self._spill.read_spans(len(self.terms)):
            ids = self._ids[first : first + self._span]
            first += len(ids)
            yield Shard(ids, [""] * len(ids), vectors, metadata=[{}] * len(ids))
            progress(len(ids))


def _decode(text: bytes, what: str) -> str:
    """Decodes a text of a message."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{what} is not valid UTF-8; export the index again") from error


@contextmanager
def ciff_errors(path: Path) -> Iterator[None]:
    """Turns the errors of a file that cannot be read, or whose packing is damaged, into a DataError of one line."""
    try:
        yield
    except DAMAGED_GZIP as error:
        raise DataError(f"{path}: damaged gzip file ({error}); copy or export the file again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
