"""Whether the resident postings of an open index serve: the user's choice, the memory, and what reads them.

`LEXVL_POSTINGS` chooses: `auto` (default) uses them if they take at most half of the memory, reads them with numpy, and
loads the kernels once numpy has taken as long as loading does; `resident` waits for the kernels; `lucene` does not use
them.
"""

from __future__ import annotations

import logging
import os
import time
from functools import cached_property
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

from lexvl_anserini.engines.jvm import quarter_of_memory
from lexvl_anserini.engines.lucene.versions import commit_id
from lexvl_anserini.engines.resident.layout import (
    REMEDY,
    RESIDENT,
    FileContents,
    Sections,
    open_sections,
    read_contents,
)
from lexvl_anserini.engines.resident.plain import PlainPostings
from lexvl_anserini.engines.verifying import Verification
from lexvl_anserini.ground.errors import ArtefactError, UsageError

if TYPE_CHECKING:
    from lexvl_anserini.engines.resident.searching import ResidentPostings

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


def has_resident(index: Path) -> bool:
    """Returns True if the index has resident postings of its last commit."""
    contents = read_contents(index)
    return contents is not None and contents.commit == commit_id(index)


def usable(index: Path) -> FileContents | None:
    """What the file holds, if the index has resident postings of its last commit, and they are to be used."""
    chosen = choice()
    if chosen == NEVER:
        return None
    contents = read_contents(index)
    if contents is None or contents.commit != commit_id(index):
        if chosen == ALWAYS:
            what = "no" if contents is None else "an older"
            raise ArtefactError(f"{index}: {VARIABLE} is {ALWAYS}, and the index has {what} {RESIDENT}; {REMEDY}")
        return None
    needed = (index / RESIDENT).stat().st_size + contents.columns * contents.width
    return contents if chosen == ALWAYS or needed <= 2 * quarter_of_memory() else None


class Resident:
    """The resident postings of an index, whose kernels are loaded by a thread of their own once they are worth it.

    Args:
        index: one whose resident postings are `usable`.
        verification: of the index's files, this one among them: nothing is read from it before it is compared.
    """

    def __init__(self, index: Path, verification: Verification):
        self._path, self._verification, self._waits = index / RESIDENT, verification, choice() == ALWAYS
        # Opened now, so that it stays this file if another process replaces the index.
        self._file = self._path.open("rb")
        self._starting, self._reading, self._closed = Lock(), Lock(), False
        self._opened: Sections | None = None
        self._thread: Thread | None = None
        self._postings: ResidentPostings | None = None
        self._error: BaseException | None = None

    @cached_property
    def plain(self) -> PlainPostings:
        """The postings as numpy reads them."""
        self._refuse_closed()
        return PlainPostings(self._sections())

    def _sections(self) -> Sections:
        """The mapped file, opened once: two threads that read one file move each other's place in it."""
        with self._reading:
            if self._opened is None:
                self._verification.wait_for(RESIDENT)
                self._opened = open_sections(self._file, self._path)
            return self._opened

    def serving(self, spent_s: float) -> PlainPostings | ResidentPostings:
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
        return self._postings or self.plain

    def verified(self) -> None:
        """Waits until they are loaded, if that began."""
        self._join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Waits until they are loaded, if that began, and closes the file."""
        self._closed = True
        self._join()
        self._file.close()
        # The mapped file stays open as long as something refers to these.
        self._postings = self._opened = None
        self.__dict__.pop("plain", None)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ArtefactError(f"{self._path.parent}: the index is closed; open it again")

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join(SLOW_S)
            if self._thread.is_alive():
                log.info("%s: waiting for its kernels, which a machine compiles once", self._path)
            self._thread.join()

    def _load(self) -> None:
        started = time.perf_counter()
        try:
            from lexvl_anserini.engines.resident.searching import ResidentPostings

            postings = ResidentPostings(self._sections())
            postings.warm()
        except Exception as error:  # the next query raises it
            self._error = error
            return
        self._postings = postings
        seconds = time.perf_counter() - started
        level = logging.INFO if seconds > SLOW_S else logging.DEBUG
        log.log(level, "%s: resident postings ready after %.1f s", self._path, seconds)
