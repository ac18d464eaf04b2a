"""What a run is measured against: the judgements that the caller names, or those that the run's manifest knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lexvl_anserini.errors import DataError, UsageError
from lexvl_anserini.manifest import read_run_manifest
from lexvl_anserini.records import Qrel


class Source(NamedTuple):
    """Where judgements come from: a file of qrels, else a data set by name; both None where nobody knows."""

    qrels: Path | None = None
    dataset: str | None = None
    split: str | None = None
    data_dir: str | None = None
    escape_ids: bool = False
    direction: str | None = None


class Judgements(NamedTuple):
    """Judgements under a label for rows and messages; `remove_query` is the data set's rule, None if unknown."""

    label: str
    qrels: tuple[Qrel, ...]
    remove_query: bool | None = None


@dataclass(frozen=True)
class RunCard:
    """A run on disk and what its manifest tells of it; only the path for a run that was made elsewhere.

    system      the encoder's name and options, else the name of the file
    source      the judgements of the topics it answers
    hits        length of its lists at most
    efficiency  figures by name (`ms_per_query`, `index_bytes`, ...), for tables
    """

    path: Path
    system: str
    source: Source = Source()
    remove_query: bool = False
    efficiency: Mapping[str, float] = field(default_factory=dict)
    hits: int | None = None


def system_name(encoder: Mapping[str, Any]) -> str:
    """An encoder's name, with its options in brackets; a fusion's method and runs. The direction is the data set's.

    >>> system_name({"name": "vdr", "options": {"pooling": "max", "top_k": 64}})
    'vdr (pooling=max, top_k=64)'
    >>> system_name({"name": "fusion", "options": {"method": "rrf", "runs": ["a.trec@12", "b.trec.gz@34"]}})
    'rrf of a, b'
    """
    name, settings = str(encoder.get("name", "?")), encoder.get("options") or {}
    if name == "fusion":
        runs = (run_name(str(run).partition("@")[0]) for run in settings.get("runs", ()))
        return f"{settings.get('method', name)} of {', '.join(runs)}"
    options = ", ".join(
        f"{option}={value}" for option, value in settings.items() if value is not None and option != "direction"
    )
    return f"{name} ({options})" if options else name


def run_name(file: str) -> str:
    """A run's file name without what says that it is a run."""
    return file.removesuffix(".gz").removesuffix(".trec")


def describe_run(path: Path) -> RunCard:
    """What is known of a run without reading it.

    Raises:
        DataError: there is no such run.
        ArtefactError: its manifest is damaged.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such run; write one with python -m lexvl_anserini.search")
    manifest = read_run_manifest(path)
    if manifest is None:
        return RunCard(path, system=run_name(path.name))
    return RunCard(
        path,
        system=system_name(manifest.encoder),
        source=Source(
            dataset=manifest.dataset or None,
            split=manifest.split or None,
            data_dir=manifest.data_dir,
            escape_ids=bool(manifest.corpus.get("escape_ids")),
            direction=manifest.corpus.get("direction"),
        ),
        remove_query=manifest.remove_query,
        efficiency=manifest.efficiency,
        hits=manifest.hits,
    )


def choose_source(card: RunCard, asked: Source) -> Source:
    """What the caller asked for, completed by what the run's manifest knows.

    Raises:
        UsageError: neither names judgements.
    """
    if asked.qrels:
        return asked
    known = card.source if asked.dataset in (None, card.source.dataset) else Source()
    source = Source(
        dataset=asked.dataset or known.dataset,
        split=asked.split or known.split,
        data_dir=asked.data_dir or known.data_dir,
        escape_ids=asked.escape_ids or known.escape_ids,
        direction=asked.direction or known.direction,
    )
    if source.dataset is None:
        raise UsageError(
            f"{card.path}: no manifest beside the run names its data set; give --qrels FILE or --dataset NAME"
        )
    return source


def read_judgements(source: Source) -> Judgements:
    """Reads all judgements of a source.

    Raises:
        UnknownName: no data set of that name.
        DataError: the data set's files, or the file of qrels, are missing or malformed.
    """
    if source.qrels:
        from lexvl_anserini.data.topics import read_qrels

        return Judgements(str(source.qrels), tuple(read_qrels(source.qrels, source.escape_ids)))
    from lexvl_anserini.data.dataset import load_dataset

    assert source.dataset is not None
    dataset = load_dataset(source.dataset, source.split, source.data_dir, source.escape_ids, source.direction)
    label = f"{dataset.name}/{dataset.split}"
    if dataset.direction != "text-to-text":
        label += f" {dataset.direction}"
    return Judgements(label, tuple(dataset.qrels()), dataset.remove_query)
