"""The kernels over resident postings, compiled by numba; they hold no lock of Python and keep nothing between calls.

Scores are sums of weight x impact in int32, exact below 2^24. A query is answered one block of 65,536 documents after
the other: its sums fit a core's cache. A slot is the part of a term's posting list in one block; `layout.py` describes
its three kinds.

Skipping: `most` bounds what a slot adds to a score. A block whose bounds sum to less than the k-th score is skipped.
Columns are added by descending bound, until the rest of the bounds leaves few documents that can reach the k-th score;
of these, the rest is looked up (MaxScore, Turtle and Flood 1995, over blocks). The sums of documents that a filter
excludes begin so low that few are looked at. What is looked at is compared with the filter, because impacts of deleted
documents have no bound, and lift their sums to anything. Where a filter leaves few documents of a block, their columns
are looked up alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.engines.compiling import kernel, prefetch
from lexvl_anserini.engines.resident.layout import BLOCK, GAPS, GROUP

MOST_SCORE = 1 << 24  # `SCORE_LIMIT`; what kernels read is in their package, whose digest names their code

# Documents of a block whose sums are made at once: 16 KiB, the part of a core's nearest cache that columns leave.
STRIP = 4096

CHUNK = 256  # sums of which the greatest is compared with the bar before each is

# Slots are read into the cache so many slots before they are added: of their addresses and of their impacts so many
# bytes.
AHEAD, AHEAD_BYTES = 4, 256

# Bytes of a line of the cache, and lines of a column that are read before it is added: then the processor goes on.
LINE, LINES = 64, 8

SAMPLED = 16  # a score that a hit of the first block has to reach is found among so many documents for each hit

# Looking up the remaining columns of one document costs about as much as adding one column to that many documents.
LOOKUP = 64

# Where the sums of excluded documents begin: those of documents that are not deleted stay negative.
EXCLUDED = -(1 << 30)

SORTED = 64  # queries with more columns than this are not sorted by bound: their weights are too flat for skipping

NONE: Any = np.int64(0)  # an argument that is a literal number makes numba compile the called function once more

# What the kernels know of a slot, side by side in memory: the first byte in `octets`; of a column the first impact in
# `impacts`, of others the kind, negative; the greatest impact; entries - 1.
SLOT = np.dtype([("place", "i8"), ("column", "i8"), ("most", "u4"), ("count", "u2"), ("block", "u2")])

# Three lists side by side: a query's terms, each with its first slot that is not behind the current block; the slots of
# the current block, with weights; and the columns among these, with their first impacts, weights and bounds.
TERM = np.dtype([("next", "i8"), ("slot", "i8"), ("weight", "i4"), ("factor", "i4"), ("column", "i8"), ("bound", "i8")])


class Postings(NamedTuple):
    """The arrays of an open file; S slots, V terms, D documents.

    starts    int64 [V + 2], the slots of term t are starts[t]..starts[t + 1], by ascending block; of term V, which
              stands for all that the index does not have, there are none
    slots     `SLOT` [S]
    octets    uint8, `shorts` uint16 and `impacts` the same bytes as numbers of each width
    rank      uint32 [D], a document's place in the order of ids
    """

    starts: np.ndarray
    slots: np.ndarray
    octets: np.ndarray
    shorts: np.ndarray
    impacts: np.ndarray
    rank: np.ndarray


class Queries(NamedTuple):
    """A batch: the terms and weights (int64) of query q are ends[q]..ends[q + 1]."""

    ends: np.ndarray
    terms: np.ndarray
    weights: np.ndarray


class Space(NamedTuple):
    """One thread's arrays, for queries of at most T terms.

    sums      int32 [BLOCK]
    keys      int64, at least twice the hits: the best so far
    terms     `TERM` [T]
    seen      int32 [P], all -1: where passages share a place, the key of each of P places; else empty
    """

    sums: np.ndarray
    keys: np.ndarray
    terms: np.ndarray
    seen: np.ndarray


@kernel
def search(postings: Postings, queries: Queries, allowed: Any, hits: int, space: Space, best: Any, counts: Any) -> Any:
    """Answers queries; returns the greatest number of hits of one.

    Args:
        allowed: uint8 [D], 1 for the documents that can be hits; empty if all can.
        best: int64 [queries, hits]; receives the keys of each query, in any order. A key is the score x 2^32 + 2^32 -
            1 - rank of the document, so that keys order as hits do. With `space.seen`, documents of one rank are
            passages, of which the best one counts.
        counts: int64 [queries]; receives the number of hits.
    """
    documents, most = len(postings.rank), 0
    for q in range(len(counts)):
        for i in range(queries.ends[q], queries.ends[q + 1]):
            space.terms[i - queries.ends[q]].next = postings.starts[queries.terms[i]]
        # The least score of a hit is 1.
        size, bar = NONE, np.int64(1) << 32
        for block in range((documents + BLOCK - 1) // BLOCK):
            present, bound = enter(postings, queries, q, block, space)
            if bound >= bar >> 32:
                size, bar = search_block(postings, present, block, allowed, space, hits, size, bar)
        for i in range(size):
            best[q, i] = space.keys[i]
        counts[q], most = size, max(most, size)
    return most


@kernel
def enter(postings: Postings, queries: Queries, q: int, block: int, space: Space) -> Any:
    """Finds the slots of a query in a block; returns their number and the greatest score that they allow."""
    start = queries.ends[q]
    present, bound = 0, np.int64(0)
    for i in range(start, queries.ends[q + 1]):
        slot = space.terms[i - start].next
        if slot < postings.starts[queries.terms[i] + 1] and postings.slots[slot].block == block:
            space.terms[i - start].next = slot + 1
            space.terms[present].slot = slot
            space.terms[present].weight = queries.weights[i]
            bound += bound_product(queries.weights[i], postings.slots[slot].most)
            present += 1
    return present, bound


@kernel
def bound_product(weight: Any, impact: Any) -> Any:
    """Bounds what a term adds to a score; only deleted documents have more, whose products could leave int64 in sum."""
    return min(np.int64(weight) * np.int64(impact), np.int64(MOST_SCORE))


@kernel
def search_block(
    postings: Postings, present: int, block: int, allowed: Any, space: Space, hits: int, size: int, bar: Any
) -> Any:
    """Adds a block's hits to the best so far; returns their number and the key of the last, once there are enough."""
    length = min(BLOCK, len(postings.rank) - block * BLOCK)
    sums = space.sums
    candidates = begin(allowed, block, length, sums)
    if candidates == 0:
        return size, bar
    columns, rest = add_slots(postings, present, space)
    if candidates * LOOKUP < length:
        return collect(postings, allowed, space, NONE, columns, block, max((bar >> 32) - rest, 0), hits, size, bar)
    # Without a bar every document can still be a hit.
    done = NONE
    if size == hits:
        for quarters in (3, 2, 1):
            upto = done
            while upto < columns and (rest > (bar >> 32) * quarters // 4 or upto % 4):
                rest -= space.terms[upto].bound
                upto += 1
            add_columns(postings.impacts, space, done, upto, length)
            done = upto
            if done == columns:
                break
            if check_reach(sums, length, (bar >> 32) - rest) * LOOKUP < length:
                return collect(postings, allowed, space, done, columns, block, (bar >> 32) - rest, hits, size, bar)
    add_columns(postings.impacts, space, done, columns, length)
    if size < hits:
        exclude(allowed, block, NONE, length, sums)
        bar = max(bar, np.int64(find_reached(space, length, hits)) << 32)
    return collect(postings, allowed, space, columns, columns, block, bar >> 32, hits, size, bar)


@kernel
def add_slots(postings: Postings, present: int, space: Space) -> Any:
    """Adds the products of the slots that are no columns; returns the number of columns and the sum of their bounds."""
    columns, rest = 0, np.int64(0)
    for i in range(present):
        slot, weight = postings.slots[space.terms[i].slot], space.terms[i].weight
        if i + AHEAD < present:
            read_ahead(postings, postings.slots[space.terms[i + AHEAD].slot])
        if slot.column >= 0:
            bound = bound_product(weight, slot.most)
            place_column(space.terms, columns, slot.column, weight, bound)
            columns += 1
            rest += bound
        elif slot.column == -GAPS:
            add_gaps(postings, slot, weight, space.sums)
        else:
            add_numbers(postings, slot, weight, space.sums)
    return columns, rest


@kernel
def read_ahead(postings: Postings, slot: Any) -> None:
    """Has the addresses and impacts of a slot read before they are needed."""
    if slot.column < 0:
        place, size = slot.place, np.int64(slot.count) + 1
        for at in range(place, place + min(size, AHEAD_BYTES) + LINE, LINE):
            prefetch(postings.octets, at)
            prefetch(postings.octets, at + size)


@kernel
def begin(allowed: Any, block: int, length: int, sums: Any) -> Any:
    """Sets the sums of a block to 0, those of excluded documents to `EXCLUDED`; returns how many are 0."""
    if len(allowed) == 0:
        for i in range(length):
            sums[np.uint64(i)] = 0
        return length
    first, candidates = np.uint64(block * BLOCK), np.int32(0)
    for i in range(length):
        allow = np.int32(allowed[first + np.uint64(i)])
        candidates += allow
        sums[np.uint64(i)] = (np.int32(1) - allow) * np.int32(EXCLUDED)
    return candidates


@kernel
def exclude(allowed: Any, block: int, low: int, high: int, sums: Any) -> None:
    """Makes the sums low..high of excluded documents negative, whatever was added to them."""
    if len(allowed) == 0:
        return
    first = np.uint64(block * BLOCK)
    for i in range(low, high):
        at = np.uint64(i)
        sums[at] = sums[at] if allowed[first + at] else np.int32(EXCLUDED)


@kernel
def place_column(terms: Any, columns: int, column: Any, weight: Any, bound: Any) -> None:
    """Puts a column among those before it, by descending bound."""
    at = columns
    while at > 0 and columns < SORTED and terms[at - 1].bound < bound:
        terms[at].column = terms[at - 1].column
        terms[at].factor = terms[at - 1].factor
        terms[at].bound = terms[at - 1].bound
        at -= 1
    terms[at].column = column
    terms[at].factor = weight
    terms[at].bound = bound


@kernel
def add_gaps(postings: Postings, slot: Any, weight: Any, sums: Any) -> None:
    """Adds the products of a slot of gaps."""
    count = np.uint64(slot.count) + np.uint64(1)
    gaps = np.uint64(slot.place)
    impacts = first_impact(postings, gaps + count)
    document = np.int64(-1)
    for i in range(count):
        document += np.int64(postings.octets[gaps + np.uint64(i)])
        # The mask keeps a damaged file from leading outside.
        at = np.uint64(document) & np.uint64(BLOCK - 1)
        sums[at] += weight * np.int32(postings.impacts[impacts + np.uint64(i)])


@kernel
def add_numbers(postings: Postings, slot: Any, weight: Any, sums: Any) -> None:
    """Adds the products of a slot of numbers."""
    count = np.uint64(slot.count) + np.uint64(1)
    numbers = np.uint64(slot.place) >> np.uint64(1)
    impacts = first_impact(postings, np.uint64(slot.place) + count + count)
    for i in range(count):
        document = np.uint64(postings.shorts[numbers + np.uint64(i)])
        sums[document] += weight * np.int32(postings.impacts[impacts + np.uint64(i)])


@kernel
def first_impact(postings: Postings, end: Any) -> Any:
    """The place in `impacts` of the first impact behind addresses that end at a byte."""
    width = np.uint64(postings.impacts.itemsize)
    return (end + width - np.uint64(1)) // width


@kernel
def add_columns(table: Any, space: Space, first: int, last: int, length: int) -> None:
    """Adds the products of the columns first..last of a block to its sums, eight columns at a time."""
    terms = space.terms
    for low in range(0, length, STRIP):
        high = min(low + STRIP, length)
        at = first
        while at + 8 <= last:
            for ahead in range(at + 8, min(at + 16, last)):
                for line in range(low, min(low + LINES * LINE, high), LINE):
                    prefetch(table, terms[ahead].column + line)
            (columns, factors), (others, further) = four(terms, at), four(terms, at + 4)
            add_some(table, columns + others, factors + further, space.sums, low, high)
            at += 8
        if at + 4 <= last:
            columns, factors = four(terms, at)
            add_some(table, columns, factors, space.sums, low, high)
            at += 4
        while at < last:
            add_some(table, (terms[at].column,), (terms[at].factor,), space.sums, low, high)
            at += 1


@kernel
def four(terms: Any, at: int) -> Any:
    """Four columns, and their weights."""
    a, b, c, d = terms[at], terms[at + 1], terms[at + 2], terms[at + 3]
    return (a.column, b.column, c.column, d.column), (a.factor, b.factor, c.factor, d.factor)


@kernel
def add_some(table: Any, columns: Any, factors: Any, sums: Any, low: int, high: int) -> None:
    """Adds columns, a tuple whose length the compiler knows, to the sums of the documents low..high."""
    for i in range(low, high):
        at, total = np.uint64(i), np.int32(0)
        for n in range(len(columns)):
            total += factors[n] * np.int32(table[np.uint64(columns[n]) + at])
        sums[at] += total


@kernel
def check_reach(sums: Any, length: int, least: Any) -> Any:
    """About how many sums are `least` or more, from a sample of them."""
    count, bar = np.int32(0), np.int32(least)
    for low in range(0, length, STRIP):
        for i in range(low, min(low + CHUNK, length)):
            count += np.int32(sums[np.uint64(i)] >= bar)
    return count * (STRIP // CHUNK)


@kernel
def collect(
    postings: Postings,
    allowed: Any,
    space: Space,
    first: int,
    last: int,
    block: int,
    least: Any,
    hits: int,
    size: int,
    bar: Any,
) -> Any:
    """Takes the documents whose sum is `least`, from 0 on, or more, with the columns first..last that the sums lack, if
    they beat the bar; returns the number of the best so far and the bar.
    """
    sums, keys, ranks = space.sums, space.keys, postings.rank[block * BLOCK :]
    length = min(BLOCK, len(ranks))
    for low in range(0, length, CHUNK):
        high = min(low + CHUNK, length)
        greatest = np.int32(0)
        for i in range(low, high):
            greatest = max(greatest, sums[np.uint64(i)])
        if greatest < least:
            continue
        exclude(allowed, block, low, high, sums)
        if size + CHUNK > len(keys):
            size, bar = keep_best(space, hits, size, bar)
            # Without columns to look up, a sum below the bar's score is out of reach.
            least = max(least, bar >> 32) if first == last else least
        if first == last:
            # Every key is written, and the next one over it if it is too low: no branch to guess.
            for i in range(low, high):
                keys[size] = make_key(sums[np.uint64(i)], ranks[np.uint64(i)])
                size += keys[size] >= bar
            continue
        for i in range(low, high):
            if sums[i] < least:
                continue
            score = np.int64(sums[i])
            for at in range(first, last):
                impact = postings.impacts[space.terms[at].column + i]
                score += np.int64(space.terms[at].factor) * np.int64(impact)
            keys[size] = make_key(score, ranks[i])
            size += keys[size] >= bar
    return keep_best(space, hits, size, bar)


@kernel
def make_key(score: Any, rank: Any) -> Any:
    """The key of a hit."""
    return (np.int64(score) << 32) | (np.int64(0xFFFFFFFF) - np.int64(rank))


@kernel
def find_reached(space: Space, length: int, hits: int) -> Any:
    """A score that at least so many of the first sums reach, and few more: a bar before any hit is known; else 1."""
    # Documents that share a place count as one hit.
    first = 0 if len(space.seen) else min(length, max(STRIP, SAMPLED * hits))
    low, high, count = np.int32(1), np.int32(0), np.int32(0)
    for i in range(first):
        high = max(high, space.sums[np.uint64(i)] + np.int32(1))
    while count != hits and high - low > 1:
        middle, count = np.int32((low + high) >> 1), np.int32(0)
        for i in range(first):
            count += np.int32(space.sums[np.uint64(i)] >= middle)
        low, high = (middle, high) if count >= hits else (low, middle)
    return low


@kernel
def keep_best(space: Space, hits: int, size: int, bar: Any) -> Any:
    """Keeps the best keys, of each place one; returns their number and the last one, once there are enough."""
    if len(space.seen):
        size = distinct(space.keys, size, space.seen)
    if size < hits:
        return size, bar
    select(space.keys, size, hits)
    return hits, space.keys[hits - 1]


@kernel
def distinct(keys: Any, size: int, seen: Any) -> int:
    """Moves the best key of each place to the front; returns their number."""
    number = 0
    for i in range(size):
        place = np.int64(0xFFFFFFFF) - (keys[i] & np.int64(0xFFFFFFFF))
        at = seen[place]
        if at < 0:
            seen[place] = number
            keys[number] = keys[i]
            number += 1
        elif keys[i] > keys[at]:
            keys[at] = keys[i]
    for i in range(number):
        seen[np.int64(0xFFFFFFFF) - (keys[i] & np.int64(0xFFFFFFFF))] = -1
    return number


@kernel
def select(keys: Any, size: int, hits: int) -> None:
    """Hoare's selection: keys[hits - 1] becomes what it would be in descending order, greater keys come before it."""
    low, high, place = 0, size - 1, hits - 1
    while low < high:
        pivot = keys[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while keys[i] > pivot:
                i += 1
            while keys[j] < pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            break


@kernel
def find_best(
    postings: Postings, queries: Queries, q: int, allowed: Any, space: Space, ends: Any, best: Any, sums: Any
) -> None:
    """Finds the best passages of each document for query q, from all passages: no bound tells how many count.

    Args:
        ends: int64 [P + 1]; the best passages of place p are best[ends[p]]..best[ends[p + 1]]; none where all count.
        best: int32; has the scores of other postings or 0, and receives those of the best of all, in descending order.
        sums: int64 [P]; receives the sums of documents all of whose passages count.
    """
    documents = len(postings.rank)
    for i in range(queries.ends[q], queries.ends[q + 1]):
        space.terms[i - queries.ends[q]].next = postings.starts[queries.terms[i]]
    for block in range((documents + BLOCK - 1) // BLOCK):
        length = min(BLOCK, documents - block * BLOCK)
        present = enter(postings, queries, q, block, space)[0]
        if present == 0 or begin(allowed, block, length, space.sums) == 0:
            continue
        columns = add_slots(postings, present, space)[0]
        add_columns(postings.impacts, space, NONE, columns, length)
        exclude(allowed, block, NONE, length, space.sums)
        for i in range(length):
            score = space.sums[i]
            if score <= 0:
                continue
            place = np.int64(postings.rank[block * BLOCK + i])
            first, at = ends[place], ends[place + 1] - 1
            if at < first:
                sums[place] += score
                continue
            if score <= best[at]:
                continue
            while at > first and best[at - 1] < score:
                best[at] = best[at - 1]
                at -= 1
            best[at] = score


@kernel
def add_up(ends: Any, best: Any, sums: Any) -> None:
    """Adds the scores of each document's best passages, as `find_best` leaves them, to its sum (int64)."""
    for place in range(len(sums)):
        for at in range(ends[place], ends[place + 1]):
            sums[place] += best[at]


@kernel
def spell_lists(front: Any, ends: Any, ranks: Any, counts: Any, stop: int, spelt: Any, list_ends: Any) -> bool:
    """Writes the ids of several lists one after the other, as `spell`; False for a damaged file.

    Args:
        ranks: int64 [lists, n], of which the first counts[i] are those of list i.
        list_ends: int64 [lists + 1], the first of which is 0; receives where each list ends in `spelt`.
    """
    touched: Any = np.int64(0)
    for i in range(len(counts)):
        # Ids lie anywhere in the file. Reading a byte of each first waits for memory once for many of them.
        for hit in range(counts[i]):
            group = ranks[i, hit] // GROUP
            if group >= len(ends) or len(front) == 0:
                return False
            touched += front[min(np.int64(ends[group - 1] if group else 0), len(front) - 1)]
        size = spell(front, ends, ranks[i, : counts[i]], stop, spelt[list_ends[i] :])
        if size < 0:
            return False
        list_ends[i + 1] = list_ends[i] + size
    # Always true, but the compiler does not know, and so does not leave the reading out.
    return touched >= 0


@kernel
def spell(front: Any, ends: Any, ranks: Any, stop: int, spelt: Any) -> int:
    """Writes the ids of these ranks, a line feed after each; returns the number of bytes, -1 for a damaged file.

    Args:
        front: uint8, the ids by rank, front-coded as `layout.py` describes; `ends` int64, where each group ends.
        stop: a byte that ends an id, unless it is the first; 0 for none.
        spelt: uint8, with room for the longest id for each rank.
    """
    size: Any = np.int64(0)
    bytes_front, room = np.int64(len(front)), np.int64(len(spelt))
    for rank in ranks:
        group = rank // GROUP
        if group >= len(ends):
            return -1
        at: Any = np.int64(ends[group - 1] if group else 0)
        length: Any = np.int64(0)
        for _ in range(rank % GROUP + 1):
            if at + 1 >= bytes_front:
                return -1
            # Unsigned places need no look whether they count from the end.
            shared, suffix, rest = np.int64(front[np.uint64(at)]), np.int64(front[np.uint64(at + 1)]), at + 2
            if (shared | suffix) >= 128:
                shared, rest = read_number(front, at)
                suffix, rest = read_number(front, rest)
            if shared > length or rest + suffix > bytes_front or size + shared + suffix >= room:
                return -1
            if suffix == 1:  # the most frequent one, for which a loop costs more than its byte
                spelt[np.uint64(size + shared)] = front[np.uint64(rest)]
            else:
                for i in range(suffix):
                    spelt[np.uint64(size + shared + i)] = front[np.uint64(rest + i)]
            length, at = shared + suffix, rest + suffix
        if stop:
            end = 1
            while end < length and spelt[size + end] != stop:
                end += 1
            length = min(length, end)
        size += length
        spelt[np.uint64(size)] = 10
        size += 1
    return size


@kernel
def read_number(octets: Any, at: Any) -> Any:
    """A number of 7 bits an octet, the lowest first, all but the last octet with its highest bit set; and its end."""
    number: Any = 0
    shift = 0
    while at < len(octets) and octets[at] & 128 and shift < 28:
        number |= np.int64(octets[at] & 127) << shift
        shift += 7
        at += 1
    # A number that ends outside is too large for whoever reads it.
    last = np.int64(octets[at]) if at < len(octets) else np.int64(len(octets))
    return number | last << shift, at + 1
