"""Reads pages in processes of their own, and remembers their words between commands, because OCR takes seconds a page.

The memory is `$LEXVL_DATA/pages.sqlite3`. Words are found again by the digest of the file, the number of the page and
the versions of PDFium and OCR. A page that took too much CPU time is remembered too, for the limits that it broke.

A TIFF has as many pages as pictures; any other file of a picture is one page. A process may crash, hang or ask for too
much memory: the command goes on without it.
"""

from __future__ import annotations

import atexit
import logging
import os
import resource
import signal
import sys
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import orjson

from lexvl_anserini.data.corpora.folder import get_suffix
from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.data.digests import FileDigests, Memory
from lexvl_anserini.data.pictures.archives import PageReference, find_page
from lexvl_anserini.data.pictures.images import (
    count_usable_cores,
    decode_picture,
    open_picture,
    open_source,
    raise_decoder_errors,
)
from lexvl_anserini.ground.errors import DataError, InstallationError, LexvlError, UsageError, describe_error
from lexvl_anserini.ground.machine import list_versions
from lexvl_plugins.pages import ocr, pdf
from lexvl_plugins.pages.page import OCR, TEXT_LAYER, PageWords

if TYPE_CHECKING:
    from pebble import ProcessPool
    from PIL.Image import Image

# The variables of the environment that bound what one page may cost.
SECONDS, GIGABYTES = "LEXVL_PAGE_SECONDS", "LEXVL_PAGE_GB"

# Seconds of the clock for each second of CPU time that a page may take: a busy machine gives a process at least this
# share of a core, and what waits without end is given up.
PATIENCE = 20

# Held by the thread that starts processes.
_STARTING = Lock()

# Processes at most: each that does OCR holds up to 1 GB.
MOST_WORKERS = 8


class Limits(NamedTuple):
    """What one page may cost: seconds of CPU time, and gigabytes of memory (on Linux)."""

    seconds: float = 60.0
    gigabytes: float = 3.0

    @classmethod
    def from_environment(cls) -> Self:
        """The limits that the variables set, else the defaults."""
        names = {"seconds": SECONDS, "gigabytes": GIGABYTES}
        return cls(**{field: _read_number(name) for field, name in names.items() if os.environ.get(name)})


class Overdue(DataError):
    """A page took more CPU time than its limit, as it would again."""


def count_workers() -> int:
    """How many processes there are."""
    return min(count_usable_cores(), MOST_WORKERS)


def start(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Starts a call in the next free process, for `wait_for`; function and arguments are pickled."""
    limits = Limits.from_environment()
    try:
        with _STARTING:
            pool = _start_pool(limits, os.getpid())
        call = (limits.seconds, Path.cwd(), function, *arguments)
        return pool.schedule(_call, call, timeout=PATIENCE * limits.seconds)
    except RuntimeError as problem:
        raise _report_broken(problem) from problem


def wait_for(call: Future[Any], where: str) -> Any:
    """What a call returns; its errors are DataErrors of one line that begins with `where`."""
    limits = Limits.from_environment()
    try:
        return call.result()
    except LexvlError:
        raise
    except BrokenProcessPool as problem:
        raise _report_broken(problem) from problem
    except TimeoutError as problem:
        waited = PATIENCE * limits.seconds
        raise DataError(f"{where}: not read after {waited:g} s of the clock ({PATIENCE} times {SECONDS})") from problem
    except MemoryError as problem:
        raise DataError(f"{where}: more than {limits.gigabytes:g} GB of memory ({GIGABYTES})") from problem
    except Exception as problem:
        code = getattr(problem, "exitcode", None)
        if code is None:
            raise DataError(f"{where}: cannot be read ({describe_error(problem)})") from problem
        if code == -signal.SIGPROF:
            raise Overdue(f"{where}: more than {limits.seconds:g} s of CPU time ({SECONDS})") from problem
        ending = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        perhaps = f"perhaps beyond {limits.gigabytes:g} GB of memory ({GIGABYTES})"
        raise DataError(f"{where}: its reading crashed ({ending}), {perhaps}") from problem


@cache
def _start_pool(limits: Limits, process: int) -> ProcessPool:
    """The processes of this one, `process`: a forked child has none of its parent."""
    from pebble import ProcessPool

    pool = ProcessPool(count_workers(), initializer=_limit_memory, initargs=limits[1:], context=get_context("spawn"))
    atexit.register(pool.join)
    atexit.register(pool.stop)  # the last is called first
    return pool


def _report_broken(problem: Exception) -> InstallationError:
    """The error of processes that do not start; the next call tries anew."""
    _start_pool.cache_clear()
    return InstallationError(
        f"the processes that read pages do not start ({describe_error(problem)}); a script needs "
        f"'if __name__ == \"__main__\":' around its calls, and {GIGABYTES} may be too low"
    )


def _read_number(name: str) -> float:
    text = os.environ[name]
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise UsageError(f"{name}={text!r}: expected a number above 0")
    return number


def _limit_memory(gigabytes: float) -> None:
    """Bounds the memory of this process, and lets it decode pictures of any size within that."""
    import PIL.Image

    PIL.Image.MAX_IMAGE_PIXELS = None
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (int(gigabytes * 1e9),) * 2)


def _call(seconds: float, folder: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in the working folder of the caller; SIGPROF ends the process after so much CPU time.

    Errors of other libraries, whose classes the caller may not know, become lines.
    """
    os.chdir(folder)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return function(*arguments)
    except (LexvlError, MemoryError):
        raise
    except Exception as problem:
        raise RuntimeError(describe_error(problem)) from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


log = logging.getLogger(__name__)

# The longer side of the picture of a page in pixels: an A4 page has 137 dpi, at which OCR loses no word of 10 points.
LONGEST = 1600

MEMORY = "pages.sqlite3"
# Raise it if the same versions read other words.
VERSION = 2

# The key of the limits that a page broke; memories of 0.2.0 have `overdue`, of limits of the clock.
OVERDUE = "overdue_cpu"

# Pages that wait for the consumer, per process.
AHEAD = 3
# New pages that wait to be written together.
WAITING = 16
# New pages from line to line of the log.
REPORTED = 500


# ---- what a process reads


class Pages(NamedTuple):
    """The number of pages of a file, and whether the file has an end: else pages may be missing."""

    number: int
    whole: bool = True


def count_pages(where: str) -> Pages:
    """The pages of a file."""
    if get_suffix(where) == pdf.SUFFIX:
        return Pages(pdf.count_pages(where), pdf.is_whole(where))
    with raise_decoder_errors(where), open_source(where) as source, open_picture(source, where) as image:
        return Pages(_count_frames(image))


def render_page(page: PageReference) -> tuple[tuple[int, int], bytes]:
    """The picture of a page, RGB: width and height, and its bytes row by row."""
    picture = draw_page(page)
    return picture.size, picture.tobytes()


def read_content(page: PageReference) -> PageWords:
    """The words of the text layer where it has any, else those that OCR reads in the picture."""
    if get_suffix(page.file) == pdf.SUFFIX and (words := pdf.read_text_layer(page)):
        return PageWords(words, TEXT_LAYER)
    return PageWords(ocr.read_picture(draw_page(page)), OCR)


def draw_page(page: PageReference, longest: int = LONGEST) -> Image:
    """A page as an upright RGB picture whose longer side has at most so many pixels; JPEG is decoded smaller."""
    if get_suffix(page.file) == pdf.SUFFIX:
        return pdf.draw_page(page, longest)
    where = str(page)
    with raise_decoder_errors(where), open_source(page.file) as source, open_picture(source, where) as image:
        if page.page > _count_frames(image):
            raise DataError(f"{page}: no such page; the file has {_count_frames(image):,}")
        if page.page > 1:
            image.seek(page.page - 1)
        image.draft("RGB", (longest, longest))
        picture = decode_picture(image, where)
    picture.thumbnail((longest, longest))
    return picture


def _count_frames(image: Image) -> int:
    return int(getattr(image, "n_frames", 1)) if image.format == "TIFF" else 1


# ---- what this process knows


class ReadPage(NamedTuple):
    """A page, and its words or the problem with them."""

    page: PageReference
    words: PageWords | None
    problem: str | None = None


def open_page(reference: str) -> Image:
    """A page (`a.pdf#3`, `b.tar::c.tif#2`, the first without a number), RGB, of at most `LONGEST` pixels a side."""
    import PIL.Image

    size, octets = wait_for(start(render_page, find_page(reference) or PageReference(reference, 1)), reference)
    return PIL.Image.frombytes("RGB", size, octets)


def read_words(reference: str) -> PageWords:
    """The words of a page or picture, from the memory or read now; its reference is as of `open_page`."""
    with PageReader() as reader:
        read = next(reader.read([find_page(reference) or PageReference(reference, 1)]))
    if read.words is None:
        raise DataError(read.problem or "")
    return read.words


class PageReader:
    """Reads the words of many pages; a context that writes what is new to the memory when it ends."""

    def __init__(self) -> None:
        self._digests = FileDigests()
        self._memory = Memory(data_root(None) / MEMORY, "pages", WAITING)
        self._limits = Limits.from_environment()
        self._versions = repr((VERSION, LONGEST, list_versions(("pypdfium2", "rapidocr"))))
        self._read: Counter[str] = Counter()

    def __enter__(self) -> PageReader:
        return self

    def __exit__(self, *problem: object) -> None:
        self._memory.close()
        self._digests.__exit__(*problem)

    def count_pages(self, where: str) -> Pages:
        """The pages of a file."""
        key = self._compute_key(PageReference(where, 0))
        if known := self._recall(key, where):
            return Pages(*known["pages"])
        pages: Pages = wait_for(start(count_pages, where), where)
        self._put(key, {"pages": list(pages)})
        return pages

    def read(self, pages: Iterable[PageReference]) -> Iterator[ReadPage]:
        """The words of pages, in order; some pages are read ahead of the consumer."""
        waiting: deque[Callable[[], ReadPage]] = deque()
        for page in pages:
            waiting.append(self._start(page))
            if len(waiting) > AHEAD * count_workers():
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()

    def describe(self) -> str:
        """How many pages were read, and from where."""
        return ", ".join(f"{count:,} {source}" for source, count in sorted(self._read.items()))

    def _start(self, page: PageReference) -> Callable[[], ReadPage]:
        key = self._compute_key(page)
        try:
            if known := self._recall(key, str(page)):
                self._read["remembered"] += 1
                words = PageWords.from_json(known)
                return lambda: ReadPage(page, words)
        except DataError as problem:
            reason = str(problem)
            return lambda: ReadPage(page, None, reason)
        call = start(read_content, page)
        return lambda: self._finish(page, key, call)

    def _finish(self, page: PageReference, key: bytes | None, call: Any) -> ReadPage:
        try:
            words: PageWords = wait_for(call, str(page))
        except Overdue as problem:
            self._put(key, {OVERDUE: list(self._limits)})
            return ReadPage(page, None, str(problem))
        except DataError as problem:
            return ReadPage(page, None, str(problem))
        self._put(key, words.to_json())
        self._read[words.source] += 1
        if (self._read.total() - self._read["remembered"]) % REPORTED == 0:
            log.info("pages: %s", self.describe())
        return ReadPage(page, words)

    def _compute_key(self, page: PageReference) -> bytes | None:
        digest = self._digests.of(page.file)
        return digest and blake2b(f"{digest} {page.page} {self._versions}".encode(), digest_size=16).digest() or None

    def _recall(self, key: bytes | None, where: str) -> dict[str, Any] | None:
        """What is remembered; None for nothing. A page that took too long, with limits as they are, is an error."""
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
