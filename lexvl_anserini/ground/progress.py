"""Long steps: their batches, the callback that they call with the number of items just finished, and a bar behind it.

A step without items, such as a start of Java, has a line on a terminal while it lasts.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Lock
from typing import TypeVar

log = logging.getLogger("lexvl_anserini")

Item = TypeVar("Item")
Progress = Callable[[int], None]
LOG_EVERY_S = 10.0  # seconds between two lines of the log
_steps: list[str] = []  # steps that last, in all threads
_line = Lock()  # of the line that names them

# Terminal codes: clear the line; go back to its begin, so that the next output overwrites it.
CLEAR, BACK = "\x1b[2K", "\r"


def silent(_: int) -> None:
    """The progress callback that reports nothing."""


def make_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of a size; the last one may be shorter."""
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch


def is_notebook() -> bool:
    """Whether a kernel of Jupyter runs this process."""
    shell = sys.modules.get("IPython")
    return shell is not None and "zmqshell" in type(shell.get_ipython()).__module__


@contextmanager
def progress_bar(label: str, total: int | None, unit: str = "documents") -> Iterator[Progress]:
    """Yields `advance(n)`: a bar on a terminal and in a notebook, a line of the log every ten seconds elsewhere."""
    if sys.stderr.isatty() or is_notebook():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=not is_notebook()), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda n: bar.advance(task, n)
        return

    started = last = time.monotonic()
    done = 0

    def advance(n: int) -> None:
        nonlocal done, last
        done += n
        now = time.monotonic()
        if now - last >= LOG_EVERY_S:
            last = now
            log.info("%s: %d%s %s, %.0f s", label, done, f" of {total}" if total else "", unit, now - started)

    yield advance


@contextmanager
def waiting(step: str) -> Iterator[None]:
    """Names a step on the terminal of a command until it ends; elsewhere, and in a program's own process, nothing."""
    if not (log.isEnabledFor(logging.INFO) and sys.stderr.isatty()):
        yield
        return
    _draw(_steps.append, step)
    try:
        yield
    finally:
        _draw(_steps.remove, step)


def _draw(change: Callable[[str], None], step: str) -> None:
    with _line:
        change(step)
        sys.stderr.write(f"{CLEAR}{', '.join(_steps)}{' ...' * bool(_steps)}{BACK}")
        sys.stderr.flush()
