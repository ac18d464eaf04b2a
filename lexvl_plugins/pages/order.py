"""The order in which lines of print are read: down one column, then down the next.

Two rules say which of two lines comes first (Breuel, "High performance document layout analysis", 2003): of lines above
each other, the upper; and every line of a column to the left before those to the right, down to a line across both.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

# Lines beyond which a page keeps the order from the top: the rules compare three lines at a time.
MOST_LINES = 1000


def reading_order(boxes: np.ndarray) -> list[int]:
    """The numbers of lines in the order in which they are read.

    Where the rules contradict each other, the line that fewest others precede is next, of these the first.

    Args:
        boxes: float [n, 4]: left, top, right and bottom of each line in one unit, downwards; in an order from the top.
    """
    if not 1 < len(boxes) <= MOST_LINES:
        return list(range(len(boxes)))
    rows = [sorted(row, key=lambda number: boxes[number, 0]) for row in _rows(boxes)]
    whole = np.array([(*boxes[row, :2].min(0), *boxes[row, 2:].max(0)) for row in rows])
    return [number for place in _sorted(_before(whole)) for number in rows[place]]


def _rows(boxes: np.ndarray) -> list[list[int]]:
    """Lines, each of the pieces that have less than their height between: no column ends there."""
    from scipy.sparse.csgraph import connected_components

    left, top, right, bottom = boxes.T
    height, middle = bottom - top, (top + bottom) / 2
    lower = np.minimum(height[:, None], height)
    level = np.abs(middle[:, None] - middle) < lower / 2
    gap = np.maximum(left[:, None] - right, left - right[:, None])
    _, labels = connected_components(level & (np.abs(gap) < lower), directed=False)
    rows: dict[int, list[int]] = {}
    for number, label in enumerate(labels.tolist()):
        rows.setdefault(label, []).append(number)
    return list(rows.values())


def _before(boxes: np.ndarray) -> np.ndarray:
    """Booleans [n, n]: whether line i comes before line j."""
    left, top, right, bottom = boxes.T
    middle = (top + bottom) / 2
    above = middle[:, None] < middle
    across = (left[:, None] < right) & (left < right[:, None])
    before = right[:, None] <= left
    for other in range(len(boxes)):
        # Line `other` parts what is above it on the right from what is below it on the left.
        before &= ~np.outer(across[other] & above[other], across[other] & above[:, other])
    return before | (across & above)


def _sorted(before: np.ndarray) -> Iterator[int]:
    waits = before.sum(0)
    for _ in range(len(before)):
        place = int(waits.argmin())
        yield place
        waits = waits - before[place]
        waits[place] = len(before) + 1
