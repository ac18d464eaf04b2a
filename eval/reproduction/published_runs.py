"""Published runs of other systems, measured again: every printed digit must come out."""

from __future__ import annotations

from lexvl_anserini.data.dataset import data_root
from lexvl_anserini.errors import DataError

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

    Raises:
        DataError: the run or the judgements are not in the data folder, or malformed.
    """
    run, qrels = (data_root(place.data_dir) / need.name for need in needed_files(part, place))
    if not qrels.is_file():
        raise DataError(f"{qrels}: no such judgements")
    [rows] = measure_runs([describe_run(run)], JudgementSource(qrels), part.measures)
    values = means(rows)
    return Finding({name: values[str(parse_measure(name))] for name in part.measures}, 0)
