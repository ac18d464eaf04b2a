"""The file of resident postings, `resident.bin` beside Lucene's files.

Of an index that was appended to, each of Lucene's segments has such a file (`packing.write_files`).

Documents have Lucene's numbers and come in blocks of 65,536. A slot holds the postings of one term in one block. Slots
are in the order of terms (of their UTF-8 bytes), then of blocks, each at an even byte: the addresses of its documents,
then its impacts. Impacts have the width of the greatest, 1, 2 or 4 bytes, and are at multiples of it, as the slots are.

COLUMN   no addresses: the impact of every document of the block, 0 for none; for 1/8 of them on. It is at a multiple of
         64 bytes, and is read where it is mapped, so that all processes that search an index share it
GAPS     a byte a posting: the distance to the document before (the first to -1). Where it is above 255, entries of
         distance 255 and impact 0 come between
NUMBERS  uint16 a posting, where gaps would need more space

The sections follow, each at a multiple of 64 bytes: slots per term, the slots' blocks, kinds, counts and greatest
impacts, the terms, the documents' places in the order of ids, and the ids in this order, front-coded: in groups of 16,
each id as the length of the prefix that it shares with the id before it in the group, the length of the rest, the rest.
Then come the contents as JSON, their length (uint64), and the end of a file as Lucene's have it, with a CRC-32.
"""

from __future__ import annotations

import mmap
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson

from lexvl_anserini.engines.index_folder import CHECKSUM_BYTES, FOOTER, FOOTER_BYTES, RESIDENT
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.ground.typed import Entry, check
from lexvl_anserini.queries.clauses import QueryBatch
from lexvl_anserini.runs.order import RankedList, group_by_documents

FORMAT = "lexvl-resident/2"

BLOCK = 1 << 16

READ_BYTES = 1 << 26  # a mapped file that another program cuts short ends the process; smaller ones are read
COLUMN, GAPS, NUMBERS = range(3)

GROUP = 16  # ids that are coded together; of each group the first is whole

# Slots of impacts of one byte begin at multiples of this, others at multiples of their width; columns and sections at
# multiples of a line of the processor's cache.
LEAST_ALIGNMENT = 2
ALIGNMENT = 64

NO_RANK = 2**32 - 1  # the rank of a deleted document

# The part of a hit's key that holds 2^32 - 1 - rank, see `kernels.search`.
RANKS = 2**32 - 1
LENGTH_BYTES = 8

# The type of each section; that of `most` and of the impacts is the width's.
TYPES: Mapping[str, str] = MappingProxyType(
    {
        "octets": "<u1",
        "slots": "<u4",
        "block": "<u2",
        "kind": "<u1",
        "counts": "<u2",
        "most": "",
        "terms": "<u1",
        "rank": "<u4",
        "ids": "<u1",
        "id_ends": "<i8",
    }
)

WIDTHS: Mapping[int, str] = MappingProxyType({1: "<u1", 2: "<u2", 4: "<u4"})

REMEDY = "write it again with python -m lexvl_anserini.index SHARDS --index INDEX --check --repair"


class FileContents(Entry):
    """What the file holds.

    Attributes:
        commit: id of Lucene's commit that it was written from.
        documents: Lucene's number of documents, deleted ones included.
        postings: of documents that are not deleted, of which there are `ids`.
        width: bytes of an impact.
        longest_id: bytes of the longest id.
        sections: place and number of bytes of each section, by name.
    """

    format: str
    commit: str
    documents: int
    postings: int
    width: int
    ids: int
    longest_id: int
    sections: Mapping[str, list[int]]


class Sections(NamedTuple):
    """An open file: its contents, and its sections as read-only arrays over the mapped file."""

    contents: FileContents
    arrays: Mapping[str, np.ndarray]


class Writer:
    """Writes the file behind its slots (`SlotWriter.java`), of this size and CRC-32: the sections, then `finish`."""

    def __init__(self, out: BinaryIO, size: int, checksum: int):
        self._out, self._checksum, self._size = out, checksum, size
        self._sections = {"octets": [0, size]}

    def write(self, raw: Any) -> None:
        """Appends bytes."""
        self._out.write(raw)
        self._checksum = zlib.crc32(raw, self._checksum)
        self._size += len(raw)

    def section(self, name: str, chunks: Iterable[np.ndarray]) -> None:
        """Appends a section from its parts, each contiguous and of its type."""
        self.write(bytes(-self._size % ALIGNMENT))
        start = self._size
        for numbers in chunks:
            self.write(numbers.data.cast("B"))
        self._sections[name] = [start, self._size - start]

    def finish(self, contents: Mapping[str, Any]) -> None:
        """Appends the contents and the checksum."""
        raw = orjson.dumps({"format": FORMAT, **contents, "sections": self._sections})
        self.write(raw)
        self.write(len(raw).to_bytes(LENGTH_BYTES, "little") + FOOTER)
        self._out.write(self._checksum.to_bytes(CHECKSUM_BYTES, "big"))


def read_contents(index: Path, name: str = RESIDENT) -> FileContents | None:
    """What a file of an index holds; None without the file, or for one of another format."""
    path = index / name
    try:
        with path.open("rb") as file:
            return parse_contents(file, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArtefactError(f"{path}: cannot be read ({error.strerror or error}); {REMEDY}") from error


def parse_contents(file: BinaryIO, path: Path) -> FileContents | None:
    """What an open file holds; None for one of another format."""
    size = file.seek(0, 2)
    try:
        file.seek(size - FOOTER_BYTES - LENGTH_BYTES)
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        file.seek(size - FOOTER_BYTES - LENGTH_BYTES - length)
        contents = orjson.loads(file.read(length))
    except (OSError, ValueError, OverflowError) as error:
        raise ArtefactError(f"{path}: damaged, no contents at its end; {REMEDY}") from error
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        return None
    check(contents, FileContents, str(path), REMEDY)
    return FileContents(contents)


def open_sections(file: BinaryIO, path: Path, more: Mapping[str, str] = MappingProxyType({})) -> Sections:
    """Reads or maps the file; its sections, and those of `more`, stay readable when it is closed or replaced.

    What is read lies at the beginning of a page of memory too, so that columns keep their alignment.
    """
    contents = parse_contents(file, path)
    assert contents is not None, "read_contents comes first"
    file.seek(0)
    if os.fstat(file.fileno()).st_size > READ_BYTES:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    else:
        content = file.read()
        (memory := mmap.mmap(-1, len(content))).write(content)
        mapped = memoryview(memory).toreadonly()
    arrays = {}
    for name, type_name in (*TYPES.items(), *more.items()):
        start, length = contents.sections.get(name, (0, -1))
        if not 0 <= start <= start + length <= len(mapped):
            raise ArtefactError(f"{path}: damaged, its section {name} is not inside it; {REMEDY}")
        kind = np.dtype(type_name or WIDTHS.get(contents.width, WIDTHS[1]))
        arrays[name] = np.frombuffer(mapped, kind, length // kind.itemsize, start)
    sections = Sections(contents, arrays)
    if contents.width not in WIDTHS or contents.documents < 0:
        raise ArtefactError(f"{path}: damaged, impacts of {contents.width} bytes; {REMEDY}")
    check_sections(sections, path)
    return sections


def check_sections(sections: Sections, path: Path) -> None:
    """Checks what the kernels rely on: nothing in the file may lead them outside of it, whoever wrote it."""
    arrays, contents = sections.arrays, sections.contents
    slots, block = arrays["slots"].astype(np.int64), arrays["block"]
    total, documents = len(block), contents.documents
    whole = len(slots) > 0 and slots[0] == 0 and slots[-1] == total and bool((np.diff(slots) > 0).all())
    whole = whole and len(arrays["kind"]) == len(arrays["counts"]) == len(arrays["most"]) == total
    whole = whole and bool((block.astype(np.int64) * BLOCK < documents).all()) and len(arrays["rank"]) == documents
    whole = whole and bool((arrays["kind"] <= NUMBERS).all()) and len(arrays["terms"]) >= len(slots) - 1
    if whole and total:
        whole = int(place_slots(sections)[-1] + _measure_slots(sections)[-1]) == len(arrays["octets"])
    rank, ends = arrays["rank"], arrays["id_ends"]
    whole = whole and len(ends) == -(-contents.ids // GROUP) and bool((np.diff(ends, prepend=0) >= 0).all())
    whole = whole and (int(ends[-1]) if len(ends) else 0) == len(arrays["ids"])
    whole = whole and bool(((rank < contents.ids) | (rank == NO_RANK)).all())
    if not whole:
        raise ArtefactError(f"{path}: damaged, its sections do not fit each other; {REMEDY}")


def number_terms(sections: Sections) -> dict[str, int]:
    """The number of each term."""
    names = bytes(sections.arrays["terms"]).decode("utf-8", "replace").split("\0")
    return {term: number for number, term in enumerate(names[: len(sections.arrays["slots"]) - 1])}


def place_slots(sections: Sections) -> np.ndarray:
    """The first byte of each slot, int64 [S]."""
    sizes = _measure_slots(sections)
    places = np.cumsum(sizes) - sizes
    # Each column begins at such a multiple, so what is padded before it depends on what follows the column before.
    columns, padding = sections.arrays["kind"] == COLUMN, np.zeros_like(places)
    padding[columns] = -np.diff(places[columns], prepend=0) % ALIGNMENT
    return places + np.cumsum(padding)


def _measure_slots(sections: Sections) -> np.ndarray:
    """The number of bytes of each slot without those before a column, int64 [S]."""
    arrays, width, documents = sections.arrays, sections.contents.width, sections.contents.documents
    block, kind, entries = arrays["block"].astype(np.int64), arrays["kind"], arrays["counts"].astype(np.int64) + 1
    addresses = np.where(kind == GAPS, entries, 2 * entries)
    lists = -(-addresses // width) * width + entries * width
    sizes = np.where(kind == COLUMN, np.minimum(BLOCK, documents - block * BLOCK) * width, lists)
    to = max(width, LEAST_ALIGNMENT)
    return -(-sizes // to) * to


class Slot(NamedTuple):
    """The postings of one term in one block, by ascending documents; entries of impact 0 may come between."""

    documents: np.ndarray | slice
    impacts: np.ndarray


AnyQueries = QueryBatch | Sequence[ImpactQuery]


class PostingLists(ABC):
    """What answers queries from resident postings; of this many documents."""

    name = "resident"
    documents: int

    @abstractmethod
    def lists(
        self, queries: AnyQueries, hits: int, threads: int, allowed: np.ndarray | None = None, best: int = 0
    ) -> list[RankedList]:
        """One ranked list per query, whose scores are below 2^24.

        Args:
            allowed: uint8 [documents], 1 for those that can be hits; None if all can.
            best: from 1 on, hits are documents whose passages are in the index, scored by the sum of so many of them.
        """

    @abstractmethod
    def find_max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""

    def bounds(self, batch: QueryBatch) -> np.ndarray:
        """An upper bound of the score of any document for each query, float64 [queries]."""
        return batch.bounds(self.find_max_impacts)

    def _group_lists(
        self, batch: QueryBatch, hits: int, threads: int, allowed: np.ndarray | None, best: int
    ) -> list[RankedList]:
        """The lists of documents by their passages, from lists of passages."""

        def passages(some: Sequence[ImpactQuery], depth: int) -> list[RankedList]:
            return self.lists(some, min(depth, self.documents), threads, allowed)

        return list(group_by_documents(passages, map(ImpactQuery, batch.query_ids, batch.vectors), hits, best))


class PlainPostings(PostingLists):
    """The postings of an open file by numpy alone, in milliseconds: few queries need no Java and no compiler."""

    def __init__(self, sections: Sections):
        self.arrays, self.contents = sections.arrays, sections.contents
        self.documents = sections.contents.documents
        self.slots = self.arrays["slots"].astype(np.int64)
        self.places = place_slots(sections)
        self.numbers = number_terms(sections)

    def lists(
        self, queries: AnyQueries, hits: int, threads: int, allowed: np.ndarray | None = None, best: int = 0
    ) -> list[RankedList]:
        """One ranked list per query, by this thread alone."""
        batch = QueryBatch.build(queries)
        if best:
            return self._group_lists(batch, hits, threads, allowed, best)
        pairs = zip(batch.query_ids, batch.vectors, strict=True)
        return [self._list(query_id, vector, hits, allowed) for query_id, vector in pairs]

    def find_max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""
        spans = (self._span(term) for term in terms)
        return [int(self.arrays["most"][first:last].max(initial=0)) for first, last in spans]

    def impacts(self, number: int, terms: Iterable[str]) -> dict[str, int]:
        """The impact of the document of a number for each of `terms` that it has, in their order."""
        block, document = divmod(number, BLOCK)
        impacts: dict[str, int] = {}
        for term in terms:
            first, last = self._span(term)
            slot = first + int(np.searchsorted(self.arrays["block"][first:last], block))
            if slot < last and self.arrays["block"][slot] == block:
                postings = self._slot(slot)
                documents = np.r_[postings.documents]
                place = int(np.searchsorted(documents, block * BLOCK + document))
                if place < len(documents) and documents[place] == block * BLOCK + document:
                    impacts[term] = int(postings.impacts[place])
        return {term: impact for term, impact in impacts.items() if impact}

    def _list(self, query_id: str, vector: Mapping[str, int], hits: int, allowed: np.ndarray | None) -> RankedList:
        """The ranked list of a query whose scores are below 2^24."""
        sums = np.zeros(self.contents.documents, np.int32)
        try:
            for term, weight in vector.items():
                for slot in range(*self._span(term)):
                    documents, impacts = self._slot(slot)
                    sums[documents] += np.multiply(impacts, weight, dtype=np.int32)
            if allowed is not None:
                sums *= allowed
            positions = np.flatnonzero(sums)
            keys = (sums[positions].astype(np.int64) << 32) | (RANKS - self.arrays["rank"][positions].astype(np.int64))
            if len(keys) > hits:
                keys = np.partition(keys, len(keys) - hits)[-hits:]
            best = np.sort(keys)[::-1]
            lines = b"".join(self._id(rank) + b"\n" for rank in (RANKS - (best & RANKS)).tolist())
        except (IndexError, ValueError) as error:  # of a file whose content is not what its checksum says
            raise ArtefactError(f"topic {query_id!r}: resident postings are damaged; {REMEDY}") from error
        return RankedList(query_id, lines, (best >> 32).astype(np.float64))

    def _span(self, term: str) -> tuple[int, int]:
        """The slots of a term: from the first to before the last."""
        number = self.numbers.get(term)
        return (0, 0) if number is None else (int(self.slots[number]), int(self.slots[number + 1]))

    def _slot(self, slot: int) -> Slot:
        """The postings of a slot."""
        kind, octets = int(self.arrays["kind"][slot]), self.arrays["octets"]
        place, count = int(self.places[slot]), int(self.arrays["counts"][slot]) + 1
        first, width = int(self.arrays["block"][slot]) * BLOCK, self.contents.width
        if kind == COLUMN:
            last = min(first + BLOCK, self.contents.documents)
            end = place + (last - first) * width
            return Slot(slice(first, last), octets[place:end].view(WIDTHS[width]))
        end = place + (count if kind == GAPS else 2 * count)
        addresses = octets[place:end] if kind == GAPS else octets[place:end].view("<u2")
        documents = addresses.cumsum(dtype=np.int64) - 1 if kind == GAPS else addresses.astype(np.int64)
        start = -(-end // width) * width
        return Slot(documents + first, octets[start : start + count * width].view(WIDTHS[width]))

    def document(self, doc_id: str) -> int | None:
        """The number of the document with an id; None without one."""
        name, ends = doc_id.encode("utf-8", "surrogatepass"), self.arrays["id_ends"]
        low, high = 0, len(ends)
        while low < high:  # the last group that begins with this id or one before it
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._group(middle)[0] <= name else (low, middle)
        for place, other in enumerate(self._group(low - 1) if low else ()):
            if other == name:
                return int(np.flatnonzero(self.arrays["rank"] == (low - 1) * GROUP + place)[0])
        return None

    def _id(self, rank: int) -> bytes:
        """The id of a rank."""
        return self._group(rank // GROUP)[rank % GROUP]

    def _group(self, group: int) -> list[bytes]:
        """The ids of a group, in their order."""
        ids, ends = self.arrays["ids"], self.arrays["id_ends"]
        coded = bytes(ids[int(ends[group - 1]) if group else 0 : int(ends[group])])
        at, name, names = 0, b"", []
        while at < len(coded):
            shared, at = _number(coded, at)
            rest, at = _number(coded, at)
            name = name[:shared] + coded[at : at + rest]
            at += rest
            names.append(name)
        return names


def _number(coded: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, the lowest first, all but the last byte with its highest bit set; and its end."""
    number = shift = 0
    while coded[at] & 128:
        number |= (coded[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return number | coded[at] << shift, at + 1
