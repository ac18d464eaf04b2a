"""What a corpus leaves out, by reason: counted, named, and logged in one line a reason."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from functools import cache

log = logging.getLogger(__name__)

# Names in a line.
NAMED = 5

# A reason that users expect: the line is for information. All other lines are warnings.
HIDDEN = "hidden"


class LeftOut:
    """Entries of a folder or an archive that are no documents; memory: a count and `NAMED` names a reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._names: dict[str, list[str]] = defaultdict(list)

    def add(self, reason: str, name: str) -> None:
        """Counts an entry."""
        self._counts[reason] += 1
        if len(names := self._names[reason]) < NAMED:
            names.append(name)

    def log(self, where: str) -> None:
        """Logs a line for each reason; the same line only once, because a corpus is read several times."""
        for reason, count in self._counts.items():
            names = ", ".join(map(printable, self._names[reason])) + (", ..." if count > NAMED else "")
            level = logging.INFO if reason == HIDDEN else logging.WARNING
            log_once(f"{printable(where)}: skipped, {reason}: {count:,} ({names})", level)


@cache
def log_once(message: str, level: int = logging.INFO) -> None:
    """Logs a message once, although a corpus is read several times."""
    log.log(level, "%s", message)


def printable(name: str) -> str:
    """A name that fits on a line: characters that cannot be printed are escaped."""
    return name if name.isprintable() else repr(name)[1:-1]
