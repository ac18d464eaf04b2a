"""The benchmark of measuring: its runs, and the cost of both commands."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from eval.efficiency.command import run_suite
from eval.efficiency.measuring import write_run
from eval.efficiency.suite import Options
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.runs.columns import regular_hits

ROOT = Path(__file__).parents[2]


def test_synthetic_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eval.efficiency.measuring.LINES", 20)
    with (tmp_path / "run").open("wb") as out:
        write_run(out, documents=50, topics=9, hits=6, seed=1)
    lines = [line.split() for line in (tmp_path / "run").read_text().splitlines()]
    assert len(lines) == 54 and Counter(line[0] for line in lines) == {str(t): 6 for t in range(9)}
    assert [line[3] for line in lines[:6]] == list("123456")
    assert all(int(line[2]) < 50 or int(line[2]) == 50 + int(line[0]) for line in lines)
    assert any(int(line[2]) >= 50 for line in lines)
    assert sum(len(hits.ranks) for hits in regular_hits(tmp_path / "run")) == 54  # distinct documents, falling scores


def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr("eval.efficiency.measuring.SYSTEMS", {"score": 1})
    report = run_suite("measures", Options(query_count=5, hits=[4], documents=[9], workdir=tmp_path))
    [row] = report.rows
    assert row["command"] == "eval.score" and 0 < row["cpu_s"] < 60 and row["peak_mib"] > 30
    assert report.settings["topics"] == 5


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (Options(hits=[10], documents=[9]), UsageError),
        (Options(hits=[10, 100]), UsageError),
        (Options(system=["table"]), UnknownName),
    ],
)
def test_what_the_suite_refuses(options: Options, error: type[Exception]):
    with pytest.raises(error):
        run_suite("measures", options)
