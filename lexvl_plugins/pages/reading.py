"""Reads pages in processes of their own, and remembers their words between commands, because OCR takes seconds a page.

The memory is `$LEXVL_DATA/pages.sqlite3`. Words are found again by the digest of the file, the number of the page and
the versions of PDFium and OCR. A page that took too much CPU time is remembered too, for the limits that it broke.
"""

from __future__ import annotations

import logging
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.data.digests import FileDigests, Memory
from lexvl_anserini.data.pictures.archives import PageReference, page_of
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.machine import versions_of
from lexvl_plugins.pages import contents
from lexvl_plugins.pages.contents import LONGEST, Pages, Rendered
from lexvl_plugins.pages.page import PageWords
from lexvl_plugins.pages.worker import SECONDS, Limits, Overdue, begin, result_of, workers

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)

MEMORY = "pages.sqlite3"
# Raise it if the same versions read other words.
VERSION = 2

# The key of the limits that a page broke; memories of 0.2.0 have `overdue`, of limits of the clock.
OVERDUE = "overdue_cpu"

# Pages that wait for the consumer, per worker.
AHEAD = 3
# New pages that wait to be written together.
WAITING = 16
# New pages from line to line of the log.
REPORTED = 500


class ReadPage(NamedTuple):
    """A page, and its words or the problem with them."""

    page: PageReference
    words: PageWords | None
    problem: str | None = None


def open_page(reference: str) -> Image:
    """The picture of a page, RGB, whose longer side has at most `LONGEST` pixels.

    Args:
        reference: `a.pdf#3`, `archive.tar::scan.tif#2`; a file without a number is its first page.

    Raises:
        DataError: it cannot be read.
    """
    import PIL.Image

    pixels: Rendered = result_of(begin(contents.pixels_of, _page(reference)), reference)
    return PIL.Image.frombytes("RGB", pixels.size, pixels.data)


def read_words(reference: str) -> PageWords:
    """The words of a page or picture, from the memory or read now; arguments and errors as of `open_page`."""
    with PageReader() as reader:
        read = next(reader.words([_page(reference)]))
    if read.words is None:
        raise DataError(read.problem or "")
    return read.words


class PageReader:
    """Reads the words of many pages; a context that writes what is new to the memory when it ends."""

    def __init__(self) -> None:
        self._digests = FileDigests()
        self._memory = Memory(data_root(None) / MEMORY, "pages", WAITING)
        self._limits = Limits.of_environment()
        self._versions = repr((VERSION, LONGEST, versions_of(("pypdfium2", "rapidocr"))))
        self._read: Counter[str] = Counter()

    def __enter__(self) -> PageReader:
        return self

    def __exit__(self, *problem: object) -> None:
        self._memory.close()
        self._digests.__exit__(*problem)

    def pages(self, where: str) -> Pages:
        """The pages of a file.

        Raises:
            DataError: it cannot be opened, or not in time.
        """
        key = self._key(PageReference(where, 0))
        if known := self._known(key, where):
            return Pages(*known["pages"])
        pages: Pages = result_of(begin(contents.count_pages, where), where)
        self._put(key, {"pages": list(pages)})
        return pages

    def words(self, pages: Iterable[PageReference]) -> Iterator[ReadPage]:
        """The words of pages, in order; some pages are read ahead of the consumer."""
        waiting: deque[Callable[[], ReadPage]] = deque()
        for page in pages:
            waiting.append(self._begun(page))
            if len(waiting) > AHEAD * workers():
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()

    def summary(self) -> str:
        """How many pages were read, and from where."""
        return ", ".join(f"{count:,} {source}" for source, count in sorted(self._read.items()))

    def _begun(self, page: PageReference) -> Callable[[], ReadPage]:
        key = self._key(page)
        try:
            if known := self._known(key, str(page)):
                self._read["remembered"] += 1
                words = PageWords.of_json(known)
                return lambda: ReadPage(page, words)
        except DataError as problem:
            reason = str(problem)
            return lambda: ReadPage(page, None, reason)
        call = begin(contents.words_of, page)
        return lambda: self._finished(page, key, call)

    def _finished(self, page: PageReference, key: bytes | None, call: Any) -> ReadPage:
        try:
            words: PageWords = result_of(call, str(page))
        except Overdue as problem:
            self._put(key, {OVERDUE: list(self._limits)})
            return ReadPage(page, None, str(problem))
        except DataError as problem:
            return ReadPage(page, None, str(problem))
        self._put(key, words.to_json())
        self._read[words.source] += 1
        if (self._read.total() - self._read["remembered"]) % REPORTED == 0:
            log.info("pages: %s", self.summary())
        return ReadPage(page, words)

    # --- the memory ---

    def _key(self, page: PageReference) -> bytes | None:
        digest = self._digests.of(page.file)
        return digest and blake2b(f"{digest} {page.page} {self._versions}".encode(), digest_size=16).digest() or None

    def _known(self, key: bytes | None, where: str) -> dict[str, Any] | None:
        """What is remembered; None for nothing.

        Raises:
            Overdue: the page took too long, with limits as they are.
        """
        value = self._memory.get(key) if key else None
        if value is None:
            return None
        content: dict[str, Any] = orjson.loads(zlib.decompress(value))
        if tuple(content.get(OVERDUE, ())) == self._limits:
            took = f"more than {self._limits.seconds:g} s of CPU time ({SECONDS})"
            raise Overdue(f"{where}: {took}, remembered from an earlier try")
        return None if OVERDUE in content or "overdue" in content else content

    def _put(self, key: bytes | None, content: dict[str, Any]) -> None:
        if key:
            self._memory.put(key, zlib.compress(orjson.dumps(content)))


def _page(reference: str) -> PageReference:
    return page_of(reference) or PageReference(reference, 1)
