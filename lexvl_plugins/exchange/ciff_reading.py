"""Reads the Common Index File Format, an inverted index as one file (https://github.com/osirrc/ciff), plain or packed.

A CIFF file is a sequence of protobuf messages, each behind its length as a varint: a Header, as many PostingsLists as
the header says, as many DocRecords. A posting is the distance of its document to the one before, and an integer. The
format is read here, 28.5 million postings in 0.7 s of CPU time; the package protobuf makes an object of each, in 17 s.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from scipy import sparse

from lexvl_anserini.data.checks import checked_id, shown
from lexvl_anserini.data.lines import DAMAGED_GZIP, open_packed
from lexvl_anserini.engines.compiling import kernel
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.progress import Progress
from lexvl_anserini.ground.records import Vocabulary
from lexvl_anserini.shards.layout import Shard
from lexvl_anserini.shards.reading import MAX_IMPACT

VERSION = 1
HEADER = ("version", "num_postings_lists", "num_docs")
# What protobuf allows a message to have, and what one call reads of it.
LONGEST_MESSAGE = 1 << 31
PIECE_BYTES = 1 << 24
# Protobuf's wire types. A field has one; a file with another is no CIFF.
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
FIXED_BYTES = {EIGHT_BYTES: 8, FOUR_BYTES: 4}
HEADER_TYPES = {1: VARINT, 2: VARINT, 3: VARINT, 4: VARINT, 5: VARINT, 6: VARINT, 7: EIGHT_BYTES, 8: BYTES}
RECORD_TYPES = {1: VARINT, 2: BYTES, 3: VARINT}

# What is wrong with a PostingsList, and what `parse_list` says about one that is read.
FINE, CUT, OTHER_TYPE, NOT_ASCENDING, BEYOND, NO_IMPACT = range(6)
COUNT, TERM_START, TERM_END, FREQUENCY, DOCUMENT, VALUE = range(6)

# Postings that are sorted in memory at once, and their form on the disk until all are read.
CHUNK = 1 << 21
POSTING = np.dtype([("document", "<i4"), ("dimension", "<i4"), ("impact", "<i4")])


@kernel
def varint(raw: Any, at: int, end: int) -> Any:
    """The number at a place, and the place after it; -1 as that place where the number is cut off."""
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
def after(raw: Any, at: int, end: int, wire: int) -> Any:
    """The place after a value of a wire type; -1 where the value is cut off, or protobuf has no such type."""
    size = np.int64(-1)
    if wire == VARINT:
        return varint(raw, at, end)[1]
    if wire == BYTES:
        size, at = varint(raw, at, end)
    elif wire == EIGHT_BYTES:
        size = np.int64(8)
    elif wire == FOUR_BYTES:
        size = np.int64(4)
    return at + size if at >= 0 and 0 <= size <= end - at else -1


@kernel
def parse_list(raw: Any, limit: int, most: int, documents: Any, impacts: Any, facts: Any) -> int:
    """Parses a PostingsList; returns what is wrong with it.

    Args:
        raw: uint8, the message.
        limit: the number of documents.
        most: the greatest impact.
        documents, impacts: int32, receive the postings; a message of n bytes has n / 4 at most.
        facts: int64 [6], receives the number of postings, the places of the term's bytes, the document frequency, and
            of a posting that is wrong the document and the value.
    """
    facts[:] = 0
    at, end, document, count = 0, len(raw), np.int64(0), 0
    while at < end:
        tag, start = varint(raw, at, end)
        if start < 0:
            return CUT
        at = after(raw, start, end, tag & 7)
        if at < 0:
            return CUT
        field = tag >> 3
        if 1 <= field <= 4 and tag & 7 != (BYTES if field == 1 or field == 4 else VARINT):
            return OTHER_TYPE
        value, start = varint(raw, start, end)
        if field == 1:
            facts[TERM_START], facts[TERM_END] = start, at
        elif field == 2:
            facts[FREQUENCY] = value
        elif field == 4:
            gap, impact = np.int64(0), np.int64(0)
            while start < at:
                tag, start = varint(raw, start, at)
                if start < 0:
                    return CUT
                value = varint(raw, start, at)[0]
                start = after(raw, start, at, tag & 7)
                if start < 0:
                    return CUT
                if tag >> 3 == 1:
                    gap = value
                elif tag >> 3 == 2:
                    impact = value
                if 1 <= tag >> 3 <= 2 and tag & 7 != VARINT:
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

    def next(self, what: str) -> bytes:
        """The next message, which the file must have."""
        length, shift = 0, 0
        while octet := self._source.read(1):
            length |= (octet[0] & 127) << shift
            shift += 7
            if octet[0] < 128 or shift > 35:
                break
        if not octet or length >= LONGEST_MESSAGE:
            raise self.cut(what)
        pieces, left = [], length
        while left and (piece := self._source.read(min(left, PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        if left:
            raise self.cut(what)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def end(self, what: str) -> None:
        """Refuses bytes after the last message."""
        if self._source.read(1):
            raise DataError(f"{self._path}: more after {what}, expected the end of the file; export it again")

    def cut(self, what: str) -> DataError:
        """The error about a message that is not whole."""
        return DataError(f"{self._path}: cut off or damaged in {what}; copy or export the file again")

    def fields(self, what: str, types: Mapping[int, int]) -> dict[int, Any]:
        """The fields of the next message by number: integers, or bytes; unknown ones too."""
        raw, at = self.next(what), 0
        values: dict[int, Any] = {}
        try:
            while at < len(raw):
                tag, at = _number(raw, at)
                field, wire = tag >> 3, tag & 7
                if types.get(field, wire) != wire:
                    raise DataError(
                        f"{self._path}: field {field} of {what} has protobuf's wire type {wire}, expected "
                        f"{types[field]}; this is no CIFF file"
                    )
                if wire == VARINT:
                    values[field], at = _number(raw, at)
                    continue
                size, at = _number(raw, at) if wire == BYTES else (FIXED_BYTES[wire], at)
                values[field], at = raw[at : at + size], at + size
        except (IndexError, KeyError) as error:
            raise self.cut(what) from error
        if at > len(raw):
            raise self.cut(what)
        return values


def _number(raw: bytes, at: int) -> tuple[int, int]:
    """As `varint`, of bytes, which is faster for one number; a cut one raises IndexError."""
    value = shift = 0
    while (octet := raw[at]) > 127:
        value |= (octet & 127) << shift
        shift, at = shift + 7, at + 1
    value |= octet << shift
    return value - (1 << 64) if value >> 63 else value, at + 1


class Spill:
    """Postings that come term by term and are read document by document, on the disk in between.

    Memory: `CHUNK` postings, and one span of documents.

    Args:
        file: of 12 bytes a posting.
        documents: their number.
        span: documents that are read at once.
    """

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
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        chunk = np.empty(self._size, POSTING)
        chunk["document"] = np.concatenate([documents for documents, *_ in self._waiting])
        chunk["impact"] = np.concatenate([impacts for *_, impacts in self._waiting])
        lengths = [len(documents) for documents, *_ in self._waiting]
        chunk["dimension"] = np.repeat([dimension for _, dimension, _ in self._waiting], lengths)
        spans = (chunk["document"] // self._span).astype(np.min_scalar_type(self._spans))
        self._chunks.append(np.concatenate([[0], np.cumsum(np.bincount(spans, minlength=self._spans))]) + self._written)
        chunk[np.argsort(spans, kind="stable")].tofile(self._out)
        self._written += self._size
        self._waiting, self._size = [], 0

    def spans(self, terms: int) -> Iterator[sparse.csr_matrix]:
        """CSR [span, terms] int32 of each span of documents."""
        self._flush()
        for number in range(self._spans):
            first = number * self._span
            rows = [self._read(places[number], places[number + 1]) for places in self._chunks]
            postings = np.concatenate([np.empty(0, POSTING), *rows])
            shape = (min(self._span, self._documents - first), terms)
            where = (postings["document"] - first, postings["dimension"])
            yield sparse.coo_matrix((postings["impact"], where), shape=shape).tocsr()

    def _read(self, start: int, end: int) -> np.ndarray:
        self._out.seek(int(start) * POSTING.itemsize)
        return np.fromfile(self._out, POSTING, int(end - start))

    def close(self) -> None:
        """Removes the file."""
        self._out.close()
        self._file.unlink(missing_ok=True)


class CiffVectors:
    """The documents of a CIFF file; see `importing.Vectors`. Memory: a term's postings, and the ids.

    Args:
        path: a file whose name may end in .gz or .zst.
        room: a folder for a temporary file of 12 bytes a posting.
        span: documents that are read at once.
    """

    integers = True

    def __init__(self, path: Path, room: Path, span: int, escape_ids: bool = False):
        self._path = path
        terms: list[str] = []
        with ciff_errors(path), open_packed(path) as source:
            messages = Messages(source, path)
            lists, self.documents = self._header(messages)
            self._spill = Spill(room / "postings.part", self.documents, span)
            for number in range(lists):
                terms.append(self._read_list(messages, number, lists))
            self._ids = self._records(messages, escape_ids)
            messages.end(f"document record {self.documents:,}, the header's last,")
        self.terms: Sequence[str] = Vocabulary(terms, str(path)).terms
        self._span = span

    def _header(self, messages: Messages) -> tuple[int, int]:
        """The number of postings lists and of documents."""
        header = messages.fields("the header", HEADER_TYPES)
        version, lists, documents = (header.get(field, 0) for field in (1, 2, 3))
        if version != VERSION or lists < 0 or not 0 < documents < 1 << 31:
            values = ", ".join(f"{name} {header.get(field, 0)}" for field, name in enumerate(HEADER, start=1))
            raise DataError(
                f"{self._path}: header with {values}; expected version {VERSION} and the numbers of the lists and "
                "documents that follow, at least one document"
            )
        return lists, documents

    def _read_list(self, messages: Messages, dimension: int, lists: int) -> str:
        """Reads a postings list, keeps its postings, and returns its term."""
        raw = np.frombuffer(messages.next(what := f"postings list {dimension + 1:,} of {lists:,}"), np.uint8)
        most = len(raw) // 4 + 1
        documents, impacts, facts = np.empty(most, "<i4"), np.empty(most, "<i4"), np.empty(6, np.int64)
        problem = parse_list(raw, self.documents, MAX_IMPACT, documents, impacts, facts)
        if problem == CUT:
            raise messages.cut(what)
        name = raw[facts[TERM_START] : facts[TERM_END]].tobytes()
        count, document, value = (int(facts[place]) for place in (COUNT, DOCUMENT, VALUE))
        where = f"{self._path}: {what}, term {shown(name.decode('utf-8', 'replace'))}"
        if problem:
            raise DataError(f"{where}: {self._problem(problem, document, value)}")
        if count != facts[FREQUENCY]:
            raise DataError(f"{where}: {count:,} postings, its document frequency says {facts[FREQUENCY]:,}")
        try:
            term = name.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: the term is not valid UTF-8; export the index again") from error
        self._spill.add(dimension, documents[:count].copy(), impacts[:count].copy())
        return term

    def _problem(self, problem: int, document: int, value: int) -> str:
        """What is wrong with a posting."""
        if problem == NO_IMPACT:
            return (
                f"document {document:,} has the impact {value:,}, expected an integer from 1 to {MAX_IMPACT:,}, up to "
                "which scores are exact; quantise the weights with fewer bits, and leave out zeros"
            )
        if problem == NOT_ASCENDING:
            return (
                f"a document {value} after document {document:,}, expected a distance of 1 or more; a list has each "
                "document once, in ascending order"
            )
        if problem == BEYOND:
            return (
                f"a document {value:,} after document {document:,}, the header says {self.documents:,} documents "
                "(counted from 0; a posting has the distance to the document before)"
            )
        return f"a value after document {document:,} is no integer of protobuf; CIFF has integers, quantise the weights"

    def _records(self, messages: Messages, escape_ids: bool) -> list[str]:
        """The ids of the documents in the order of their numbers."""
        numbers, ids = array("q"), []
        for number in range(self.documents):
            record = messages.fields(what := f"document record {number + 1:,} of {self.documents:,}", RECORD_TYPES)
            where = f"{self._path}: {what}"
            try:
                ids.append(checked_id(record.get(2, b"").decode(), where, escape_ids))
            except UnicodeDecodeError as error:
                raise DataError(f"{where}: the id is not valid UTF-8; export the index again") from error
            numbers.append(record.get(1, 0))
            if not 0 <= numbers[-1] < self.documents:
                raise DataError(f"{where}: document {numbers[-1]:,}, expected 0 to {self.documents - 1:,}")
        order = np.argsort(numbers)
        if (twice := np.flatnonzero(np.diff(np.asarray(numbers)[order]) == 0)).size:
            raise DataError(
                f"{self._path}: two records of document {numbers[order[twice[0]]]:,}, {ids[order[twice[0]]]!r} and "
                f"{ids[order[twice[0] + 1]]!r}; expected one of each"
            )
        return [ids[place] for place in order.tolist()]

    def peaks(self) -> np.ndarray:
        """Integers need no scale."""
        raise NotImplementedError

    def shards(self, progress: Progress) -> Iterator[Shard]:
        """The documents, `span` at a time; CIFF has neither texts nor metadata."""
        first = 0
        for vectors in self._spill.spans(len(self.terms)):
            ids = self._ids[first : first + self._span]
            first += len(ids)
            yield Shard(ids, [""] * len(ids), vectors, metadata=[{}] * len(ids))
            progress(len(ids))
        self._spill.close()


@contextmanager
def ciff_errors(path: Path) -> Iterator[None]:
    """A file that cannot be read, or whose packing is damaged, as a DataError of one line."""
    try:
        yield
    except DAMAGED_GZIP as error:
        raise DataError(f"{path}: damaged gzip file ({error}); copy or export the file again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
