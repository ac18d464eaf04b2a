"""Names that users give to systems and to datasets, instead of paths and of encoders with all their options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import Measurement

from ..measures.inputs import RunCard


def labelled(cards: Sequence[RunCard], labels: Sequence[str] | None) -> list[RunCard]:
    """The runs under the system names that the user gives, if any."""
    if not labels:
        return list(cards)
    if len(labels) != len(cards):
        raise UsageError(f"{len(labels)} labels for {len(cards)} runs; give one --label per --run, or none")
    return [replace(card, system=label) for card, label in zip(cards, labels, strict=True)]


def with_systems(cards: Sequence[RunCard], measured: Sequence[Sequence[Measurement]]) -> list[list[Measurement]]:
    """The measurements of each run under the name of its system."""
    return [[row._replace(run=card.system) for row in rows] for card, rows in zip(cards, measured, strict=True)]


def with_datasets(measured: Sequence[Sequence[Measurement]], labels: Sequence[str] | None) -> list[list[Measurement]]:
    """The measurements under other names of datasets, if any are given: one per dataset, in order of appearance."""
    if not labels:
        return [list(rows) for rows in measured]
    datasets = list(dict.fromkeys(rows[0].dataset for rows in measured))
    if len(labels) != len(datasets):
        raise UsageError(
            f"{len(labels)} --dataset-label for {len(datasets)} datasets ({', '.join(datasets)}); give one each or none"
        )
    names = dict(zip(datasets, labels, strict=True))
    return [[row._replace(dataset=names[row.dataset]) for row in rows] for rows in measured]


def shown_datasets(datasets: Iterable[str]) -> dict[str, str]:
    """Names of datasets for a table: of a path in one, its last two parts, if the names are still distinct.

    >>> shown_datasets(["beir:collections/beir/scifact/test", "beir/nfcorpus/test"])
    {'beir:collections/beir/scifact/test': 'beir:scifact/test', 'beir/nfcorpus/test': 'beir/nfcorpus/test'}
    """
    names = list(dict.fromkeys(datasets))
    shorter = [_without_folders(name) for name in names]
    return dict(zip(names, shorter if len(set(shorter)) == len(names) else names, strict=True))


def _without_folders(name: str) -> str:
    family, colon, path = name.rpartition(":")
    parts = path.split("/")
    return f"{family}{colon}{'/'.join(parts[-2:])}" if len(parts) > 3 else name


def split_names(judgements: Sequence[str], labels: Sequence[str] | None) -> list[str]:
    """Names for several splits: the user's, else their own; of files of judgements without folders, if still distinct.

    >>> split_names(["data/dev.qrels", "data/test.qrels"], None), split_names(["dev/a.tsv", "test/a.tsv"], None)
    (['dev.qrels', 'test.qrels'], ['dev/a.tsv', 'test/a.tsv'])
    """
    if labels and len(labels) != len(judgements):
        raise UsageError(f"{len(labels)} --dataset-label for {len(judgements)} splits; give one each or none")
    if labels:
        return list(labels)
    names = [Path(label).name for label in judgements]
    files = len(set(names)) == len(names) and all(Path(label).suffix for label in judgements)
    return names if files else list(judgements)
