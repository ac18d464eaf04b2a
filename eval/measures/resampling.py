"""Random signs of topics and random samples of them: for tests and intervals of differences between systems.

All systems and measures of a comparison have the same signs and samples, so that a matrix product per block of them
computes all sums: SciPy's `permutation_test` and `bootstrap` draw anew for each, and take minutes for ten systems on
the topics of MS MARCO.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

# Sign flips drawn by the randomisation test: its smallest p is about 1e-5.
RESAMPLES = 99_999
# Samples drawn for an interval.
BOOTSTRAPS = 9_999
CONFIDENCE = 0.95
SEED = 20240307

# Cells of one block of signs or samples: float64 of 16 MB.
BLOCK_CELLS = 1 << 21

# Two sums are equal if they are at most this share of the sum of absolute differences apart.
ROUNDING = 1e-12


def randomisation(differences: np.ndarray) -> np.ndarray:
    """Two-sided p of the paired randomisation test: how often a sum of randomly signed differences is as far from 0.

    Exact if there are at most `RESAMPLES` ways to sign the differences that are not 0; else so many ways are drawn,
    with a fixed seed, and the observed one counts as another.

    Args:
        differences: of each topic by each of P comparisons, [T, P].

    Returns:
        [P].
    """
    p_values = np.ones(differences.shape[1])
    ways = (differences != 0).sum(axis=0)
    many = ways > math.log2(RESAMPLES)
    for column in np.flatnonzero(~many):
        changed = differences[differences[:, column] != 0, column, None]
        p_values[column] = _as_far(changed, _all_signs(len(changed)))[0] / 2 ** len(changed)
    if many.any():
        as_far = _as_far(differences[:, many], _drawn_signs(len(differences)))
        p_values[many] = (as_far + 1) / (RESAMPLES + 1)
    return p_values


def _as_far(differences: np.ndarray, signs: Iterator[np.ndarray]) -> np.ndarray:
    """How many signed sums [P] are at least as far from 0 as the sum; `signs` are blocks [b, T] of 1 (plus) and 0."""
    total, rounding = differences.sum(axis=0), ROUNDING * np.abs(differences).sum(axis=0)
    count = np.zeros(differences.shape[1])
    for plus in signs:
        count += (np.abs(2 * (plus @ differences) - total) >= np.abs(total) - rounding).sum(axis=0)
    return count


def _all_signs(topics: int) -> Iterator[np.ndarray]:
    """All ways to sign some topics, one block."""
    yield (np.arange(2**topics)[:, None] >> np.arange(topics) & 1).astype(np.float64)


def _drawn_signs(topics: int) -> Iterator[np.ndarray]:
    """`RESAMPLES` random ways to sign topics."""
    rng = np.random.default_rng(SEED)
    for rows in _blocks(RESAMPLES, topics):
        bits = np.unpackbits(rng.integers(256, size=(rows, -(-topics // 8)), dtype=np.uint8), axis=1)
        yield bits[:, :topics].astype(np.float64)


def bootstrap_intervals(differences: np.ndarray) -> np.ndarray:
    """The intervals that hold the mean differences of 95 % of samples of the topics, drawn with a fixed seed.

    Topics are drawn with replacement, as many as there are (the percentile bootstrap).

    Args:
        differences: of each topic by each of P comparisons, [T, P].

    Returns:
        [2, P]: low and high; NaN for one topic.
    """
    topics, comparisons = differences.shape
    if topics < 2:
        return np.full((2, comparisons), math.nan)
    rng = np.random.default_rng(SEED)
    means = []
    for rows in _blocks(BOOTSTRAPS, topics):
        drawn = rng.integers(topics, size=(rows, topics)) + topics * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * topics).reshape(rows, topics)
        means.append(times.astype(np.float64) @ differences / topics)
    tail = (1 - CONFIDENCE) / 2
    return np.quantile(np.concatenate(means), [tail, 1 - tail], axis=0)


def _blocks(rows: int, columns: int) -> Iterator[int]:
    """The sizes of blocks of rows with at most `BLOCK_CELLS` cells each, or one row."""
    size = max(1, BLOCK_CELLS // columns)
    for start in range(0, rows, size):
        yield min(size, rows - start)
