"""Calls functions in processes that may crash, hang or ask for too much memory: the command goes on without them."""

from __future__ import annotations

import atexit
import os
import resource
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from lexvl_anserini.data.pictures.images import count_usable_cores
from lexvl_anserini.ground.errors import DataError, InstallationError, LexvlError, UsageError, describe_error

if TYPE_CHECKING:
    from pebble import ProcessPool

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
        raise DataError(
            f"{where}: not read after {waited:g} s of the clock ({PATIENCE} times {SECONDS}); it waits, or others run"
        ) from problem
    except MemoryError as problem:
        raise DataError(f"{where}: more than {limits.gigabytes:g} GB of memory ({GIGABYTES})") from problem
    except Exception as problem:
        code = getattr(problem, "exitcode", None)
        if code is None:
            raise DataError(f"{where}: cannot be read ({describe_error(problem)})") from problem
        if code == -signal.SIGPROF:
            raise Overdue(f"{where}: more than {limits.seconds:g} s of CPU time ({SECONDS})") from problem
        ending = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        raise DataError(
            f"{where}: its reading crashed ({ending}), perhaps beyond {limits.gigabytes:g} GB of memory ({GIGABYTES})"
        ) from problem


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
