"""Averages over datasets that papers print, by name; one that lacks a dataset is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lexvl_anserini.ground.errors import DataError, UnknownName
from lexvl_anserini.ground.records import Measurement

CQADUPSTACK = (
    "android", "english", "gaming", "gis", "mathematica", "physics", "programmers", "stats", "tex", "unix",
    "webmasters", "wordpress",
)  # fmt: skip
# Without MS MARCO (the models train on it) and Quora.
BEIR_12 = (
    "arguana", "climate-fever", "dbpedia-entity", "fever", "fiqa", "hotpotqa", "nfcorpus", "nq", "scidocs", "scifact",
    "trec-covid", "webis-touche2020",
)  # fmt: skip
BEIR_13 = (*BEIR_12, "quora")
# Not public, or not in BEIR's archives.
BEIR_CLOSED = ("bioasq", "robust04", "signal1m", "trec-news")

VIDORE_2 = ("biomedical_lectures_v2", "economics_reports_v2", "esg_reports_human_labeled_v2", "esg_reports_v2")


def _list_test_splits(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"beir/{name}/test" for name in names)


# Datasets, or other averages: CQADupStack is the mean of its 12 parts and counts once.
AVERAGES: Mapping[str, tuple[str, ...]] = {
    "beir-12": _list_test_splits(BEIR_12),
    "beir-13": _list_test_splits(BEIR_13),
    "beir-18": (*_list_test_splits((*BEIR_13, *BEIR_CLOSED)), "cqadupstack"),
    "vidore-2": tuple(f"vidore/{name},english/test text-to-image" for name in VIDORE_2),
    "cqadupstack": _list_test_splits(f"cqadupstack/{part}" for part in CQADUPSTACK),
}


def list_datasets(name: str) -> list[str]:
    """All datasets of an average."""
    if name not in AVERAGES:
        raise UnknownName("average", name, AVERAGES)
    parts = (list_datasets(part) if part in AVERAGES else [part] for part in AVERAGES[name])
    return [dataset for part in parts for dataset in part]


def compute_average(name: str, values: Mapping[str, float]) -> float:
    """An average of values by dataset; those of other datasets do not count."""
    needed = list_datasets(name)
    if missing := [dataset for dataset in needed if dataset not in values]:
        raise DataError(
            f"{name} is the mean of {len(needed)} datasets, and {len(missing)} have no value: {', '.join(missing)}"
        )
    parts = [compute_average(part, values) if part in AVERAGES else values[part] for part in AVERAGES[name]]
    return sum(parts) / len(parts)


def compute_averages(name: str, means: Iterable[Measurement]) -> list[Measurement]:
    """The average of each run and measure, as a measurement of the dataset `name`."""
    systems: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in means:
        systems.setdefault((row.run, row.measure, row.ties), {})[row.dataset] = row.value
    averages = []
    for (system, measure, ties), values in systems.items():
        try:
            averages.append(Measurement(system, name, measure, "all", compute_average(name, values), ties))
        except DataError as error:
            raise DataError(f"{system}: {measure}: {error}") from error
    return averages
