"""Paired tests: small cases by enumeration, the rest against the statistics library."""

import itertools

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap, permutation_test, ttest_rel

from eval.measures import significance as resampling
from eval.measures.significance import (
    apply_holm,
    compare,
    compare_runs,
    compute_correlations,
    estimate_intervals,
    run_randomisation,
    run_student_t,
)
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.ground.records import Measurement


def p_of(test, differences) -> float:
    """The p of one comparison."""
    [p] = test(np.array(differences, dtype=float)[:, None])
    return p


def enumerated(differences: list[float]) -> float:
    """Share of all 2^n ways to sign whose mean is as far from 0 as the one observed."""
    observed = abs(sum(differences))
    ways = list(itertools.product((-1, 1), repeat=len(differences)))
    extreme = sum(abs(sum(s * d for s, d in zip(way, differences, strict=True))) >= observed - 1e-12 for way in ways)
    return extreme / len(ways)


@pytest.mark.parametrize("differences", [[1], [1, 1, 1], [1, -1, 1, 2], [0.5, 0, 0.25, -0.125, 1]])
def test_randomisation_of_few_topics_is_exact(differences: list[float]):
    assert p_of(run_randomisation, differences) == pytest.approx(enumerated(differences), abs=1e-12)
    none = [0.0] * len(differences)
    assert p_of(run_student_t, none) == p_of(run_randomisation, none) == 1, "no difference is no evidence"


def test_drawn_signs_estimate_what_all_signs_give(monkeypatch: pytest.MonkeyPatch):
    differences = np.random.default_rng(3).normal(0.03, 0.1, (12, 2)).round(2)
    differences[:3, 1] = 0
    exact = run_randomisation(differences)
    monkeypatch.setattr(resampling, "RESAMPLES", 200)  # fewer than 2^9
    monkeypatch.setattr(resampling, "BLOCK_CELLS", 100)
    drawn = run_randomisation(differences)
    assert drawn == pytest.approx(exact, abs=0.1) and (drawn != exact).all()
    # Each comparison has the same p beside others.
    assert run_randomisation(differences[:, :1]) == drawn[:1]


def test_both_resamplings_agree_with_scipys():
    differences = np.random.default_rng(4).normal(0.02, 0.1, 30)
    # All 2^10 signs, so that neither side draws any.
    few, zeros = differences[:10], np.zeros(10)
    settings = {"permutation_type": "samples", "vectorized": True, "n_resamples": 2**10}
    theirs = permutation_test((few, zeros), lambda x, y, axis: np.mean(x - y, axis=axis), **settings)
    assert p_of(run_randomisation, few) == pytest.approx(theirs.pvalue, abs=1e-12)
    assert p_of(run_student_t, few) == pytest.approx(ttest_rel(few, zeros).pvalue, abs=1e-12)
    many = np.random.default_rng(1).normal(0.02, 0.1, 100)  # drawn, with a fixed seed
    drawn = p_of(run_randomisation, many)
    assert drawn == p_of(run_randomisation, many) == pytest.approx(p_of(run_student_t, many), abs=0.02)
    # Each side draws 1e4 means of spread .02: an end of the interval varies by .0005.
    interval = bootstrap((differences,), np.mean, method="percentile").confidence_interval
    assert estimate_intervals(differences[:, None])[:, 0] == pytest.approx([interval.low, interval.high], abs=0.003)


def test_holm_by_hand():
    # Ascending .01 .03 .04 times 3 2 1; a corrected value never falls below the one before.
    assert apply_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert apply_holm([0.9, 0.8]) == [1, 1]
    assert apply_holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_no_correction_and_bonferroni(p_values: list[float]):
    corrected = apply_holm(p_values)
    assert all(p <= c <= min(1, p * len(p_values)) for p, c in zip(p_values, corrected, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(corrected)[order]) >= 0).all()


def test_compare():
    baseline = {"1": 0.0, "2": 0.5, "3": 0.5}
    systems = {"first": baseline, "a": {"1": 1.0, "2": 1.0, "3": 0.5}, "b": baseline}
    better, same = compare(pandas.DataFrame({("AP", name): values for name, values in systems.items()}), "student")
    assert (better.baseline, better.value, better.difference) == pytest.approx((1 / 3, 2.5 / 3, 0.5))
    assert (better.better, better.equal, better.worse) == (2, 1, 0)
    assert better.p_corrected == pytest.approx(2 * better.p)
    assert (same.difference, same.p, same.p_corrected, same.equal) == (0, 1, 1, 3)
    assert (better.low, better.high) == (0, 1) and (same.low, same.high) == (0, 0)
    assert (same.kendall, same.pearson) == pytest.approx((1, 1))


def test_an_interval_is_that_of_all_samples_of_few_topics():
    differences = np.array([0.0, 0.0, 1.0])
    # Of the 27 samples 8 have mean 0 and one has mean 1, more than 2.5 % at each end.
    assert estimate_intervals(differences[:, None])[:, 0].tolist() == [0, 1]
    assert estimate_intervals(np.full((4, 1), 0.25))[:, 0].tolist() == [0.25, 0.25]
    assert np.isnan(estimate_intervals(np.array([[0.5]]))).all()


def test_correlations_by_hand():
    # Pairs of topics: 4 in the same order, 1 in the other, 1 tied in the second system: tau-b 3 / sqrt(6 * 5).
    ours, theirs = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 3])
    tau, r = compute_correlations(ours, theirs)
    assert tau == pytest.approx(3 / np.sqrt(30))
    # Deviations -1.5 -.5 .5 1.5 and -1.25 .75 -.25 .75: 2.5 / sqrt(5 * 2.75).
    assert r == pytest.approx(2.5 / np.sqrt(5 * 2.75))
    assert np.isnan(compute_correlations(ours, np.ones(4))).all()


def test_unknown_tests_and_equal_names_are_refused():
    with pytest.raises(UnknownName, match="did you mean 'student'"):
        compare(pandas.DataFrame({("AP", "a"): [0.0]}), "students")
    with pytest.raises(UsageError, match="two systems of one name"):
        compare_runs([[Measurement("a", "d", "AP", "1", 0.0)]] * 2)
