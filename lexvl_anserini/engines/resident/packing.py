"""Writes the file of resident postings from Lucene's postings, some terms at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.engines.jvm import Exclusive, attend, java_errors, our_class
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, close, open_reader
from lexvl_anserini.engines.lucene.versions import commit_id
from lexvl_anserini.engines.resident.compiling import kernel
from lexvl_anserini.engines.resident.layout import (
    BITMAP,
    BITMAP_SHARE,
    BLOCK,
    GAPS,
    GROUP,
    LEAST_ALIGNMENT,
    LENGTH_BYTES,
    NO_RANK,
    NUMBERS,
    PACKED_TOGETHER,
    RESIDENT,
    TYPES,
    WIDTHS,
    Writer,
    column_lengths,
    open_sections,
)
from lexvl_anserini.engines.resident.searching import ResidentPostings

# Postings that one call of Java returns, 8 bytes each.
CHUNK = 1 << 22

LARGEST_GAP = 255


class Lists(NamedTuple):
    """Posting lists of some terms: those of term t are ends[t - 1]..ends[t].

    ends       int64 [terms]
    documents  int32 [postings], impacts int32 [postings]
    lengths    int32 [terms] of the names, which follow each other in `names`, uint8
    """

    ends: np.ndarray
    documents: np.ndarray
    impacts: np.ndarray
    lengths: np.ndarray
    names: np.ndarray


class Packed(NamedTuple):
    """Room for slots: their bytes; of each its block, kind, entries - 1, greatest impact, bytes of packed impacts."""

    octets: np.ndarray
    block: np.ndarray
    kind: np.ndarray
    counts: np.ndarray
    most: np.ndarray
    packed: np.ndarray


def write_resident(index: Path, max_impact: int) -> None:
    """Writes the file of a Lucene index; what had its name is lost."""
    with java_errors(f"{index}: cannot be read"):
        reader = open_reader(index)
    try:
        greatest = _write_file(index, reader, max_impact)
        if greatest > max_impact:
            # Older shards do not name their greatest impact.
            _write_file(index, reader, greatest)
    finally:
        close(reader)
    # What searches need once per machine is compiled here, off their path.
    with (index / RESIDENT).open("rb") as file:
        ResidentPostings(open_sections(file, index / RESIDENT)).warm()


def _write_file(index: Path, reader: Any, max_impact: int) -> int:
    """Writes the file for impacts as wide as this one; returns the greatest that was found."""
    width = next(width for width in WIDTHS if max_impact < 1 << 8 * width)
    documents = int(Exclusive(reader).maxDoc())
    with (index / RESIDENT).open("wb") as out:
        writer = Writer(out)
        facts = write_postings(writer, exported(reader, CONTENTS), documents, width)
        facts |= write_ids(writer, exported(reader, ID), documents)
        writer.finish({"commit": commit_id(index) or "", "documents": documents, "width": width, **facts})
    return facts["max_impact"]


def write_postings(writer: Writer, terms: Iterable[Lists], documents: int, width: int) -> dict[str, int]:
    """Writes the slots of all terms and the sections about them; returns what the contents say about them."""
    slots, names = [np.zeros(1, "<i8")], [np.empty(0, "<u1")]
    parts: dict[str, list[np.ndarray]] = {name: [np.empty(0, "<u4")] for name in Packed._fields[1:]}
    postings = 0
    for lists in terms:
        room, last = _room(lists, width), np.empty(len(lists.ends), "<i8")
        size, count = pack(lists, documents, width, last, room)
        writer.write(room.octets[:size].data)
        slots.append(slots[-1][-1] + last)
        names.append(np.insert(lists.names, np.cumsum(lists.lengths), 0))
        postings += len(lists.documents)
        for name, numbers in parts.items():
            numbers.append(getattr(room, name)[:count].copy())
    writer.slots_end()
    joined = {name: np.concatenate(numbers) for name, numbers in parts.items()}
    writer.section("slots", np.concatenate(slots).astype(TYPES["slots"]))
    joined["packed"] = joined["packed"][joined["kind"] == BITMAP]
    for name, values in joined.items():
        writer.section(name, values.astype(TYPES[name] or WIDTHS[width]))
    writer.section("terms", np.concatenate(names))
    columns = int(column_lengths(joined["block"], joined["kind"], documents).sum())
    return {"postings": postings, "max_impact": int(joined["most"].max(initial=0)), "columns": columns}


def write_ids(writer: Writer, ids: Iterable[Lists], documents: int, section: str = "rank") -> dict[str, int]:
    """Writes the order of ids, which are all in memory; returns what the contents say about them.

    Args:
        section: the name of the documents' places in this order.
    """
    chunks = [Lists(*(np.empty(0, "<i4"),) * 4, np.empty(0, "<u1")), *ids]
    order = np.concatenate([chunk.documents for chunk in chunks])
    rank = np.full(documents, NO_RANK, "<u4")
    rank[order] = np.arange(len(order), dtype="<u4")
    writer.section(section, rank)
    # A document number for each id: of two documents with one id, both have it.
    holders = np.concatenate([np.diff(chunk.ends, prepend=0) for chunk in chunks])
    lengths = np.concatenate([chunk.lengths for chunk in chunks]).astype(np.int64)
    names = np.concatenate([chunk.names for chunk in chunks])
    coded = np.empty(len(order) * 2 * LENGTH_BYTES + int((lengths * holders).sum()), "<u1")
    ends = np.empty(-(-len(order) // GROUP), "<i8")
    size = front_code(names, lengths, holders, coded, ends)
    writer.section("ids", coded[:size])
    writer.section("id_ends", ends)
    return {"ids": len(order), "longest_id": int(lengths.max(initial=0))}


def exported(reader: Any, field: str) -> Iterator[Lists]:
    """The posting lists of a field in the order of its terms, some terms at a time."""
    static = our_class("PostingsExport")
    with java_errors("the index cannot be read"):
        export = static(reader, field)
        for raw in _ahead(lambda: static.next(export, CHUNK).tostring()):
            terms, postings, size = np.frombuffer(raw, "<i4", 3).tolist()
            if not terms:
                return
            numbers = np.frombuffer(raw, "<i4", 2 * terms + 2 * postings, 12)
            counts, documents, impacts, lengths = np.split(numbers, np.cumsum([terms, postings, postings]))
            names = np.frombuffer(raw, "<u1", size, len(raw) - size)
            yield Lists(np.cumsum(counts, dtype=np.int64), documents, impacts, lengths, names)


def _ahead(make: Callable[[], bytes]) -> Iterator[bytes]:
    """What the calls of a function return, without end; each is made while the result before it is used."""

    def attended() -> bytes:
        attend()
        return make()

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(attended)
        while True:
            raw, coming = coming.result(), pool.submit(attended)
            yield raw


def _room(lists: Lists, width: int) -> Packed:
    """Enough for the slots of these lists, if each posting had one of its own."""
    postings = len(lists.documents)
    # Bits of 1/8 byte for each document of a block, in whole 8 bytes, of which 1/8 have postings; gaps need less.
    octets = postings * (LENGTH_BYTES + 1 + 2 * (1 + width) + max(width, LEAST_ALIGNMENT))
    types = ("<u2", "<u1", "<u2", "<u4", "<u4")
    return Packed(np.empty(octets, "<u1"), *(np.empty(postings, type_name) for type_name in types))


@kernel
def pack(lists: Lists, documents: int, width: int, last: Any, room: Packed) -> Any:
    """Turns posting lists into slots; returns the number of bytes and of slots.

    Args:
        documents: of the index.
        width: bytes of an impact.
        last: int64 [terms]; receives the number of slots up to each term.
    """
    size, slots, start = 0, 0, 0
    for term in range(len(lists.ends)):
        while start < lists.ends[term]:
            block = lists.documents[start] // BLOCK
            end, most, entries = measure(lists, start, lists.ends[term], block)
            count, length = end - start, min(BLOCK, documents - block * BLOCK)
            if count * BITMAP_SHARE >= length:
                kind, entries = BITMAP, count
                bits = put_bitmap(lists, start, end, length, room.octets, size)
                size = put_packed(lists, start, end, room.octets, bits)
                room.packed[slots] = size - bits
            elif entries * (1 + width) <= count * (2 + width):
                kind = GAPS
            else:
                kind, entries = NUMBERS, count
                size = put_numbers(lists, start, end, room.octets, size)
            if kind == GAPS:
                size = put_gaps(lists, start, end, width, room.octets, size)
            elif kind == NUMBERS:
                size = put_impacts(lists, start, end, width, room.octets, padded(room.octets, size, width))
            size = padded(room.octets, size, max(width, LEAST_ALIGNMENT))
            room.block[slots] = block
            room.kind[slots] = kind
            room.counts[slots] = entries - 1
            room.most[slots] = most
            slots, start = slots + 1, end
        last[term] = slots
    return size, slots


@kernel
def padded(octets: Any, size: int, to: int) -> int:
    """Writes zeros up to the next multiple, so that the same index has the same file."""
    while size % to:
        octets[size] = 0
        size += 1
    return size


@kernel
def measure(lists: Lists, start: int, end: int, block: int) -> Any:
    """Where a slot ends, its greatest impact, and its entries as gaps."""
    most, entries, before = 0, 0, block * BLOCK - 1
    at = start
    while at < end and lists.documents[at] // BLOCK == block:
        most = max(most, lists.impacts[at])
        entries += (lists.documents[at] - before - 1) // LARGEST_GAP + 1
        before = lists.documents[at]
        at += 1
    return at, most, entries


@kernel
def put_bitmap(lists: Lists, start: int, end: int, length: int, octets: Any, size: int) -> int:
    """Writes which documents a slot has, as bits."""
    bits = (length + 63) // 64 * 8
    octets[size : size + bits] = 0
    for at in range(start, end):
        document = lists.documents[at] % BLOCK
        octets[size + document // 8] |= 1 << document % 8
    return size + bits


@kernel
def put_packed(lists: Lists, start: int, end: int, octets: Any, size: int) -> int:
    """Writes a slot's impacts with as few bits as the greatest of 64 has."""
    for first in range(start, end, PACKED_TOGETHER):
        last, most, bits = min(first + PACKED_TOGETHER, end), 0, 0
        for at in range(first, last):
            most = max(most, lists.impacts[at])
        while most >> bits:
            bits += 1
        octets[size] = bits
        size += 1
        waiting, held = np.int64(0), 0
        for at in range(first, last):
            waiting |= np.int64(lists.impacts[at]) << held
            held += bits
            while held >= 8:
                octets[size] = waiting & 255
                waiting, held, size = waiting >> 8, held - 8, size + 1
        if held:
            octets[size] = waiting
            size += 1
    return size


@kernel
def put_numbers(lists: Lists, start: int, end: int, octets: Any, size: int) -> int:
    """Writes a slot's documents as numbers."""
    for at in range(start, end):
        document = lists.documents[at] % BLOCK
        octets[size] = document & 255
        octets[size + 1] = document >> 8
        size += 2
    return size


@kernel
def put_gaps(lists: Lists, start: int, end: int, width: int, octets: Any, size: int) -> int:
    """Writes a slot's documents as gaps, then its impacts."""
    first, before = size, -1
    for at in range(start, end):
        document = lists.documents[at] % BLOCK
        gap = document - before
        while gap > LARGEST_GAP:
            octets[size] = LARGEST_GAP
            gap -= LARGEST_GAP
            size += 1
        octets[size] = gap
        size += 1
        before = document
    gaps, impact, at = size - first, padded(octets, size, width), start
    before = -1
    for i in range(gaps):
        before += octets[first + i]
        there = at < end and lists.documents[at] % BLOCK == before
        put_number(lists.impacts[at] if there else 0, width, octets, impact + i * width)
        at += there
    return impact + gaps * width


@kernel
def put_impacts(lists: Lists, start: int, end: int, width: int, octets: Any, size: int) -> int:
    """Writes a slot's impacts."""
    for at in range(start, end):
        put_number(lists.impacts[at], width, octets, size)
        size += width
    return size


@kernel
def put_number(number: int, width: int, octets: Any, at: int) -> None:
    """Writes a number in `width` bytes, the lowest first."""
    for i in range(width):
        octets[at + i] = number >> 8 * i & 255


@kernel
def front_code(names: Any, lengths: Any, holders: Any, coded: Any, ends: Any) -> int:
    """Codes ids as the file has them; returns the number of bytes.

    Args:
        names: uint8, the ids in their order, one after the other; `lengths` of each, `holders` documents of each.
        coded: uint8, receives the bytes; `ends` int64, receives where each group ends.
    """
    size, place, start, before, length_before = 0, 0, 0, 0, 0
    for number in range(len(lengths)):
        length = lengths[number]
        for _ in range(holders[number]):
            shared = 0
            if place % GROUP:
                most = min(length, length_before)
                while shared < most and names[start + shared] == names[before + shared]:
                    shared += 1
            size = put_varying(shared, coded, size)
            size = put_varying(length - shared, coded, size)
            for i in range(shared, length):
                coded[size] = names[start + i]
                size += 1
            ends[place // GROUP] = size
            before, length_before, place = start, length, place + 1
        start += length
    return size


@kernel
def put_varying(number: int, coded: Any, at: int) -> int:
    """Writes a number in 7 bits a byte, the lowest first, all but the last with the highest bit set."""
    while number > 127:
        coded[at] = number & 127 | 128
        number >>= 7
        at += 1
    coded[at] = number
    return at + 1
