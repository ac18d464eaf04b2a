"""The kernels that pack posting lists and ids into the file of resident postings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.engines.resident.compiling import kernel
from lexvl_anserini.engines.resident.layout import (
    BITMAP,
    BITMAP_SHARE,
    BLOCK,
    GAPS,
    GROUP,
    LARGEST_GAP,
    LEAST_ALIGNMENT,
    NUMBERS,
    PACKED_TOGETHER,
)

if TYPE_CHECKING:
    from lexvl_anserini.engines.resident.packing import Lists, Packed


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
