"""Averages over datasets: by hand, and refused where a dataset is missing."""

from __future__ import annotations

import pytest

from eval.measures.averages import AVERAGES, compute_average, compute_averages, list_datasets
from eval.reproduction.quantities import MEANS
from lexvl_anserini.data.corpora.beir import BEIR_ARCHIVES
from lexvl_anserini.ground.errors import DataError, UnknownName
from lexvl_anserini.ground.records import Measurement


def test_what_averages_have():
    assert {name: (len(AVERAGES[name]), len(list_datasets(name))) for name in AVERAGES} == {
        "beir-12": (12, 12), "beir-13": (13, 13), "beir-18": (18, 29), "cqadupstack": (12, 12),
        "vidore-2": (4, 4),
    }  # fmt: skip
    assert {*list_datasets("beir-13")} - {*list_datasets("beir-12")} == {"beir/quora/test"}
    assert "beir/msmarco/dev" not in list_datasets("beir-18")
    archived = {f"beir/{name}/test" for name in BEIR_ARCHIVES}
    assert {*list_datasets("beir-18")} - archived == {
        f"beir/{name}/test" for name in ("bioasq", "robust04", "signal1m", "trec-news")
    }
    assert MEANS["beir-12"] == AVERAGES["beir-12"]


def test_cqadupstack_counts_once():
    values = dict.fromkeys(list_datasets("beir-18"), 0.5)
    for part in AVERAGES["cqadupstack"]:
        values[part] = 0.0
    values[AVERAGES["cqadupstack"][0]] = 0.6
    assert compute_average("cqadupstack", values) == pytest.approx(0.05)
    assert compute_average("beir-18", values) == pytest.approx((17 * 0.5 + 0.05) / 18)
    assert compute_average("beir-12", {**values, "beir/msmarco/dev": 1.0}) == 0.5


def test_an_incomplete_average_is_refused():
    values = dict.fromkeys(list_datasets("beir-12"), 0.5)
    del values["beir/nq/test"], values["beir/fever/test"]
    with pytest.raises(DataError, match="2 have no value: beir/fever/test, beir/nq/test"):
        compute_average("beir-12", values)
    with pytest.raises(UnknownName, match="did you mean 'beir-12'"):
        compute_average("beir12", values)


def test_averages_of_systems():
    means = [
        Measurement(system, dataset, "nDCG@10", "all", value, "rank")
        for system, value in (("a", 0.25), ("b", 0.75))
        for dataset in list_datasets("beir-12")
    ]
    assert compute_averages("beir-12", means) == [
        Measurement("a", "beir-12", "nDCG@10", "all", 0.25, "rank"),
        Measurement("b", "beir-12", "nDCG@10", "all", 0.75, "rank"),
    ]
    with pytest.raises(DataError, match="^b: nDCG@10: beir-12 is the mean of 12 datasets, and 1 have no value"):
        compute_averages("beir-12", means[:-1])
