"""Published runs of other systems, measured again: every printed digit must come out."""

from __future__ import annotations

from dataclasses import replace

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.manifest import CorpusRef

from ..measures.inputs import JudgementSource, describe_run
from ..measures.measure_runs import measure_runs
from ..measures.metrics import means
from ..measures.names import parse_measure
from .rows import Finding, Need, RowPart, Workplace


def needed_files(part: RowPart, place: Workplace) -> list[Need]:
    """The run of a row and its judgements, in the data folder."""
    assert part.runs is not None, "the table has published runs"
    names = (part.runs.files.format(part.label), part.runs.qrels)
    return [Need("data", name, (data_root(place.data_dir) / name).is_file(), part.runs.origin) for name in names]


def measure_published(part: RowPart, place: Workplace) -> Finding:
    """The measures of a published run, with equal scores in trec_eval's order, as its manifest does not vouch for it.

    They are stored as those of runs that this project searches.

    Raises:
        DataError: the run or the judgements are not in the data folder, or malformed.
    """
    run, qrels = (data_root(place.data_dir) / need.name for need in needed_files(part, place))
    if not qrels.is_file():
        raise DataError(f"{qrels}: no such judgements")
    card = replace(describe_run(run), system=part.label)
    judgements = JudgementSource(qrels, CorpusRef(part.data))
    [rows] = measure_runs([card], judgements, part.measures, results=place.output / "results")
    values = means(rows)
    return Finding({name: values[str(parse_measure(name))] for name in part.measures}, 0)
