"""Approximate search: groups of similar documents, the best groups by their summaries, exact scores of their documents.

`approximate.bin` has the form of `resident.bin` (`layout.py`), in which a group takes the place of a document:
its postings are those of the summaries. Its ids are those of the documents. Further sections are

ranks    uint32, per document of Lucene its place in the order of ids
members  uint32, the documents that have terms, those of a group together; `groups` int64, where each group begins
starts   int64, terms uint16 (uint32 from 65,537 terms on) and impacts of the members: the vectors, in their order

A query adds up its summaries, as if groups were documents, and visits groups in the order of these sums. It scores all
documents of a group, by the whole query and their whole vectors, and ends when the next group's sum is below a share
(`reach`) of the score of the last hit. So every score is the dot product; a document of a group that is not visited is
missing from the list.

A set of documents is divided by seeds, some of these documents: each document goes to the seed of greatest cosine. The
parts are divided alike until they are small. No number is drawn: the same documents give the same groups. The summary
of a group has the greatest impact of each term among its documents (Bruch et al., "Efficient Inverted Indexes for
Approximate Retrieval over Learned Sparse Representations", SIGIR 2024); of these the largest, up to a share of their
sum, and the greatest of each term among all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from operator import mul
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.compiling import kernel
from lexvl_anserini.engines.engine import ImpactEngine, open_verified
from lexvl_anserini.engines.index_folder import (
    APPROXIMATE,
    MEASURED_HITS,
    PREPARE,
    REACHES,
    BuiltIndex,
    compute_mean_recall,
    read_commit_id,
    read_report,
    write_report,
)
from lexvl_anserini.engines.jvm import Exclusive, get_our_class
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, get_reader
from lexvl_anserini.engines.lucene.writing import read_source_manifest
from lexvl_anserini.engines.resident import packing
from lexvl_anserini.engines.resident.kernels import NONE, Queries, Space, search, select
from lexvl_anserini.engines.resident.layout import WIDTHS, Sections, Writer, open_sections
from lexvl_anserini.engines.resident.searching import ALL_DOCUMENTS, Hits, ResidentPostings, sort_hits
from lexvl_anserini.engines.verifying import change_index
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import sole_writer
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery
from lexvl_anserini.runs.order import RankedList

REMEDY = f"write it again with {PREPARE}"

# The types of the further sections; the width of the impacts, and that of terms by their number, as it is.
TYPES = MappingProxyType(
    {"ranks": "<u4", "members": "<u4", "groups": "<i8", "starts": "<i8", "vector_terms": "<u1", "vector_impacts": ""}
)
NARROW_TERMS = 1 << 16

# Groups that a query can visit: the best of so many, and of so many for each hit.
LEAST_GROUPS = 400
GROUPS_PER_HIT = 4

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
    """The summaries of groups, as `group` returns these, by ascending term, then group; `greatest` is int32 [terms]."""
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


class AllTerms(NamedTuple):
    """All terms: the greatest impact of each, int32; the lengths of their names, int32; the names, uint8."""

    greatest: np.ndarray
    lengths: np.ndarray
    names: np.ndarray


def write_approximate(index: Path) -> None:
    """Writes the file of a Lucene index; what had its name is lost."""
    with get_reader(index) as reader:
        documents = int(Exclusive(reader).maxDoc())
        vectors, terms = read_vectors(reader, documents)
        members, groups = group(vectors, len(terms.greatest))
        if not len(members):
            raise ArtefactError("no document of the index has a term; nothing to search approximately")
        path, number = index / APPROXIMATE, len(groups) - 1
        ids = Exclusive(get_our_class("IdCoder")(documents))
        ids.export(reader, ID, packing.ALL_SEGMENTS)
        with packing.make_slot_writer(path, number, int(terms.greatest.max())) as slots:
            for lists in list_groups(summaries(vectors, members, groups, terms.greatest), terms):
                packing.put_lists(slots, lists)
            with path.open("ab") as out:
                writer, facts = packing.continued(out, slots, number)
                writer.section("rank", [np.arange(number, dtype="<u4")])
                facts |= packing.write_ids(writer, ids, "ranks")
                write_vectors(writer, vectors, members, groups)
                writer.finish({"commit": read_commit_id(index) or "", **facts})


def read_vectors(reader: Any, documents: int) -> tuple[DocumentVectors, AllTerms]:
    """The vectors of all documents, and their terms in the order of their names; memory is 3 to 8 bytes a posting."""
    counts = np.zeros(documents, np.int64)
    chunks = [AllTerms(np.empty(0, "<i4"), np.empty(0, "<i4"), np.empty(0, "<u1"))]
    for lists in packing.exported(reader, CONTENTS):
        counts += np.bincount(lists.documents, minlength=documents)
        greatest = np.maximum.reduceat(lists.impacts, np.concatenate([[0], lists.ends[:-1]]))
        chunks.append(AllTerms(greatest, lists.lengths, lists.names))
    terms = AllTerms(*map(np.concatenate, zip(*chunks, strict=True)))
    width = next(width for width in WIDTHS if int(terms.greatest.max(initial=0)) < 1 << 8 * width)
    starts = np.concatenate([[0], np.cumsum(counts)])
    type_name = "<u2" if len(terms.greatest) <= NARROW_TERMS else "<u4"
    vectors = DocumentVectors(starts, np.empty(starts[-1], type_name), np.empty(starts[-1], WIDTHS[width]))
    free, first = starts[:-1].copy(), 0
    for lists in packing.exported(reader, CONTENTS):
        place(lists, first, free, vectors)
        first += len(lists.ends)
    return vectors, terms


@kernel
def place(lists: packing.Lists, first: int, free: Any, vectors: DocumentVectors) -> None:
    """Writes the postings of terms, numbered from `first` on, into the vectors; `free` is the next place of each."""
    at = 0
    for term in range(len(lists.ends)):
        while at < lists.ends[term]:
            document = lists.documents[at]
            vectors.terms[free[document]] = first + term
            vectors.impacts[free[document]] = lists.impacts[at]
            free[document] += 1
            at += 1


def list_groups(of_groups: Summaries, terms: AllTerms) -> Iterator[packing.Lists]:
    """The summaries as posting lists; every term has one."""
    ends = np.cumsum(np.bincount(of_groups.terms, minlength=len(terms.greatest)))
    named = np.cumsum(terms.lengths, dtype=np.int64)
    first = 0
    while first < len(ends):
        start = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, start + packing.CHUNK, side="right")))
        postings, names = slice(start, ends[last - 1]), slice(named[first - 1] if first else 0, named[last - 1])
        impacts, lengths = of_groups.impacts[postings], terms.lengths[first:last]
        yield packing.Lists(ends[first:last] - start, of_groups.groups[postings], impacts, lengths, terms.names[names])
        first = last


def write_vectors(writer: Writer, vectors: DocumentVectors, members: np.ndarray, groups: np.ndarray) -> None:
    """Writes the members of groups and their vectors."""
    lengths = np.diff(vectors.starts)[members]
    writer.section("members", [members.astype("<u4")])
    writer.section("groups", [groups])
    writer.section("starts", [np.concatenate([[0], np.cumsum(lengths)]).astype("<i8")])
    each = np.arange(len(members) + 1)
    for name, numbers in (("vector_terms", vectors.terms), ("vector_impacts", vectors.impacts)):
        chunks = (taken(vectors.starts, members[first:last], numbers) for first, last in spans(lengths, each))
        writer.section(name, chunks)


@kernel
def taken(starts: Any, members: Any, numbers: Any) -> Any:
    """The numbers of these documents, one document after the other."""
    size = 0
    for document in members:
        size += starts[document + 1] - starts[document]
    of_members = np.empty(size, numbers.dtype)
    at = 0
    for document in members:
        for i in range(starts[document], starts[document + 1]):
            of_members[at] = numbers[i]
            at += 1
    return of_members


class Groups(NamedTuple):
    """The documents of groups, for the kernel: those of group g are groups[g]..groups[g + 1] of the vectors.

    Their `ranks`, uint32 [members], are their places in the order of ids.
    """

    groups: np.ndarray
    ranks: np.ndarray
    vectors: DocumentVectors


def check_vectors(sections: Sections, path: Path) -> None:
    """Checks what the kernel relies on, as `layout.check_sections` does."""
    arrays, groups = sections.arrays, sections.contents.documents
    members, starts, postings = arrays["members"], arrays["starts"], len(arrays["vector_impacts"])
    whole = len(arrays["groups"]) == groups + 1 and len(starts) == len(members) + 1
    for places, end in ((arrays["groups"], len(members)), (starts, postings)):
        whole = whole and places[0] == 0 and places[-1] == end and bool((np.diff(places) >= 0).all())
    whole = whole and len(arrays["vector_terms"]) in (2 * postings, 4 * postings)
    whole = whole and int(members.max(initial=0)) < len(arrays["ranks"])
    whole = whole and bool((arrays["ranks"][members] < sections.contents.ids).all())
    if not whole or (arrays["rank"] != np.arange(groups)).any():
        raise ArtefactError(f"{path}: damaged, its vectors do not fit its groups; {REMEDY}")


class ApproximatePostings(ResidentPostings):
    """The groups and vectors of an open file, ready for queries; threads may call at once.

    A group is visited whose sum has the share `reach` of the last hit's score; `scored` counts documents so far.
    """

    name = "approximate"

    def __init__(self, file: BinaryIO, path: Path, reach: float = 1.0):
        sections = open_sections(file, path, TYPES)
        super().__init__(sections)
        self.reach, self.scored, self.counting = reach, 0, Lock()
        arrays = sections.arrays
        check_vectors(sections, path)
        terms, postings = arrays["vector_terms"], len(arrays["vector_impacts"])
        terms = terms.view("<u2" if len(terms) == 2 * postings else "<u4")
        self.grouped = Groups(
            arrays["groups"],
            arrays["ranks"][arrays["members"]],
            DocumentVectors(arrays["starts"], terms, arrays["vector_impacts"]),
        )
        # A term's number, whatever the file says, is inside: the kernel takes its lowest bits.
        self.width = 1 << max(self.absent, 1).bit_length()
        self.weights: list[np.ndarray] = []

    def at(self, reach: float) -> ApproximatePostings:
        """The same, at another reach."""
        other = copy(self)
        other.reach, other.scored = reach, 0
        return other

    def vector(self, member: int) -> dict[str, int]:
        """The vector of a document, by its place in the groups."""
        names, (starts, terms, impacts) = list(self.numbers), self.grouped.vectors
        part = slice(int(starts[member]), int(starts[member + 1]))
        return {names[t]: i for t, i in zip(terms[part].tolist(), impacts[part].tolist(), strict=True)}

    def _maxima(self, passages: Any, terms: Queries, allowed: np.ndarray, hits: int, space: Space) -> Hits:
        queries, most = len(terms.ends) - 1, self._groups(hits)
        sums, visitable = np.zeros((queries, most), np.int64), np.zeros(queries, np.int64)
        search(self.postings, terms, ALL_DOCUMENTS, most, space, sums, visitable)
        # Sums are greater than 0, which fills the rows.
        sums.sort(axis=1)
        try:
            weights = self.weights.pop()
        except IndexError:
            weights = np.zeros(self.width, np.int32)
        keys, counts = np.zeros((queries, hits), np.int64), np.zeros(queries, np.int64)
        scored = visit(self.grouped, terms, sums, visitable, self.reach, hits, weights, space.keys, keys, counts)
        self.weights.append(weights)
        with self.counting:
            self.scored += scored
        return sort_hits(keys[:, : int(counts.max())], counts)

    def _groups(self, hits: int) -> int:
        """The number of groups that a query can visit."""
        return min(len(self.grouped.groups) - 1, LEAST_GROUPS + GROUPS_PER_HIT * hits)

    def _space(self, hits: int, terms: int, documents: int) -> Space:
        return super()._space(max(hits, self._groups(hits)), terms, documents)


@kernel
def visit(
    grouped: Groups,
    queries: Queries,
    sums: Any,
    visitable: Any,
    reach: float,
    hits: int,
    weights: Any,
    keys: Any,
    best: Any,
    counts: Any,
) -> Any:
    """Scores the documents of the groups with the greatest sums; returns how many.

    Args:
        sums: int64 [queries, groups], keys of groups as `search` returns them, ascending, the last `visitable`.
        weights: int32, as many as a power of two from the number of terms on; 0 between calls.
        keys: int64, at least twice the hits.
        best: int64 [queries, hits], counts int64 [queries]: as `search` fills them.
    """
    starts, terms, impacts = grouped.vectors
    scored, mask = 0, np.uint64(len(weights) - 1)
    for q in range(len(counts)):
        for i in range(queries.ends[q], queries.ends[q + 1]):
            weights[queries.terms[i]] = queries.weights[i]
        size, bar = NONE, np.int64(1) << 32
        for i in range(sums.shape[1] - 1, sums.shape[1] - 1 - visitable[q], -1):
            if size >= hits and sums[q, i] >> 32 < reach * np.float64(bar >> 32):
                break
            number = np.int64(0xFFFFFFFF) - (sums[q, i] & np.int64(0xFFFFFFFF))
            for member in range(grouped.groups[number], grouped.groups[number + 1]):
                score = np.int32(0)
                for at in range(np.uint64(starts[member]), np.uint64(starts[member + 1])):
                    score += weights[np.uint64(terms[at]) & mask] * np.int32(impacts[at])
                if score < bar >> 32:
                    continue
                key = (np.int64(score) << 32) | (np.int64(0xFFFFFFFF) - np.int64(grouped.ranks[member]))
                if key < bar:
                    continue
                if size == len(keys):
                    select(keys, size, hits)
                    size, bar = hits, keys[hits - 1]
                keys[size] = key
                size += 1
            scored += grouped.groups[number + 1] - grouped.groups[number]
            if size >= hits and (size > hits + hits // 4 or bar == np.int64(1) << 32):
                select(keys, size, hits)
                size, bar = hits, keys[hits - 1]
        if size > hits:
            select(keys, size, hits)
            size = hits
        for i in range(size):
            best[q, i] = keys[i]
        counts[q] = size
        for i in range(queries.ends[q], queries.ends[q + 1]):
            weights[queries.terms[i]] = 0
    return scored


# Where the user has no queries, some terms of so many documents are queries. Few terms, drawn from all: the heaviest
# find the document and its like too easily. On mixtures of SPLADE's vectors, 16 terms have the recall of real queries.
SAMPLED = 200
QUERY_TERMS = 16
SEED = 20261125

MOST_QUERIES = 10_000  # the queries of a measurement, at most: their exact lists are in memory


def approximate(
    index: Path, opened: Callable[[Path, Manifest], ImpactEngine], queries: Sequence[ImpactQuery], source: str
) -> BuiltIndex:
    """Writes the groups and the measurement of an index, which `opened` opens; it changes whole or not at all."""
    if len(queries) > MOST_QUERIES:
        raise UsageError(f"{len(queries):,} queries to measure with, at most {MOST_QUERIES:,}; give some of them")
    jvm.start()
    read_source_manifest(index)  # refuses what cannot be searched exactly
    with sole_writer(index, folder=True), change_index(index) as part:
        manifest = read_source_manifest(part)
        # In a changed index the name is a link to the file of the older one.
        (part / APPROXIMATE).unlink(missing_ok=True)
        write_approximate(part)
        with (part / APPROXIMATE).open("rb") as file:
            postings = ApproximatePostings(file, part / APPROXIMATE)
        measuring = list(queries) or sample_queries(postings)
        with open_verified(opened(part, manifest)) as engine:
            exact = list(engine.search(measuring, MEASURED_HITS[-1]))
        settings = list(measure_settings(postings, measuring, exact))
        facts = {"queries": len(measuring), "source": source if queries else f"documents, {QUERY_TERMS} terms of each"}
        report = {**read_report(part), "approximate_bytes": (part / APPROXIMATE).stat().st_size}
        write_report(part, {**report, "approximation": {**facts, "settings": settings}}, manifest)
    return BuiltIndex(index, manifest)


def sample_queries(postings: ApproximatePostings) -> list[ImpactQuery]:
    """Some terms of documents at equal distances, as queries."""
    random, members = np.random.default_rng(SEED), len(postings.grouped.ranks)
    queries = []
    for number in np.unique(np.linspace(0, members - 1, SAMPLED).astype(int)).tolist():
        terms = list(postings.vector(number).items())
        vector = dict(terms[place] for place in random.permutation(len(terms))[:QUERY_TERMS])
        # Scores of such queries stay below the limit, if need be with fewer terms.
        most = postings.find_max_impacts(list(vector))
        share, room = min(1.0, SCORE_LIMIT / 2 / sum(map(mul, vector.values(), most))), SCORE_LIMIT - 1
        weights: dict[str, int] = {}
        for (term, impact), greatest in zip(vector.items(), most, strict=True):
            weight = max(1, int(impact * share))
            if weight * greatest <= room:
                weights[term], room = weight, room - weight * greatest
        queries.append(ImpactQuery(f"document {number}", weights))
    return queries


def measure_settings(
    postings: ApproximatePostings, queries: Sequence[ImpactQuery], exact: Sequence[RankedList]
) -> Iterator[dict[str, Any]]:
    """The settings for each length of lists, the fastest first; each finds more than the one before it."""
    for hits in MEASURED_HITS:
        ends = [(len(best), best.min(initial=np.inf)) for best in (of_query.scores[:hits] for of_query in exact)]
        most = 0.0
        for reach in REACHES:
            at = postings.at(reach)
            recall = compute_mean_recall(ends, [of_query.scores for of_query in at.lists(queries, hits, 1)])
            if recall > most:
                most, documents = recall, round(at.scored / len(queries), 1)
                # Rounded down: no setting promises more than it found.
                yield {"hits": hits, "reach": reach, "recall": int(recall * 10_000) / 10_000, "documents": documents}
            if recall == 1:
                break
