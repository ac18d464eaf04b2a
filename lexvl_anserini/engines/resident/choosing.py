"""Which code reads the resident postings of an index: by the user's choice, the memory, the index's size, whether the
kernels are compiled, and the number of queries; never by the time that answers took.

`LEXVL_POSTINGS` chooses: `auto` (default), `resident` for the kernels, `lucene` for Lucene's postings. With `auto`:

    more than half of the memory                       Lucene's postings
    at most `SMALL` postings                           numpy
    the kernels are compiled, and there are more than
    `FEW` queries or more than `MEDIUM` postings       the kernels
    at most `LARGE` postings                           numpy
    more                                               Lucene's postings

`python -m lexvl_anserini.index` compiles the kernels for an index that can use them, once per machine; so does
`prepare`. All of them give the same lists.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import RLock

import numpy as np

from lexvl_anserini.engines import index_folder
from lexvl_anserini.engines.jvm import measure_quarter_memory
from lexvl_anserini.engines.resident.layout import (
    BLOCK,
    REMEDY,
    AnyQueries,
    FileContents,
    PlainPostings,
    PostingLists,
    Sections,
    open_sections,
    read_contents,
)
from lexvl_anserini.engines.verifying import HeldFiles, Verification
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.machine import is_compiled, mark_compiled
from lexvl_anserini.ground.records import ImpactQuery
from lexvl_anserini.queries.clauses import QueryBatch
from lexvl_anserini.runs.order import RankedList, merge_lists, rank_hits

log = logging.getLogger(__name__)

VARIABLE = "LEXVL_POSTINGS"
AUTO, ALWAYS, NEVER = CHOICES = ("auto", "resident", "lucene")

SMALL = 10_000  # postings that numpy reads in a millisecond

# Loading the kernels takes half a second: longer than numpy takes for so few queries on an index of `MEDIUM` postings.
FEW = 8
MEDIUM = 1_000_000

LARGE = 20_000_000  # postings up to which numpy answers a query in some ten milliseconds, as Lucene does

SLOW_S = 2.0  # compiling the kernels takes longer

PACKAGE = Path(__file__).parent


class JoinedPostings(PostingLists):
    """The postings of several open files, of which each has the documents that follow those of the one before.

    Scores need no statistics of all documents, so the best of all files are the best of the lists of each. `live` are
    the documents of each part that are not deleted, uint8 [documents]; None for all.
    """

    def __init__(self, parts: Sequence[PostingLists], live: Sequence[np.ndarray | None]):
        self.parts, self.live = parts, live
        self.ends = np.cumsum([0, *(part.documents for part in parts)]).tolist()
        self.documents = self.ends[-1]

    def lists(
        self, queries: AnyQueries, hits: int, threads: int, allowed: np.ndarray | None = None, best: int = 0
    ) -> list[RankedList]:
        """One ranked list per query."""
        batch = QueryBatch.build(queries)
        if len(self.parts) == 1:
            return self.parts[0].lists(batch, hits, threads, self.live[0] if allowed is None else allowed, best)
        if best > 1:
            # The best passages of a document may be in several files.
            return self._group_lists(batch, hits, threads, allowed, best)

        def of_part(place: int, some: QueryBatch) -> list[RankedList]:
            documents = slice(self.ends[place], self.ends[place + 1])
            # No deleted document is allowed.
            mask = self.live[place] if allowed is None else allowed[documents]
            size = documents.stop - documents.start
            # Threads cost more than few documents.
            return self.parts[place].lists(some, min(hits, size), threads if size > BLOCK else 1, mask, best)

        ranked_lists = of_part(0, batch)
        for place in range(1, len(self.parts)):
            # Few documents seldom reach a list of the best of many.
            bounds = self.parts[place].bounds(batch).tolist()
            reached = [
                n for n, so_far in enumerate(ranked_lists) if len(so_far) < hits or bounds[n] >= so_far.scores[-1]
            ]
            some = QueryBatch([ImpactQuery(batch.query_ids[n], batch.vectors[n]) for n in reached])
            for number, more in zip(reached, of_part(place, some) if reached else (), strict=True):
                ranked_lists[number] = (best_of_passages if best else merge_lists)([ranked_lists[number], more], hits)
        return ranked_lists

    def find_max_impacts(self, terms: Sequence[str]) -> list[int]:
        """The greatest impact of each term; 0 for one without postings."""
        return [max(impacts) for impacts in zip(*(part.find_max_impacts(terms) for part in self.parts), strict=True)]


def join_parts(parts: Sequence[PostingLists], live: Sequence[np.ndarray | None]) -> PostingLists:
    """The postings of all files; those of one file without deleted documents as they are."""
    return parts[0] if len(parts) == 1 and live[0] is None else JoinedPostings(parts, live)


def best_of_passages(lists: Sequence[RankedList], hits: int) -> RankedList:
    """The documents of several lists, each scored by the best of its passages: a list has its own best ones."""
    scores: dict[str, float] = {}
    for listed in lists:
        for document, score in listed.pairs():
            scores[document] = max(score, scores.get(document, 0))
    return rank_hits(lists[0].query_id, scores.items(), hits)


def read_choice() -> str:
    """The user's choice."""
    value = os.environ.get(VARIABLE) or AUTO
    if value not in CHOICES:
        raise UsageError(f"{VARIABLE} is {value!r}, expected {', '.join(CHOICES[:-1])} or {CHOICES[-1]}")
    return value


def read_resident_files(index: Path) -> dict[str, FileContents]:
    """What the files of an index's resident postings hold, in the order of documents; empty without all of them."""
    report, commit = index_folder.read_report(index), index_folder.read_commit_id(index)
    files = report.resident_files or [index_folder.ResidentEntry(file=index_folder.RESIDENT, commit=commit or "")]
    if report.resident_files and report.commit != commit:
        return {}
    contents_of = {}
    for file in files:
        contents = read_contents(index, file.file) if index_folder.RESIDENT_NAME.fullmatch(file.file) else None
        if contents is None or contents.commit != file.commit or not _check_marks(index, file.live, contents):
            return {}
        contents_of[file.file] = contents
    return contents_of


def _check_marks(index: Path, live: str, contents: FileContents) -> bool:
    """Returns True for a file that marks deleted documents in a form that this version reads, or none."""
    if not live:
        return True
    if not index_folder.LIVE_NAME.fullmatch(live) or not (index / live).is_file():
        return False
    with (index / live).open("rb") as file:
        return index_folder.read_live(file, contents.documents) is not None


def find_usable_files(index: Path) -> dict[str, FileContents]:
    """As `read_resident_files`; empty too if they are not to be used."""
    chosen = read_choice()
    if chosen == NEVER:
        return {}
    files = read_resident_files(index)
    if not files:
        if chosen == ALWAYS:
            what = "an older" if index_folder.list_resident_paths(index) else "no"
            raise ArtefactError(
                f"{index}: {VARIABLE} is {ALWAYS}, and the index has {what} {index_folder.RESIDENT}; {REMEDY}"
            )
        return {}
    needed = sum((index / name).stat().st_size for name in files)
    return files if chosen == ALWAYS or needed <= 2 * measure_quarter_memory() else {}


def lacks_kernels(index: Path) -> bool:
    """Returns True if searches of an index would use the kernels, and these are not compiled yet."""
    files = find_usable_files(index).values()
    return sum(contents.postings for contents in files) > SMALL and not are_compiled(files)


def are_compiled(files: Iterable[FileContents]) -> bool:
    """Returns True if the kernels are compiled for all these files."""
    return all(is_compiled(PACKAGE, str(contents.width)) for contents in files)


class Resident:
    """The resident postings of an index, from whose files nothing is read before they are compared.

    `names` are those of the files, each with that of the file that marks deleted documents, "" without one.
    """

    def __init__(self, files: HeldFiles, names: Mapping[str, str], verification: Verification):
        self._files, self._names, self._verification = files, names, verification
        self._index, self._always = files.folder, read_choice() == ALWAYS
        self._reading, self._closed = RLock(), False
        self._opened: list[Sections] | None = None
        self._live: list[np.ndarray | None] = []
        self._kernels: PostingLists | None = None

    @cached_property
    def parts(self) -> list[PlainPostings]:
        """The postings of each file as numpy reads them."""
        self._refuse_closed()
        return [PlainPostings(sections) for sections in self._sections()]

    def _sections(self) -> list[Sections]:
        """Maps the files, once: two threads that read one file move each other's place in it."""
        with self._reading:
            if self._opened is None:
                for name in filter(None, (*self._names, *self._names.values())):
                    self._verification.wait_for(name)
                opened = [self._open_sections(name) for name in self._names]
                self._live = list(map(self._read_live, self._names.values(), opened))
                self._opened = opened
            return self._opened

    def _open_sections(self, name: str) -> Sections:
        with self._files.open(name) as file:
            return open_sections(file, self._index / name)

    def _read_live(self, name: str, sections: Sections) -> np.ndarray | None:
        """Reads which documents of a file are not deleted, uint8 [documents]; None for all."""
        if not name:
            return None
        with self._files.open(name) as file:
            live = index_folder.read_live(file, sections.contents.documents)
        if live is None:
            raise ArtefactError(f"{self._index / name}: damaged; build the index again")
        return live

    def impacts(self, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        """Returns the document's impact for each of `terms` that it has, in their order."""
        for part, live in zip(self.parts, self._live, strict=True):
            document = part.document(doc_id)
            if document is not None and (live is None or live[document]):
                return part.impacts(document, terms)
        raise DataError(f"no document {doc_id!r} in the index")

    def serve(self, queries: int = 0) -> PostingLists | None:
        """Returns what answers the next queries, after so many; None for Lucene's postings."""
        self._refuse_closed()
        with self._reading:
            if self._kernels is None:
                postings = self._count_postings()
                many = postings > SMALL and (queries >= FEW or postings > MEDIUM)
                if self._always or many and are_compiled(part.contents for part in self._sections()):
                    self._load()
                else:
                    return join_parts(self.parts, self._live) if postings <= LARGE else None
            return self._kernels

    def _count_postings(self) -> int:
        return sum(part.contents.postings for part in self._sections())

    def compile(self) -> None:
        """Loads the kernels of an index that is not small; compiles them where this machine has none yet."""
        self._refuse_closed()
        with self._reading:
            if self._kernels is None and self._count_postings() > SMALL:
                self._load()

    def _load(self) -> None:
        from lexvl_anserini.engines.resident.searching import ResidentPostings

        started, sections = time.perf_counter(), self._sections()
        if not are_compiled(part.contents for part in sections):
            log.info("%s: compiling the kernels, once on this machine", self._index)
        parts = [ResidentPostings(part) for part in sections]
        for part, of_file in zip(parts, sections, strict=True):
            part.warm()
            mark_compiled(PACKAGE, str(of_file.contents.width))
        self._kernels = join_parts(parts, self._live)
        seconds = time.perf_counter() - started
        level = logging.INFO if seconds > SLOW_S else logging.DEBUG
        log.log(level, "%s: resident postings ready after %.1f s", self._index, seconds)

    def close(self) -> None:
        """Closes the files."""
        with self._reading:
            self._closed = True
            # The mapped files stay open as long as something refers to these.
            self._kernels = self._opened = None
            self.__dict__.pop("parts", None)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ArtefactError(f"{self._index}: the index is closed; open it again")
