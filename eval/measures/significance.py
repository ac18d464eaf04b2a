"""Two systems on the same topics: paired tests and intervals of their difference, and correlations of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lexvl_anserini.errors import DataError, UnknownName, UsageError
from lexvl_anserini.records import Measurement

from .metrics import mean, per_topic
from .resampling import bootstrap_intervals, randomisation


class SystemComparison(NamedTuple):
    """One system against the baseline by one measure.

    difference           mean over the topics, system minus baseline
    p, p_corrected       two-sided; the latter by Holm over all systems compared by this measure
    better, equal, worse topics
    low, high            95 % interval of the difference, see `bootstrap_intervals`; NaN for one topic
    kendall, pearson     correlation of the values per topic (tau-b, r); NaN if either system's values are all equal
    ties                 the order of equal scores of all values
    """

    system: str
    measure: str
    baseline: float
    value: float
    difference: float
    p: float
    p_corrected: float
    better: int
    equal: int
    worse: int
    low: float = math.nan
    high: float = math.nan
    kendall: float = math.nan
    pearson: float = math.nan
    ties: str = ""


def student_t(differences: np.ndarray) -> np.ndarray:
    """Two-sided p [P] of Student's paired t test, from differences [T, P]; 1 if no topic differs."""
    from scipy.stats import ttest_1samp

    p_values = np.where(differences.any(axis=0) & (len(differences) > 1), 0.0, 1.0)
    spread = np.ptp(differences, axis=0) > 0
    p_values[spread] = ttest_1samp(differences[:, spread], 0.0).pvalue
    return p_values


TESTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"randomisation": randomisation, "student": student_t}


def correlations(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Kendall's tau-b and Pearson's r of two systems' values per topic; NaN if either system's values are all equal."""
    from scipy.stats import kendalltau, pearsonr

    if np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return math.nan, math.nan
    return float(kendalltau(ours, theirs).statistic), float(pearsonr(ours, theirs).statistic)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order of the input.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    floor = 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, (len(p_values) - place) * p_values[i]))
        corrected[i] = floor
    return corrected


class Pair(NamedTuple):
    """The values of a system and of the baseline by one measure, by query_id."""

    system: str
    measure: str
    baseline: Mapping[str, float]
    values: Mapping[str, float]


def compare(pairs: Sequence[Pair], test: str = "randomisation") -> list[SystemComparison]:
    """Compares each system with the baseline.

    Args:
        pairs: all of the same topics.
        test: "randomisation" or "student".

    Raises:
        UnknownName: no such test.
        DataError: a system was measured on other topics than the baseline.
    """
    if test not in TESTS:
        raise UnknownName("test", test, TESTS)
    topics = list(pairs[0].baseline)
    for pair in pairs:
        if not pair.values.keys() == pair.baseline.keys() == pairs[0].baseline.keys():
            name = pair.system
            raise DataError(f"{name}: measured on other topics than the baseline; a paired test needs the same topics")
    baseline = np.array([[pair.baseline[topic] for topic in topics] for pair in pairs])  # [P, T]
    values = np.array([[pair.values[topic] for topic in topics] for pair in pairs])  # [P, T]
    differences = (values - baseline).T
    p_values = TESTS[test](differences).tolist()
    low, high = bootstrap_intervals(differences).tolist()
    rows = [
        _compared(pair, *columns) for pair, *columns in zip(pairs, baseline, values, p_values, low, high, strict=True)
    ]
    corrected: dict[str, Iterator[float]] = {
        measure: iter(holm([row.p for row in rows if row.measure == measure])) for measure in {r.measure for r in rows}
    }
    return [row._replace(p_corrected=next(corrected[row.measure])) for row in rows]


def _compared(
    pair: Pair, baseline: np.ndarray, values: np.ndarray, p: float, low: float, high: float
) -> SystemComparison:
    """A system and the baseline, values [T] each, without the correction for several systems."""
    differences = values - baseline
    kendall, pearson = correlations(values, baseline)
    return SystemComparison(
        system=pair.system,
        measure=pair.measure,
        baseline=mean(baseline),
        value=mean(values),
        difference=mean(differences),
        p=p,
        p_corrected=p,
        better=int((differences > 0).sum()),
        equal=int((differences == 0).sum()),
        worse=int((differences < 0).sum()),
        low=low,
        high=high,
        kendall=kendall,
        pearson=pearson,
    )


def compare_runs(measured: Sequence[Sequence[Measurement]], test: str = "randomisation") -> list[SystemComparison]:
    """Compares each run with the first, by each measure.

    Args:
        measured: the measurements of each run, as `evaluate` returns them; the first run is the baseline.
        test: "randomisation" or "student".

    Raises:
        UsageError: the runs answer different datasets, or were measured with different orders of equal scores.
        UnknownName: no such test.
    """
    if len({rows[0].ties for rows in measured}) > 1:
        raise UsageError("the runs are measured with different orders of equal scores; measure all with one")
    if len(datasets := {rows[0].dataset for rows in measured}) > 1:
        raise UsageError(f"the runs answer different datasets ({', '.join(sorted(datasets))}); compare within one")
    baseline, *others = measured
    pairs = [
        Pair(rows[0].run, measure, per_topic(baseline, measure), per_topic(rows, measure))
        for measure in dict.fromkeys(row.measure for row in baseline)
        for rows in others
    ]
    return [row._replace(ties=baseline[0].ties) for row in compare(pairs, test)]
