"""Paired tests of the difference between two systems on the same topics, and Holm's correction for several systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lexvl_anserini.errors import DataError, UnknownName, UsageError
from lexvl_anserini.records import Measurement

from .metrics import mean, per_topic

# Sign flips drawn by the randomisation test: its smallest p is about 1e-5.
RESAMPLES = 99_999
SEED = 20240307


class SystemComparison(NamedTuple):
    """One system against the baseline by one measure.

    difference           mean over the topics, system minus baseline
    p, p_corrected       two-sided; the latter by Holm over all systems compared by this measure
    better, equal, worse topics
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
    differences = {}
    for name, values in systems.items():
        if values.keys() != baseline.keys():
            raise DataError(f"{name}: measured on other topics than the baseline; a paired test needs the same topics")
        differences[name] = np.array([values[topic] - baseline[topic] for topic in topics])
    p_values = [TESTS[test](d) for d in differences.values()]
    reference = mean(baseline.values())
    return [
        SystemComparison(
            system=name,
            measure=measure,
            baseline=reference,
            value=mean(systems[name].values()),
            difference=mean(d),
            p=p,
            p_corrected=corrected,
            better=int((d > 0).sum()),
            equal=int((d == 0).sum()),
            worse=int((d < 0).sum()),
        )
        for (name, d), p, corrected in zip(differences.items(), p_values, holm(p_values), strict=True)
    ]


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
