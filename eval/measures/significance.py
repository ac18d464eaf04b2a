"""Two systems on the same topics: paired tests and intervals of their difference, and correlations of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lexvl_anserini.errors import DataError, UnknownName, UsageError
from lexvl_anserini.records import Measurement

from .metrics import mean, per_topic

# Sign flips drawn by the randomisation test: its smallest p is about 1e-5.
RESAMPLES = 99_999
# Samples drawn for an interval.
BOOTSTRAPS = 9_999
CONFIDENCE = 0.95
SEED = 20240307


class SystemComparison(NamedTuple):
    """One system against the baseline by one measure.

    difference           mean over the topics, system minus baseline
    p, p_corrected       two-sided; the latter by Holm over all systems compared by this measure
    better, equal, worse topics
    low, high            95 % interval of the difference, see `bootstrap_interval`; NaN for one topic
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


def student_t(differences: np.ndarray) -> float:
    """Two-sided p of Student's paired t test; 1 if no topic differs."""
    from scipy.stats import ttest_1samp

    if not differences.any():
        return 1.0
    if np.ptp(differences) == 0:
        return 0.0 if len(differences) > 1 else 1.0
    return float(ttest_1samp(differences, 0.0).pvalue)


def randomisation(differences: np.ndarray) -> float:
    """Two-sided p of the paired randomisation test: how often a mean of randomly signed differences is as far from 0.

    Exact if there are at most `RESAMPLES` ways to sign; else that many are drawn, with a fixed seed.
    """
    from scipy.stats import permutation_test

    differences = differences[differences != 0]  # a sign has no effect at 0, and most topics do not differ
    if len(differences) < 2:
        return 1.0
    result = permutation_test(
        (differences, np.zeros_like(differences)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=1000,
        rng=np.random.default_rng(SEED),
    )
    return float(result.pvalue)


TESTS: dict[str, Callable[[np.ndarray], float]] = {"randomisation": randomisation, "student": student_t}


def bootstrap_interval(differences: np.ndarray) -> tuple[float, float]:
    """The interval that holds the mean difference of 95 % of samples of the topics, drawn with a fixed seed.

    Topics are drawn with replacement, as many as there are (the percentile bootstrap); NaN for one topic.
    """
    from scipy.stats import bootstrap

    if len(differences) < 2:
        return math.nan, math.nan
    interval = bootstrap(
        (differences,),
        np.mean,
        n_resamples=BOOTSTRAPS,
        batch=100,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return float(interval.low), float(interval.high)


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


def compare(
    baseline: Mapping[str, float],
    systems: Mapping[str, Mapping[str, float]],
    measure: str,
    test: str = "randomisation",
) -> list[SystemComparison]:
    """Compares each system with the baseline, from values per topic.

    Args:
        baseline: value by query_id.
        systems: the same for each system, by name; over the same topics.
        measure: of the values.
        test: "randomisation" or "student".

    Raises:
        UnknownName: no such test.
        DataError: a system was measured on other topics than the baseline.
    """
    if test not in TESTS:
        raise UnknownName("test", test, TESTS)
    topics = list(baseline)
    reference = np.array([baseline[topic] for topic in topics])
    found = []
    for name, values in systems.items():
        if values.keys() != baseline.keys():
            raise DataError(f"{name}: measured on other topics than the baseline; a paired test needs the same topics")
        found.append(_paired(name, measure, reference, np.array([values[topic] for topic in topics]), TESTS[test]))
    corrected = holm([row.p for row in found])
    return [row._replace(p_corrected=p) for row, p in zip(found, corrected, strict=True)]


def _paired(
    name: str, measure: str, baseline: np.ndarray, values: np.ndarray, test: Callable[[np.ndarray], float]
) -> SystemComparison:
    """One system against the baseline, values [T] each, without the correction for several systems."""
    differences = values - baseline
    p = test(differences)
    low, high = bootstrap_interval(differences)
    kendall, pearson = correlations(values, baseline)
    return SystemComparison(
        system=name,
        measure=measure,
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
    return [
        row._replace(ties=baseline[0].ties)
        for measure in dict.fromkeys(row.measure for row in baseline)
        for row in compare(
            per_topic(baseline, measure), {rows[0].run: per_topic(rows, measure) for rows in others}, measure, test
        )
    ]
