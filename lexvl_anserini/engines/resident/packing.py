"""Writes the file of resident postings.

Java packs posting lists into slots and codes the ids (`SlotWriter.java`, `IdCoder.java`): while Lucene's files are
written (`ImpactWriter.java`), from Lucene's files, or from lists that Python has. What the file has beside the slots
is added here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.index_folder import RESIDENT, list_resident_paths, read_commit_id
from lexvl_anserini.engines.jvm import Exclusive, attend, get_our_class, raise_java_errors
from lexvl_anserini.engines.lucene.fields import CONTENTS, ID, Segment, get_reader, open_whole_index
from lexvl_anserini.engines.resident.layout import TYPES, WIDTHS, Writer, open_sections, read_contents
from lexvl_anserini.ground.errors import ArtefactError

if TYPE_CHECKING:
    from scipy import sparse


CHUNK = 1 << 22  # postings that one call of Java returns, 8 bytes each

MANY_POSTINGS = 3 << 20  # searches of so many postings use kernels from the first query on

OF_SLOTS = ("slots", "block", "kind", "counts", "most", "terms")  # the sections about slots, in their order

ALL_SEGMENTS = -1  # in place of the number of one segment


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


def write_files(
    index: Path, segments: Sequence[Segment], max_impact: int, there: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Writes the files of a Lucene index, one for each of its segments; removes others.

    Files that are there, by the state of the segment each was written from, stay. Returns the files for index.json;
    none where the one file is of the last commit.
    """
    names: dict[int, str] = {}
    for place, segment in enumerate(segments):
        # Two segments that another index gave can be one but for what is deleted.
        if segment.state in there and there[segment.state] not in names.values():
            names[place] = there[segment.state]
    for path in list_resident_paths(index):
        if path.name not in names.values():
            path.unlink()
    if len(segments) == 1 and not names and not segments[0].deleted:
        write_resident(index, max_impact)
        return []
    # No new file is RESIDENT: older versions take that of the last commit for a file of all documents.
    free = (name for name in (f"resident-{number}.bin" for number in count(1)) if name not in there.values())
    for place in [place for place in range(len(segments)) if place not in names]:
        names[place] = next(free)
        write_resident(index, max_impact, names[place], place)
    contents = [(names[place], read_contents(index, names[place])) for place in range(len(segments))]
    files = [{"file": name, "commit": of_file.commit} for name, of_file in contents if of_file]
    for file, segment in zip(files, segments, strict=True):
        file |= {"live": segment.live} if segment.deleted else {}
    return [] if files == [{"file": RESIDENT, "commit": read_commit_id(index)}] else files


def write_resident(index: Path, max_impact: int, name: str = RESIDENT, segment: int = ALL_SEGMENTS) -> None:
    """Writes the file of a Lucene index, without what is deleted, or of a whole segment; what had its name is lost."""
    path = index / name
    with open_whole_index(index) as whole:
        segments = whole.segments()
    documents = sum(part.documents for part in (segments if segment < 0 else [segments[segment]]))
    with get_reader(index) as reader, raise_java_errors(f"{path}: cannot be written"):
        ids = Exclusive(get_our_class("IdCoder")(documents))
        ids.export(reader, ID, segment)
        # Older shards do not name their greatest impact.
        while True:
            with make_slot_writer(path, documents, max_impact) as slots:
                slots.export(reader, CONTENTS, segment)
                most = finish_resident(path, slots, ids, documents)
            if most <= max_impact:
                return
            max_impact = most


@contextmanager
def make_slot_writer(path: Path, documents: int, max_impact: int) -> Iterator[Exclusive]:
    """Yields a Java object that writes slots to a file, for impacts as wide as this one."""
    width = next(width for width in WIDTHS if max_impact < 1 << 8 * width)
    slots = Exclusive(get_our_class("SlotWriter")(str(path.absolute()), documents, width))
    try:
        yield slots
    finally:
        slots.close()


def finish_resident(path: Path, slots: Exclusive, ids: Exclusive, documents: int) -> int:
    """Adds to the slots in a file what it has beside them, for the index's last commit; returns the greatest impact.

    Compiles the kernels if searches of the file will use them: once per machine, off their path.
    """
    with path.open("ab") as out:
        writer, of_slots = continued(out, slots, documents)
        facts = {**of_slots, **write_ids(writer, ids)}
        writer.finish({"commit": read_commit_id(path.parent) or "", **facts})
    if facts["postings"] >= MANY_POSTINGS:
        from lexvl_anserini.engines.resident.searching import ResidentPostings

        with path.open("rb") as file:
            ResidentPostings(open_sections(file, path)).warm()
    return facts["max_impact"]


def continued(out: BinaryIO, slots: Exclusive, documents: int) -> tuple[Writer, dict[str, int]]:
    """The writer of the rest of a file that has slots, with their sections; and what the contents say about them."""
    size, checksum, postings, most, width = _numbers(slots.finish())
    writer = Writer(out, size, checksum)
    sections = {name: np.frombuffer(slots.section(name).tostring(), TYPES[name] or WIDTHS[width]) for name in OF_SLOTS}
    for name, numbers in sections.items():
        writer.section(name, [numbers])
    facts = {"documents": documents, "width": width, "postings": postings, "max_impact": most}
    return writer, facts


def write_ids(writer: Writer, ids: Exclusive, section: str = "rank") -> dict[str, int]:
    """Writes the order of ids, documents' places in it as `section`; returns what the contents say about them."""
    number, longest = _numbers(ids.finish())
    for name, part in ((section, "rank"), ("ids", "ids"), ("id_ends", "id_ends")):
        writer.section(name, [np.frombuffer(ids.section(part).tostring(), TYPES[part])])
    return {"ids": number, "longest_id": longest}


def put_lists(sink: Exclusive, lists: Lists) -> None:
    """Gives a Java object that takes posting lists some that Python has."""
    counts = np.diff(lists.ends, prepend=0)
    columns = (counts, lists.lengths, lists.documents, lists.impacts)
    sink.lists(*(column.astype("<i4").tobytes() for column in columns), lists.names.tobytes())


def _numbers(java: Any) -> list[int]:
    """The int64 of a Java array of bytes."""
    return np.frombuffer(java.tostring(), "<i8").tolist()


def exported(reader: Any, field: str, segment: int = ALL_SEGMENTS) -> Iterator[Lists]:
    """The posting lists of a field in the order of its terms, some terms at a time; of a segment by its own numbers."""
    static = get_our_class("PostingsExport")
    with raise_java_errors("the index cannot be read"):
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


class IndexVectors(NamedTuple):
    """The documents of an index by the order of their ids, its terms in its order, and impacts: CSR int64."""

    ids: list[str]
    terms: list[str]
    impacts: sparse.csr_matrix


def read_vectors(index: Path) -> IndexVectors:
    """Reads ids and postings of an index once: 16 bytes of memory a posting."""
    from scipy import sparse

    if not any(index.glob("segments_*")):
        raise ArtefactError(f"{index}: no Lucene index; build it with python -m lexvl_anserini.index")
    jvm.start()
    with get_reader(index) as reader:
        holders: dict[int, str] = {}
        for chunk in exported(reader, ID):
            names = np.array(read_names(chunk), object).repeat(np.diff(chunk.ends, prepend=0)).tolist()
            holders |= {number: name.decode() for number, name in zip(chunk.documents.tolist(), names, strict=True)}
        ids = sorted(holders.values())
        place = {doc_id: number for number, doc_id in enumerate(ids)}
        rows = np.full(max(holders, default=-1) + 1, -1, np.int32)
        for number, doc_id in holders.items():
            rows[number] = place[doc_id]
        terms, columns, documents, impacts = list[str](), [], [], []
        for chunk in exported(reader, CONTENTS):
            counts = np.diff(chunk.ends, prepend=0)
            columns.append(np.arange(len(terms), len(terms) + len(counts), dtype=np.int32).repeat(counts))
            terms += [name.decode() for name in read_names(chunk)]
            documents.append(rows[chunk.documents])
            impacts.append(chunk.impacts.astype(np.int64))
    if len(ids) < len(holders) or any((numbers < 0).any() for numbers in documents):
        raise ArtefactError(f"{index}: documents without an id of their own; index again")
    nothing = [np.zeros(0, np.int32)]
    places = np.concatenate(documents or nothing), np.concatenate(columns or nothing)
    values = np.concatenate(impacts or [np.zeros(0, np.int64)])
    return IndexVectors(ids, terms, sparse.csr_matrix((values, places), shape=(len(ids), len(terms))))


def read_names(chunk: Lists) -> list[bytes]:
    """The terms of some posting lists."""
    names, ends = chunk.names.tobytes(), np.cumsum(chunk.lengths).tolist()
    return [names[start:end] for start, end in pairwise([0, *ends])]
