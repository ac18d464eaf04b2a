"""Progress: the callback that a long step calls with the number of items it has just finished."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int], None]


def silent(_: int) -> None:
    """The progress callback that reports nothing."""
