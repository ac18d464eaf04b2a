"""A run as columns: pyarrow parses regular files; `read_run` parses all others, and says what is wrong with them.

A file is regular if every line has one blank (or one tab) between its columns and none elsewhere, and the lines of a
topic are together. Both ways give the same values.

Arrays pass between pyarrow and NumPy as buffers and by DLPack: `pyarrow.array` and `to_numpy` import pandas, which
takes as long as reading a million lines.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

import numpy as np

from lexvl_anserini.data.lines import MOST_LINE, open_packed
from lexvl_anserini.ground.files import BOM
from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.runs.trec import LARGEST_RANK, read_run

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

# Bytes of a file that are parsed at once; a topic of more lines excepted. They fit a core's cache.
BLOCK_BYTES = 1 << 20

# The size of freed memory that glibc keeps for the next arrays, instead of returning it to the system after each.
KEPT_BYTES = 1 << 24

# Names of the columns by their number: TREC's, and MS MARCO's without scores.
COLUMNS = {6: ("query_id", "Q0", "doc_id", "rank", "score", "tag"), 3: ("query_id", "doc_id", "rank")}

# An odd number of 64 bits (2^64 over the golden ratio): multiplication by it spreads bits upwards.
SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Hits(NamedTuple):
    """The lines of whole topics; those of one topic are together, in the order of the file.

    Attributes:
        query_ids: of the topics, T of them.
        starts: [T + 1]: topic t has the lines from starts[t] to starts[t + 1].
        doc_ids: n texts, an array of pyarrow.
        prints: uint64 [n]: `fingerprints` of the doc_ids within their topics.
        ranks: [n] of an integer type.
        scores: float64 [n].
    """

    query_ids: list[str]
    starts: np.ndarray
    doc_ids: pyarrow.Array
    prints: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray

    def topics(self) -> np.ndarray:
        """The place of each line's topic in `query_ids`: [n]."""
        return np.repeat(np.arange(len(self.query_ids)), np.diff(self.starts))

    def read_ids(self, lines: np.ndarray) -> list[str]:
        """The doc ids of some lines."""
        ids: list[str] = _take_rows(self.doc_ids, lines).to_pylist()
        return ids

    def select_queries(self) -> np.ndarray:
        """The lines whose doc_id is their query_id, in order."""
        topics = self.topics()
        prints = fingerprints(build_text_array(self.query_ids), np.arange(len(self.query_ids)))
        lines = np.flatnonzero(self.prints == prints[topics])
        same = [self.query_ids[t] == doc_id for t, doc_id in zip(topics[lines], self.read_ids(lines), strict=True)]
        return lines[same]


class Irregular(Exception):
    """A file is not of the form that `parse_regular_hits` reads, or has an error."""


def map_run(path: Path, use: Callable[[Iterable[Hits]], T]) -> T:
    """What `use` makes of the hits of a run (see `read_run`); it gets them twice if a later line is irregular."""
    try:
        return use(parse_regular_hits(path))
    except Irregular:
        return use([read_hits(read_run(path, unscored=True))])


def read_hits(run: Iterable[ScoredDoc]) -> Hits:
    """Scored documents in any order as columns; topics in order of first appearance."""
    numbers: dict[str, int] = {}
    topics, doc_ids, ranks, scores = array("q"), list[str](), array("q"), array("d")
    for query_id, doc_id, rank, score in run:
        topics.append(numbers.setdefault(query_id, len(numbers)))
        doc_ids.append(doc_id)
        ranks.append(rank)
        scores.append(score)
    order = np.argsort(topics, kind="stable")
    topic_of_line, texts = np.asarray(topics)[order], _take_rows(build_text_array(doc_ids), order)
    return Hits(
        query_ids=list(numbers),
        starts=np.searchsorted(topic_of_line, np.arange(len(numbers) + 1)),
        doc_ids=texts,
        prints=fingerprints(texts, topic_of_line),
        ranks=np.asarray(ranks)[order],
        scores=np.asarray(scores)[order],
    )


def fingerprints(texts: pyarrow.Array, topics: np.ndarray) -> np.ndarray:
    """A hash of each text within its topic, uint64 [n]: texts of different hashes are different."""
    import pyarrow

    texts = texts.cast(pyarrow.large_string())
    _, places, letters = texts.buffers()
    ends = np.frombuffer(places, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    starts, lengths = ends[:-1], np.diff(ends)
    data = np.concatenate([np.frombuffer(letters or b"", np.uint8)[: ends[-1]], np.zeros(8, np.uint8)])
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))  # the eight bytes from each byte on
    masks = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # masks of the first n bytes
    mixed = _mix_bits(topics.astype(np.uint64), lengths.astype(np.uint64))
    for offset in range(0, int(lengths.max(initial=0)), 8):
        word = words[np.minimum(starts + offset, len(words) - 1)] & masks[np.clip(lengths - offset, 0, 8)]
        mixed = np.where(lengths > offset, _mix_bits(mixed, word), mixed)
    return mixed


def _mix_bits(state: np.ndarray, word: np.ndarray) -> np.ndarray:
    """A step of a hash: uint64 [n]; different words give different states."""
    state = (state * SPREAD) ^ word
    state = state * SPREAD
    return state ^ (state >> np.uint64(29))


def build_text_array(texts: Sequence[str]) -> pyarrow.Array:
    """Texts as an array of pyarrow."""
    import pyarrow

    letters = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, letters)], dtype=np.int64)
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(letters))]
    return pyarrow.Array.from_buffers(pyarrow.large_string(), len(texts), buffers)


def _take_rows(texts: pyarrow.Array, places: np.ndarray) -> pyarrow.Array:
    import pyarrow

    places = np.ascontiguousarray(places, np.int64)
    return texts.take(pyarrow.Array.from_buffers(pyarrow.int64(), len(places), [None, pyarrow.py_buffer(places)]))


def parse_regular_hits(path: Path) -> Iterator[Hits]:
    """The hits of a regular file, some topics at a time; raises Irregular for any other file and any error."""
    # Allocated and freed at once: from now on glibc keeps freed blocks of this size for the arrays below.
    np.empty(KEPT_BYTES, np.uint8)
    seen: set[str] = set()
    try:
        with open_packed(path) as source:
            for hits in _iter_whole_topics(source):
                if not seen.isdisjoint(hits.query_ids):
                    raise Irregular
                seen.update(hits.query_ids)
                yield hits
    except (OSError, EOFError, zlib.error) as error:
        raise Irregular from error


def _iter_whole_topics(source: BinaryIO) -> Iterator[Hits]:
    """Parses a file in pieces; the last topic of a piece waits for the next one, which may continue it."""
    pending, form = source.read(len(BOM)).removeprefix(BOM), None
    while piece := source.read(max(BLOCK_BYTES, len(pending))):
        pending += piece
        whole = pending[: pending.rfind(b"\n") + 1]
        if not whole:
            if len(pending) > MOST_LINE:
                raise Irregular
            continue
        form = form or _match_form(whole)
        hits = _parse(whole, *form)
        if len(hits.query_ids) > 1:
            lines = int(hits.starts[-2])
            yield Hits(hits.query_ids[:-1], hits.starts[:-1], *(column[:lines] for column in hits[2:]))
            last_lines = int(hits.starts[-1]) - lines
            pending = pending[len(whole.rsplit(b"\n", last_lines + 1)[0]) + 1 :]
    if pending:
        yield _parse(pending.removesuffix(b"\n") + b"\n", *(form or _match_form(pending)))


def _match_form(lines: bytes) -> tuple[bytes, int]:
    """The delimiter of a file and the number of its columns, from its first line."""
    line = lines.partition(b"\n")[0]
    delimiter = b"\t" if b"\t" in line else b" "
    return delimiter, line.count(delimiter) + 1


def _parse(lines: bytes, delimiter: bytes, width: int) -> Hits:
    import pyarrow
    from pyarrow import compute, csv

    if width not in COLUMNS or b"\r" in lines:  # which ends a line of pyarrow's
        raise Irregular
    text, names = pyarrow.string(), COLUMNS[width]
    types = {"query_id": text, "doc_id": text, "rank": pyarrow.int32(), "score": pyarrow.float64()}
    columns = [name for name in types if name in names]
    try:
        table = csv.read_csv(
            pyarrow.BufferReader(lines),
            csv.ReadOptions(use_threads=False, block_size=len(lines) + 1, column_names=names),
            csv.ParseOptions(delimiter=delimiter.decode(), quote_char=False),
            csv.ConvertOptions(column_types=types, null_values=[], include_columns=columns),
        )
        if not lines.isascii():
            lines.decode()
    except ValueError as error:  # pyarrow's errors are such, and those of UTF-8
        raise Irregular from error
    _check_letters(np.frombuffer(lines, np.uint8), table.num_rows, names)
    query_ids, doc_ids, ranks, *scores = (table[name].combine_chunks() for name in columns)
    topics = compute.run_end_encode(query_ids, run_end_type=pyarrow.int64())
    starts = np.concatenate([[0], np.from_dlpack(topics.run_ends)])
    hits = Hits(
        query_ids=topics.values.to_pylist(),
        starts=starts,
        doc_ids=doc_ids,
        prints=fingerprints(doc_ids, np.repeat(np.arange(len(topics.values)), np.diff(starts))),
        ranks=np.from_dlpack(ranks),
        scores=np.from_dlpack(scores[0]) if scores else 1 / np.maximum(np.from_dlpack(ranks), 1),
    )
    _check_hits(hits, scored=bool(scores))
    return hits


def _check_letters(letters: np.ndarray, rows: int, names: Sequence[str]) -> None:
    """Raises Irregular unless one blank ends each column; or for a hexadecimal rank, which pyarrow reads."""
    blanks = np.flatnonzero(letters <= ord(" "))
    if len(blanks) != rows * len(names) or blanks[0] == 0 or (blanks[1:] - blanks[:-1]).min(initial=2) < 2:
        raise Irregular
    second_of_rank = letters[blanks[names.index("rank") - 1 :: len(names)] + 2]
    if (second_of_rank | 32 == ord("x")).any():
        raise Irregular


def _check_hits(hits: Hits, scored: bool) -> None:
    """Raises Irregular for what `read_run` refuses, and for topics whose lines are not together."""
    regular = (
        len(set(hits.query_ids)) == len(hits.query_ids)
        and np.isfinite(hits.scores).all()
        and hits.ranks.min() >= -LARGEST_RANK
        and distinct(hits.prints)
    )
    if not scored:
        regular = regular and hits.ranks.min() > 0 and distinct(hits.topics() * (LARGEST_RANK + 1) + hits.ranks)
    if not regular:
        raise Irregular


def distinct(numbers: np.ndarray) -> bool:
    """Returns True if no number is there twice."""
    return len(np.unique(numbers)) == len(numbers)
