"""Groups documents whose vectors are similar, and sums up each group; compiled by numba.

A set of documents is divided by seeds, some of these documents: each document goes to the seed of greatest cosine. The
parts are divided alike until they are small. No number is drawn: the same documents give the same groups.

The summary of a group has the greatest impact of each term among its documents (Bruch et al., "Efficient Inverted
Indexes for Approximate Retrieval over Learned Sparse Representations", SIGIR 2024); of these the largest, up to a share
of their sum, and the greatest of each term among all groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.engines.compiling import kernel

GROUP_SIZE = 16  # documents of a group: about so many, and at most twice as many

MOST_SEEDS = 256  # parts that a set of documents is divided into at once

# Multiples of the golden ratio, without their whole parts, are spread evenly over all documents and have no period.
GOLDEN = (5**0.5 - 1) / 2

KEPT_SHARE = 0.6  # the share of a summary's sum of impacts that its largest ones make up, which are kept

CHUNK = 1 << 22  # postings of the groups that are summed up at a time


class DocumentVectors(NamedTuple):
    """Documents by their terms: those of document d are starts[d]..starts[d + 1].

    starts   int64 [documents + 1]
    terms    uint16 or uint32 [postings], numbers of terms, ascending in a document
    impacts  unsigned [postings]
    """

    starts: np.ndarray
    terms: np.ndarray
    impacts: np.ndarray


class Seeds(NamedTuple):
    """Room for the vectors of seeds, by their terms.

    head     int32 [terms], the first entry of each term; -1 between calls
    next     int32 [entries], the entry of the same term before; -1 without one
    seed     int32 [entries], weight float32 [entries]: of unit length per seed
    cosines  float32 [MOST_SEEDS]
    """

    head: np.ndarray
    next: np.ndarray
    seed: np.ndarray
    weight: np.ndarray
    cosines: np.ndarray


def group(vectors: DocumentVectors, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """The documents that have terms, int32, those of a group together; and where groups begin, int64 [groups + 1]."""
    lengths = np.diff(vectors.starts)
    entries = MOST_SEEDS * int(lengths.max(initial=1))
    seeds = Seeds(
        head=np.full(terms, -1, "i4"),
        next=np.empty(entries, "i4"),
        seed=np.empty(entries, "i4"),
        weight=np.empty(entries, "f4"),
        cosines=np.empty(MOST_SEEDS, "f4"),
    )
    stack, groups = [np.flatnonzero(lengths).astype("i4")], []
    while stack:
        documents = stack.pop()
        if len(documents) <= 2 * GROUP_SIZE:
            groups.append(documents)
            continue
        count = min(MOST_SEEDS, len(documents) // GROUP_SIZE)
        chosen = documents[(np.arange(count) * GOLDEN % 1 * len(documents)).astype(int)]
        nearest = np.empty(len(documents), "i4")
        assign(vectors, documents, chosen, seeds, nearest)
        order = np.argsort(nearest, kind="stable")
        parts = np.split(documents[order], np.cumsum(np.bincount(nearest, minlength=count))[:-1])
        parts = [part for part in parts if len(part)]
        # Documents that are all alike are divided in their order.
        stack += (parts if len(parts) > 1 else np.array_split(documents, count))[::-1]
    starts = np.cumsum([0, *map(len, groups)], dtype=np.int64)
    return np.concatenate([np.empty(0, "i4"), *groups]), starts


@kernel
def assign(vectors: DocumentVectors, documents: Any, chosen: Any, seeds: Seeds, nearest: Any) -> None:
    """Finds the seed of greatest cosine for each document; `chosen` are the documents that are seeds."""
    entries = 0
    for seed in range(len(chosen)):
        first, last = vectors.starts[chosen[seed]], vectors.starts[chosen[seed] + 1]
        length = np.float32(0)
        for at in range(first, last):
            length += np.float32(vectors.impacts[at]) ** 2
        length = np.sqrt(length)
        for at in range(first, last):
            term = vectors.terms[at]
            seeds.seed[entries] = seed
            seeds.weight[entries] = np.float32(vectors.impacts[at]) / length
            seeds.next[entries] = seeds.head[term]
            seeds.head[term] = entries
            entries += 1
    for i in range(len(documents)):
        for seed in range(len(chosen)):
            seeds.cosines[seed] = 0
        for at in range(vectors.starts[documents[i]], vectors.starts[documents[i] + 1]):
            impact, entry = np.float32(vectors.impacts[at]), seeds.head[vectors.terms[at]]
            while entry >= 0:
                seeds.cosines[seeds.seed[entry]] += impact * seeds.weight[entry]
                entry = seeds.next[entry]
        best = 0
        for seed in range(1, len(chosen)):
            if seeds.cosines[seed] > seeds.cosines[best]:
                best = seed
        nearest[i] = best
    for seed in range(len(chosen)):
        for at in range(vectors.starts[chosen[seed]], vectors.starts[chosen[seed] + 1]):
            seeds.head[vectors.terms[at]] = -1


class Summaries(NamedTuple):
    """Postings of summaries: int32 group, term and impact of each."""

    groups: np.ndarray
    terms: np.ndarray
    impacts: np.ndarray


def summaries(vectors: DocumentVectors, members: np.ndarray, starts: np.ndarray, greatest: np.ndarray) -> Summaries:
    """The summaries of all groups, by ascending term, then group.

    Args:
        members, starts: as `group` returns them.
        greatest: int32 [terms], the greatest impact of each term.
    """
    sums, touched = np.zeros(len(greatest), "i4"), np.empty(len(greatest), "i4")
    chunks = [Summaries(*(np.empty(0, "i4"),) * 3)]
    for first, last in spans(np.diff(vectors.starts)[members], starts):
        postings = int(np.diff(vectors.starts)[members[starts[first] : starts[last]]].sum())
        room = Summaries(*(np.empty(postings, "i4") for _ in range(3)))
        count = sum_up(vectors, members, starts, (first, last), greatest, sums, touched, room)
        chunks.append(Summaries(*(numbers[:count].copy() for numbers in room)))
    joined = Summaries(*map(np.concatenate, zip(*chunks, strict=True)))
    order = np.argsort(joined.terms, kind="stable")
    return Summaries(*(numbers[order] for numbers in joined))


def spans(lengths: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Spans of groups whose members, of these numbers of postings, have about `CHUNK` together."""
    ends = np.concatenate([[0], np.cumsum(lengths)])[starts]
    first = 0
    while first < len(starts) - 1:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + CHUNK, side="right")) - 1)
        yield first, last
        first = last


@kernel
def sum_up(
    vectors: DocumentVectors,
    members: Any,
    starts: Any,
    span: Any,
    greatest: Any,
    most: Any,
    touched: Any,
    room: Summaries,
) -> Any:
    """Writes the summaries of the groups span[0]..span[1]; returns their number of postings.

    `most` is int32 [terms], 0 between calls; `touched` int32 [terms].
    """
    size = 0
    for number in range(span[0], span[1]):
        count = 0
        for i in range(starts[number], starts[number + 1]):
            for at in range(vectors.starts[members[i]], vectors.starts[members[i] + 1]):
                term = np.int64(vectors.terms[at])
                if most[term] == 0:
                    touched[count] = term
                    count += 1
                most[term] = max(most[term], np.int32(vectors.impacts[at]))
        impacts = np.empty(count, np.int64)
        for i in range(count):
            impacts[i] = most[touched[i]]
        impacts = np.sort(impacts)
        left, at = KEPT_SHARE * np.float64(impacts.sum()), count
        while at > 0 and left > 0:
            at -= 1
            left -= impacts[at]
        for i in range(count):
            term = touched[i]
            if most[term] >= impacts[at] or most[term] == greatest[term]:
                room.groups[size] = number
                room.terms[size] = term
                room.impacts[size] = most[term]
                size += 1
            most[term] = 0
    return size
