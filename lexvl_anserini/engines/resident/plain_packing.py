"""Packs posting lists and ids by numpy, into the bytes of `packing_kernels`: small indexes are packed before those are
loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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
    WIDTHS,
    starts_of,
)

if TYPE_CHECKING:
    from lexvl_anserini.engines.resident.packing import Lists, Packed


class PackedGroups(NamedTuple):
    """The impacts of bitmap slots, 64 at a time, packed behind a byte with their number of bits.

    impacts   [G, 64] of the width of the file, 0 behind the last of a slot
    slot      int64 [G], of each group
    bits      int64 [G], of the greatest impact of each group
    place     int64 [G], of each group among the packed impacts of its slot, in bytes
    sizes     int64 [G], bytes of each group
    packed    int64 [S], bytes of packed impacts of each slot
    """

    impacts: np.ndarray
    slot: np.ndarray
    bits: np.ndarray
    place: np.ndarray
    sizes: np.ndarray
    packed: np.ndarray


def pack(lists: Lists, documents: int, width: int, last: np.ndarray, room: Packed) -> tuple[int, int]:
    """Turns posting lists into slots; arguments and result as those of `packing_kernels.pack`."""
    postings = len(lists.documents)
    if not postings:
        last[:] = 0
        return 0, 0
    block = lists.documents // BLOCK
    terms = np.repeat(np.arange(len(lists.ends)), np.diff(lists.ends, prepend=0))
    starts = np.flatnonzero((np.diff(terms, prepend=-1) != 0) | (np.diff(block, prepend=-1) != 0))  # [S]
    counts = np.diff(starts, append=postings)
    slot = np.repeat(np.arange(len(starts)), counts)  # of each posting
    number = np.arange(postings) - starts[slot]  # of each posting in its slot
    local = lists.documents - block * BLOCK
    gaps = np.where(number == 0, local + 1, np.diff(local, prepend=0))
    fillers = (gaps - 1) // LARGEST_GAP
    block, entries = block[starts], counts + np.add.reduceat(fillers, starts)
    lengths = np.minimum(BLOCK, documents - block.astype(np.int64) * BLOCK)
    kind = np.where(entries * (1 + width) <= counts * (2 + width), GAPS, NUMBERS)
    kind[counts * BITMAP_SHARE >= lengths] = BITMAP
    entries = np.where(kind == GAPS, entries, counts)
    bits = np.flatnonzero(kind[slot] == BITMAP)
    groups = grouped(lists.impacts[bits].astype(WIDTHS[width]), number[bits], slot[bits], len(starts))
    # Behind its addresses, a slot has its impacts.
    addresses = np.where(kind == GAPS, entries, 2 * entries)
    addresses = np.where(kind == BITMAP, -(-lengths // 64) * 8, -(-addresses // width) * width)
    sizes, to = addresses + np.where(kind == BITMAP, groups.packed, entries * width), max(width, LEAST_ALIGNMENT)
    sizes = -(-sizes // to) * to
    places, size = starts_of(sizes), int(sizes.sum())
    octets = room.octets[:size]
    octets[:] = 0
    # The place of the entry of each posting of gaps; fillers are before it.
    gone = np.cumsum(fillers)
    entry = number + gone - (gone - fillers)[starts][slot]
    here = np.flatnonzero(kind[slot] == GAPS)
    put_gaps(octets, places[slot[here]] + entry[here], gaps[here], fillers[here])
    here = np.flatnonzero(kind[slot] == NUMBERS)
    octets.view("<u2")[places[slot[here]] // 2 + number[here]] = local[here]
    entry[here] = number[here]
    here = np.flatnonzero(kind[slot] != BITMAP)
    octets.view(WIDTHS[width])[(places + addresses)[slot[here]] // width + entry[here]] = lists.impacts[here]
    put_bitmaps(octets, places, np.where(kind == BITMAP, addresses, 0), slot[bits], local[bits])
    put_groups(octets, (places + addresses)[groups.slot] + groups.place, groups)
    most = np.maximum.reduceat(lists.impacts, starts)
    columns = {"block": block, "kind": kind, "counts": entries - 1, "most": most, "packed": groups.packed}
    for name, values in columns.items():
        getattr(room, name)[: len(starts)] = values
    last[:] = np.searchsorted(starts, lists.ends)
    return size, len(starts)


def grouped(impacts: np.ndarray, number: np.ndarray, slot: np.ndarray, slots: int) -> PackedGroups:
    """The groups of the postings of bitmap slots: impact, number in its slot, and slot of each."""
    begins = number % PACKED_TOGETHER == 0
    first = np.flatnonzero(begins)
    table = np.zeros((len(first), PACKED_TOGETHER), impacts.dtype)
    table[np.cumsum(begins) - 1, number % PACKED_TOGETHER] = impacts
    # The exponent of a float is the number of bits of an integer.
    bits = np.frexp(table.max(axis=1, initial=0).astype(np.float64))[1].astype(np.int64)
    sizes = 1 - -(np.diff(first, append=len(impacts)) * bits) // 8
    packed = np.bincount(slot[first], sizes, slots).astype(np.int64)
    return PackedGroups(table, slot[first], bits, starts_of(sizes) - starts_of(packed)[slot[first]], sizes, packed)


def put_gaps(octets: np.ndarray, places: np.ndarray, gaps: np.ndarray, fillers: np.ndarray) -> None:
    """Writes gaps at their places, behind as many entries of the largest gap as each needs."""
    octets[places] = gaps - fillers * LARGEST_GAP
    back = np.arange(fillers.sum()) - np.repeat(starts_of(fillers), fillers) + 1
    octets[np.repeat(places, fillers) - back] = LARGEST_GAP


def put_bitmaps(
    octets: np.ndarray, places: np.ndarray, lengths: np.ndarray, slot: np.ndarray, local: np.ndarray
) -> None:
    """Writes which documents the bitmap slots have.

    Args:
        places: int64 [S], the first byte of each slot; `lengths` in bytes, 0 of other slots.
        slot, local: of each posting of a bitmap slot its slot, and its document in the block.
    """
    starts = starts_of(lengths)
    digits = np.zeros(8 * int(lengths.sum()), bool)
    digits[8 * starts[slot] + local] = True
    octets[np.arange(len(digits) // 8) + np.repeat(places - starts, lengths)] = np.packbits(digits, bitorder="little")


def put_groups(octets: np.ndarray, places: np.ndarray, groups: PackedGroups) -> None:
    """Writes packed impacts, each group at its place."""
    octets[places] = groups.bits
    for bits in np.unique(groups.bits).tolist():
        same = np.flatnonzero(groups.bits == bits)
        digits = np.unpackbits(groups.impacts[same].view("u1"), axis=1, bitorder="little")
        digits = digits.reshape(len(same), PACKED_TOGETHER, -1)[:, :, :bits].reshape(len(same), -1)
        number = np.arange(8 * bits)
        there = number < groups.sizes[same, None] - 1
        octets[(places[same, None] + 1 + number)[there]] = np.packbits(digits, axis=1, bitorder="little")[there]


def front_code(names: np.ndarray, lengths: np.ndarray, holders: np.ndarray, coded: np.ndarray, ends: np.ndarray) -> int:
    """Codes ids as the file has them; arguments and result as those of `packing_kernels.front_code`."""
    raw, out = names.tobytes(), bytearray()
    place = start = 0
    previous = b""
    for length, documents in zip(lengths.tolist(), holders.tolist(), strict=True):
        name = raw[start : start + length]
        start += length
        for _ in range(documents):
            shared = common(previous, name) if place % GROUP else 0
            out += varying(shared) + varying(length - shared) + name[shared:]
            ends[place // GROUP] = len(out)
            previous, place = name, place + 1
    coded[: len(out)] = np.frombuffer(out, np.uint8)
    return len(out)


def common(first: bytes, second: bytes) -> int:
    """The number of bytes that both begin with."""
    most = min(len(first), len(second))
    return next((place for place in range(most) if first[place] != second[place]), most)


def varying(number: int) -> bytes:
    """A number in 7 bits a byte, the lowest first, all but the last with the highest bit set."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varying(number >> 7)
