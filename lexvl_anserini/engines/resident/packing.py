"""Writes the file of resident postings from Lucene's postings, some terms at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.engines.index_folder import resident_paths
from lexvl_anserini.engines.jvm import attend, java_errors, our_class
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, opened_reader, segments_of
from lexvl_anserini.engines.lucene.versions import commit_id
from lexvl_anserini.engines.resident import plain_packing
from lexvl_anserini.engines.resident.layout import (
    BITMAP,
    GROUP,
    LEAST_ALIGNMENT,
    LENGTH_BYTES,
    NO_RANK,
    RESIDENT,
    TYPES,
    WIDTHS,
    Writer,
    column_lengths,
    open_sections,
    read_contents,
)

# Postings that one call of Java returns, 8 bytes each.
CHUNK = 1 << 22

# Up to so many postings, or ids, numpy packs them before the kernels would be loaded.
PLAIN_POSTINGS, PLAIN_IDS = 3 << 20, 1 << 18

# In place of the number of one segment.
ALL_SEGMENTS = -1


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


def write_files(index: Path, max_impact: int, there: Mapping[str, str]) -> list[dict[str, Any]]:
    """Writes the files of a Lucene index, one for each segment; removes others.

    Args:
        there: the names of files that are there, by the state of the segment each was written from; they stay.

    Returns:
        The files for index.json; none where the one file is of the last commit.
    """
    segments = segments_of(index)
    names = {place: there[segment.state] for place, segment in enumerate(segments) if segment.state in there}
    for path in resident_paths(index):
        if path.name not in names.values():
            path.unlink()
    if len(segments) == 1 and not names:
        write_resident(index, max_impact)
        return []
    # No new file is RESIDENT: older versions take that of the last commit for a file of all documents.
    free = (name for name in (f"resident-{number}.bin" for number in count(1)) if name not in there.values())
    for place in [place for place in range(len(segments)) if place not in names]:
        names[place] = next(free)
        write_resident(index, max_impact, names[place], place)
    files = [(names[place], read_contents(index, names[place])) for place in range(len(segments))]
    return [{"file": name, "commit": contents.commit} for name, contents in files if contents]


def write_resident(index: Path, max_impact: int, name: str = RESIDENT, segment: int = ALL_SEGMENTS) -> None:
    """Writes the file of a Lucene index, or of a segment; what had its name is lost."""
    with opened_reader(index) as reader:
        facts = _write_file(index, name, reader, max_impact, segment)
        if facts["max_impact"] > max_impact:
            # Older shards do not name their greatest impact.
            _write_file(index, name, reader, facts["max_impact"], segment)
    if facts["postings"] < PLAIN_POSTINGS:
        return
    from lexvl_anserini.engines.resident.searching import ResidentPostings

    # What searches need once per machine is compiled here, off their path.
    with (index / name).open("rb") as file:
        ResidentPostings(open_sections(file, index / name)).warm()


def _write_file(index: Path, name: str, reader: Any, max_impact: int, segment: int) -> dict[str, int]:
    """Writes the file for impacts as wide as this one; returns what its contents say about the postings."""
    width = next(width for width in WIDTHS if max_impact < 1 << 8 * width)
    segments = segments_of(index)
    documents = sum(part.documents for part in (segments if segment < 0 else [segments[segment]]))
    with (index / name).open("wb") as out:
        writer = Writer(out)
        facts = write_postings(writer, exported(reader, CONTENTS, segment), documents, width)
        facts |= write_ids(writer, exported(reader, ID, segment), documents)
        writer.finish({"commit": commit_id(index) or "", "documents": documents, "width": width, **facts})
    return facts


def packers(few: bool) -> Any:
    """The module that packs, by numpy for few postings or ids; both write the same bytes."""
    if few:
        return plain_packing
    from lexvl_anserini.engines.resident import packing_kernels

    return packing_kernels


def write_postings(writer: Writer, terms: Iterable[Lists], documents: int, width: int) -> dict[str, int]:
    """Writes the slots of all terms and the sections about them; returns what the contents say about them."""
    slots, names = [np.zeros(1, "<i8")], [np.empty(0, "<u1")]
    parts: dict[str, list[np.ndarray]] = {name: [np.empty(0, "<u4")] for name in Packed._fields[1:]}
    postings = 0
    for lists in terms:
        room, last = _room(lists, width), np.empty(len(lists.ends), "<i8")
        few = postings + len(lists.documents) < PLAIN_POSTINGS
        size, count = packers(few).pack(lists, documents, width, last, room)
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
    size = packers(len(order) < PLAIN_IDS).front_code(names, lengths, holders, coded, ends)
    writer.section("ids", coded[:size])
    writer.section("id_ends", ends)
    return {"ids": len(order), "longest_id": int(lengths.max(initial=0))}


def exported(reader: Any, field: str, segment: int = ALL_SEGMENTS) -> Iterator[Lists]:
    """The posting lists of a field in the order of its terms, some terms at a time; of a segment by its own numbers."""
    static = our_class("PostingsExport")
    with java_errors("the index cannot be read"):
        export = static(reader, field, segment)
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
