"""Runs on pages, measured as ViDoRe's authors do, by trec_eval's gains and order of equal scores."""

from __future__ import annotations

import json
from math import log2

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval.vidore import command
from tests.invoking import invoked


def test_the_measures(tmp_path):
    """Page 1 (grade 2) is second; pages 3 and 4 have equal scores, so that 4 (grade 1), the larger id, is third."""
    for name, columns in {
        "corpus": {"corpus-id": ["1", "2", "3", "4"], "image": [b"x"] * 4},
        "queries": {"query-id": ["0", "9"], "query": ["a", "b"]},
        "qrels": {"query-id": ["0", "0", "9"], "corpus-id": ["1", "4", "2"], "score": [2, 1, 1]},
    }.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.table(columns), tmp_path / name / "test-00000-of-00001.parquet")
    run = tmp_path / "x.trec"
    run.write_text("0 Q0 2 1 9 x\n0 Q0 1 2 8 x\n0 Q0 3 3 7 x\n0 Q0 4 4 7 x\n")
    rows = json.loads(invoked(command, "--run", run, "--dataset", f"vidore:{tmp_path}", "--format", "json"))
    values = {row["measure"]: row["value"] for row in rows}
    ideal = 2 + 1 / log2(3)
    assert values["nDCG@5"] == pytest.approx((2 / log2(3) + 1 / log2(4)) / ideal / 2) == values["nDCG@10"]
    assert values["Recall@5"] == 0.5  # the topic without a hit counts
