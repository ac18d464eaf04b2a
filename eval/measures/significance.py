"""Two systems on the same topics: paired tests and intervals of their difference, and correlations of their values.

Tests draw random signs of the topics' differences, intervals draw random samples of the topics. All systems and
measures of a comparison have the same signs and samples, so that a matrix product per block of them computes all sums:
SciPy's `permutation_test` and `bootstrap` draw anew for each, and take minutes for ten systems on the topics of MS
MARCO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.records import Measurement

from .exchange import make_topic_frame
from .inputs import RunCard
from .metrics import LEVEL, mean

if TYPE_CHECKING:
    import pandas

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


def run_randomisation(differences: np.ndarray) -> np.ndarray:
    """Two-sided p of the paired randomisation test: how often a sum of randomly signed differences is as far from 0.

    Exact if there are at most `RESAMPLES` ways to sign the differences that are not 0; else so many ways are drawn,
    with a fixed seed, and the observed one counts as another.
    """
    p_values = np.ones(differences.shape[1])
    ways = (differences != 0).sum(axis=0)
    many = ways > math.log2(RESAMPLES)
    for column in np.flatnonzero(~many):
        changed = differences[differences[:, column] != 0, column, None]
        all_signs = np.arange(2 ** len(changed))[:, None] >> np.arange(len(changed)) & 1
        p_values[column] = _count_as_far(changed, [all_signs.astype(np.float64)])[0] / 2 ** len(changed)
    if many.any():
        as_far = _count_as_far(differences[:, many], _draw_signs(len(differences)))
        p_values[many] = (as_far + 1) / (RESAMPLES + 1)
    return p_values


def _count_as_far(differences: np.ndarray, signs: Iterable[np.ndarray]) -> np.ndarray:
    """How many signed sums [P] are at least as far from 0 as the sum; `signs` are blocks [b, T] of 1 (plus) and 0."""
    total, rounding = differences.sum(axis=0), ROUNDING * np.abs(differences).sum(axis=0)
    count = np.zeros(differences.shape[1])
    for plus in signs:
        count += (np.abs(2 * (plus @ differences) - total) >= np.abs(total) - rounding).sum(axis=0)
    return count


def _draw_signs(topics: int) -> Iterator[np.ndarray]:
    """`RESAMPLES` random ways to sign topics."""
    rng = np.random.default_rng(SEED)
    for rows in _split_rows(RESAMPLES, topics):
        bits = np.unpackbits(rng.integers(256, size=(rows, -(-topics // 8)), dtype=np.uint8), axis=1)
        yield bits[:, :topics].astype(np.float64)


def estimate_intervals(differences: np.ndarray) -> np.ndarray:
    """The intervals that hold the mean differences of 95 % of samples of the topics, drawn with a fixed seed.

    Topics are drawn with replacement, as many as there are (the percentile bootstrap).
    """
    topics, comparisons = differences.shape
    if topics < 2:
        return np.full((2, comparisons), math.nan)
    rng = np.random.default_rng(SEED)
    means = []
    for rows in _split_rows(BOOTSTRAPS, topics):
        drawn = rng.integers(topics, size=(rows, topics)) + topics * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * topics).reshape(rows, topics)
        means.append(times.astype(np.float64) @ differences / topics)
    tail = (1 - CONFIDENCE) / 2
    return np.quantile(np.concatenate(means), [tail, 1 - tail], axis=0)


def _split_rows(rows: int, columns: int) -> Iterator[int]:
    """The sizes of blocks of rows with at most `BLOCK_CELLS` cells each, or one row."""
    size = max(1, BLOCK_CELLS // columns)
    for start in range(0, rows, size):
        yield min(size, rows - start)


class SystemComparison(NamedTuple):
    """One system against the baseline by one measure."""

    system: str
    measure: str
    baseline: float
    value: float
    difference: float  # mean over the topics, system minus baseline
    p: float  # two-sided, by `test`
    p_corrected: float  # by Holm over all systems compared by this measure
    better: int
    equal: int
    worse: int
    low: float = math.nan  # of the 95 % interval of the difference, see `estimate_intervals`; NaN for one topic
    high: float = math.nan
    kendall: float = math.nan  # tau-b of the values per topic; NaN, as r, if either system's are all equal
    pearson: float = math.nan
    significant: bool = False  # the corrected p is below `LEVEL`
    baseline_system: str = ""
    test: str = ""
    ties: str = ""


def run_student_t(differences: np.ndarray) -> np.ndarray:
    """Two-sided p [P] of Student's paired t test, from differences [T, P]; 1 if no topic differs."""
    from scipy.stats import ttest_1samp

    p_values = np.where(differences.any(axis=0) & (len(differences) > 1), 0.0, 1.0)
    spread = np.ptp(differences, axis=0) > 0
    p_values[spread] = ttest_1samp(differences[:, spread], 0.0).pvalue
    return p_values


TESTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"randomisation": run_randomisation, "student": run_student_t}


def compute_correlations(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Kendall's tau-b and Pearson's r of two systems' values per topic; NaN if either system's are all equal."""
    from scipy.stats import kendalltau, pearsonr

    if np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return math.nan, math.nan
    return float(kendalltau(ours, theirs).statistic), float(pearsonr(ours, theirs).statistic)


def apply_holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order of the input."""
    corrected = [0.0] * len(p_values)
    floor = 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, (len(p_values) - place) * p_values[i]))
        corrected[i] = floor
    return corrected


def compare(values: pandas.DataFrame, test: str = "randomisation") -> list[SystemComparison]:
    """Compares each system with the first, by each measure."""
    if test not in TESTS:
        raise UnknownName("test", test, TESTS)
    baseline = values.columns[0][1]
    pairs = [(measure, system) for measure, system in values.columns if system != baseline]
    if not pairs:
        return []
    ours = values[[(measure, baseline) for measure, _ in pairs]].to_numpy()  # [T, P]
    theirs = values[pairs].to_numpy()  # [T, P]
    p_values = TESTS[test](theirs - ours).tolist()
    low, high = estimate_intervals(theirs - ours).tolist()
    rows = []
    columns = zip(pairs, ours.T, theirs.T, p_values, low, high, strict=True)
    for (measure, system), mine, other, p, of_low, of_high in columns:
        differences = other - mine
        row = SystemComparison(
            *(system, measure, mean(mine), mean(other), mean(differences), p, p),
            *(int((differences > 0).sum()), int((differences == 0).sum()), int((differences < 0).sum())),
            *(of_low, of_high, *compute_correlations(other, mine)),
            baseline_system=baseline,
            test=test,
        )
        rows.append(row)
    p_values_of = {measure: [row.p for row in rows if row.measure == measure] for measure, _ in pairs}
    corrected = {measure: iter(apply_holm(values)) for measure, values in p_values_of.items()}
    rows = [row._replace(p_corrected=next(corrected[row.measure])) for row in rows]
    return [row._replace(significant=row.p_corrected < LEVEL) for row in rows]


def compare_runs(measured: Sequence[Sequence[Measurement]], test: str = "randomisation") -> list[SystemComparison]:
    """Compares each run with the first, by each measure."""
    if len({rows[0].ties for rows in measured}) > 1:
        raise UsageError("the runs are measured with different orders of equal scores; measure all with one")
    if len(datasets := {rows[0].dataset for rows in measured}) > 1:
        raise UsageError(f"the runs answer different datasets ({', '.join(sorted(datasets))}); compare within one")
    names = [rows[0].run for rows in measured]
    if len(set(names)) < len(names):
        raise UsageError(f"two systems of one name ({', '.join(names)}); name each differently")
    values = make_topic_frame(row for rows in measured for row in rows)
    return [row._replace(ties=measured[0][0].ties) for row in compare(values, test)]


def find_differing(
    cards: Sequence[RunCard], measured: Sequence[Sequence[Measurement]], test: str
) -> dict[tuple[str, str], tuple[str, ...]]:
    """The measures by which each run, given by its path and dataset, differs from the first system on that dataset.

    They differ if the corrected p is below `LEVEL`. A dataset that the first system lacks has no marks.
    """
    marked: dict[tuple[str, str], tuple[str, ...]] = {}
    for dataset in dict.fromkeys(rows[0].dataset for rows in measured):
        of_dataset = [(card, rows) for card, rows in zip(cards, measured, strict=True) if rows[0].dataset == dataset]
        of_dataset.sort(key=lambda pair: pair[0].system != cards[0].system)
        if of_dataset[0][0].system != cards[0].system:
            continue
        for row in compare_runs([rows for _, rows in of_dataset], test):
            if row.significant:
                marked[row.system, dataset] = (*marked.get((row.system, dataset), ()), row.measure)
    return marked
