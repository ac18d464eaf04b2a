"""Measurements as pandas frames: one row per value, or systems side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import Measurement

if TYPE_CHECKING:
    import pandas


def frame(measurements: Iterable[Measurement]) -> pandas.DataFrame:
    """One row per value; the columns are the fields of `Measurement`, `value` is float64.

    Rows with query_id "all" are the means over the topics.
    """
    import pandas

    rows = pandas.DataFrame.from_records(list(measurements), columns=Measurement._fields)
    return rows.astype({"value": "float64"})


def by_topic(measurements: Iterable[Measurement]) -> pandas.DataFrame:
    """Values of several runs on the same topics: topics as rows, pairs of measure and run as columns.

    Rows and columns are in the order of the measurements; means are left out.

    Raises:
        DataError: a run lacks a value that another has.
    """
    rows = frame(row for row in measurements if row.query_id != "all")
    wide = rows.pivot(index="query_id", columns=["measure", "run"], values="value")
    wide = wide.reindex(index=rows["query_id"].unique())
    for measure, run in wide.columns[wide.isna().any()]:
        raise DataError(f"{run}: no {measure} of a topic that another run has; systems need the same topics")
    order = [(measure, run) for measure in rows["measure"].unique() for run in rows["run"].unique()]
    return wide[order]
