"""Whether the resident postings of an open index serve: the user's choice, the memory, and what reads them.

`LEXVL_POSTINGS` chooses: `auto` (default) uses them if they take at most half of the memory, reads them with numpy, and
loads the kernels once numpy has taken as long as loading does; `resident` waits for the kernels; `lucene` does not use
them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from threading import Lock, Thread

import numpy as np

from lexvl_anserini.engines.index_folder import RESIDENT, RESIDENT_NAME, ResidentEntry, read_report, resident_paths
from lexvl_anserini.engines.jvm import quarter_of_memory
from lexvl_anserini.engines.lucene.versions import LIVE_NAME, commit_id, read_live
from lexvl_anserini.engines.resident.joined import PostingLists, joined
from lexvl_anserini.engines.resident.layout import REMEDY, FileContents, Sections, open_sections, read_contents
from lexvl_anserini.engines.resident.plain import PlainPostings
from lexvl_anserini.engines.verifying import Verification
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError

log = logging.getLogger(__name__)

VARIABLE = "LEXVL_POSTINGS"
AUTO, ALWAYS, NEVER = CHOICES = ("auto", "resident", "lucene")

# Loading the kernels takes about this long; it is worth it once answers without them took as long.
WORTH_S = 0.5

# Compiling the kernels, once per machine, takes longer.
SLOW_S = 2.0


def choice() -> str:
    """The user's choice."""
    value = os.environ.get(VARIABLE) or AUTO
    if value not in CHOICES:
        raise UsageError(f"{VARIABLE} is {value!r}, expected {', '.join(CHOICES[:-1])} or {CHOICES[-1]}")
    return value


def resident_files(index: Path) -> dict[str, FileContents]:
    """What the files of an index's resident postings hold, in the order of documents; empty without all of them."""
    report, commit = read_report(index), commit_id(index)
    files = report.resident_files or [ResidentEntry(file=RESIDENT, commit=commit or "")]
    if report.resident_files and report.commit != commit:
        return {}
    contents_of = {}
    for file in files:
        contents = read_contents(index, file.file) if RESIDENT_NAME.fullmatch(file.file) else None
        if contents is None or contents.commit != file.commit or not _marks_are_read(index, file.live, contents):
            return {}
        contents_of[file.file] = contents
    return contents_of


def _marks_are_read(index: Path, live: str, contents: FileContents) -> bool:
    """Returns True for a file that marks deleted documents in a form that this version reads, or none."""
    if not live:
        return True
    if not LIVE_NAME.fullmatch(live) or not (index / live).is_file():
        return False
    with (index / live).open("rb") as file:
        return read_live(file, contents.documents) is not None


def usable(index: Path) -> dict[str, FileContents]:
    """As `resident_files`; empty too if they are not to be used."""
    chosen = choice()
    if chosen == NEVER:
        return {}
    files = resident_files(index)
    if not files:
        if chosen == ALWAYS:
            what = "an older" if resident_paths(index) else "no"
            raise ArtefactError(f"{index}: {VARIABLE} is {ALWAYS}, and the index has {what} {RESIDENT}; {REMEDY}")
        return {}
    needed = sum((index / name).stat().st_size for name in files)
    return files if chosen == ALWAYS or needed <= 2 * quarter_of_memory() else {}


class Resident:
    """The resident postings of an index, whose kernels are loaded by a thread of their own once they are worth it.

    Args:
        index: one whose resident postings are `usable`.
        names: of their files, each with that of the file that marks deleted documents, "" without one.
        verification: of the index's files, these among them: nothing is read from one before it is compared.
    """

    def __init__(self, index: Path, names: Mapping[str, str], verification: Verification):
        self._index, self._verification, self._waits = index, verification, choice() == ALWAYS
        # Opened now, so that they stay these files if another process replaces the index.
        with ExitStack() as opening:
            self._files = {name: opening.enter_context((index / name).open("rb")) for name in names}
            marked = {name: live for name, live in names.items() if live}
            self._marks = {name: opening.enter_context((index / live).open("rb")) for name, live in marked.items()}
            self._closing = opening.pop_all()
        self._starting, self._reading, self._closed = Lock(), Lock(), False
        self._opened: list[Sections] | None = None
        self._live: list[np.ndarray | None] = []
        self._thread: Thread | None = None
        self._postings: PostingLists | None = None
        self._error: BaseException | None = None

    @cached_property
    def parts(self) -> list[PlainPostings]:
        """The postings of each file as numpy reads them."""
        self._refuse_closed()
        return [PlainPostings(sections) for sections in self._sections()]

    def _sections(self) -> list[Sections]:
        """The mapped files, opened once: two threads that read one file move each other's place in it."""
        with self._reading:
            if self._opened is None:
                for file in (*self._files.values(), *self._marks.values()):
                    self._verification.wait_for(Path(file.name).name)
                opened = [open_sections(file, self._index / name) for name, file in self._files.items()]
                self._live = list(map(self._live_of, self._files, opened))
                self._opened = opened
            return self._opened

    def _live_of(self, name: str, sections: Sections) -> np.ndarray | None:
        """Which documents of a file are not deleted, uint8 [documents]; None for all."""
        if name not in self._marks:
            return None
        live = read_live(self._marks[name], sections.contents.documents)
        if live is None:
            raise ArtefactError(f"{self._marks[name].name}: damaged; build the index again")
        return live

    def impacts(self, doc_id: str, terms: Iterable[str]) -> dict[str, int]:
        """The document's impact for each of `terms` that it has, in their order.

        Raises:
            DataError: no document has this id.
        """
        for part, live in zip(self.parts, self._live, strict=True):
            document = part.document(doc_id)
            if document is not None and (live is None or live[document]):
                return part.impacts(document, terms)
        raise DataError(f"no document {doc_id!r} in the index")

    def serving(self, spent_s: float) -> PostingLists:
        """The postings, with the kernels as soon as they are loaded.

        Args:
            spent_s: seconds that answers without the kernels have taken so far; from `WORTH_S` on, these are loaded.
        """
        self._refuse_closed()
        with self._starting:
            if self._thread is None and (self._waits or spent_s >= WORTH_S):
                thread = Thread(target=self._load, name="lexvl-resident", daemon=True)
                thread.start()
                # Another thread may wait for it from here on.
                self._thread = thread
        if self._waits:
            self._join()
        if self._error is not None:
            raise self._error
        return self._postings or joined(self.parts, self._live)

    def verified(self) -> None:
        """Waits until they are loaded, if that began."""
        self._join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Waits until they are loaded, if that began, and closes the file."""
        self._closed = True
        self._join()
        self._closing.close()
        # The mapped files stay open as long as something refers to these.
        self._postings = self._opened = None
        self.__dict__.pop("parts", None)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ArtefactError(f"{self._index}: the index is closed; open it again")

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join(SLOW_S)
            if self._thread.is_alive():
                log.info("%s: loading its kernels, which are compiled at the first call", self._index)
            self._thread.join()

    def _load(self) -> None:
        started = time.perf_counter()
        try:
            from lexvl_anserini.engines.resident.searching import ResidentPostings

            parts = [ResidentPostings(sections) for sections in self._sections()]
            for part in parts:
                part.warm()
            postings = joined(parts, self._live)
        except Exception as error:  # the next query raises it
            self._error = error
            return
        self._postings = postings
        seconds = time.perf_counter() - started
        level = logging.INFO if seconds > SLOW_S else logging.DEBUG
        log.log(level, "%s: resident postings ready after %.1f s", self._index, seconds)
