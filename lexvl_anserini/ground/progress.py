"""Progress: the callback that a long step calls with the number of items it has just finished, and a bar behind it.

with progress_bar("encode", len(documents)) as advance:
write_impacts(dataset, model, folder, progress=advance)
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int], None]

# Seconds between two lines of the log.
LOG_EVERY_S = 10.0


def silent(_: int) -> None:
    """The progress callback that reports nothing."""


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this process."""
    shell = sys.modules.get("IPython")
    return shell is not None and "zmqshell" in type(shell.get_ipython()).__module__


@contextmanager
def progress_bar(label: str, total: int | None, unit: str = "documents") -> Iterator[Progress]:
    """Yields `advance(n)`: a bar on a terminal and in a notebook, a line of the log every ten seconds elsewhere."""
    if sys.stderr.isatty() or in_notebook():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=not in_notebook()), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda n: bar.advance(task, n)
        return

    log = logging.getLogger("lexvl_anserini")
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
