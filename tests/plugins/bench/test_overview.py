"""The suite that draws the others together: its table, its notes, and that every goal is measured by its part."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lexvl_anserini.cli import make_app
from lexvl_plugins.bench import overview
from lexvl_plugins.bench.command import Options, Ratio, Report, command

INDEX = Report(
    settings={"documents": 5, "terms_per_document": 2},
    ratios=(
        Ratio("stock / ours: CPU seconds", 11.0, 10.0, 12.5, 3),
        Ratio("stock / ours: wall seconds", 8.0, 7.0, 9.0, 3),
        Ratio("stock / ours: index bytes", 1.0, 1.0, 1.0, 1),
    ),
)
THREADS = Report(
    {"open_ms": 7.5}, ratios=(Ratio("ours: batch of queries, 1 thread / 2 threads, wall, k=10", 1.9, 1.8, 2.0, 3),)
)
OTHERS = {
    "search": Report(notes=("a is approximate",)),
    "threads": THREADS,
    **dict.fromkeys(("building", "dense", "vdr", "vdr-100k", "million"), Report()),
}


def parts_that_return(reports):
    return {name: (lambda _, r=report: r, Options()) for name, report in reports.items()}


def test_rows_hold_both_clocks_and_leave_out_what_was_not_measured():
    found = list(overview.rows({"index": INDEX, **OTHERS}))
    clocks = {"by CPU time": "11.00 (10.00 to 12.50)", "by wall time": "8.00 (7.00 to 9.00)"}
    assert found == [
        {"figure": "indexing 20k documents, whole process: stock / ours", "aim": "10, wall 6", **clocks},
        {"figure": "index size: stock / ours, with resident postings", "aim": "0.5", "ratio": "1.00"},
        {"figure": "batch, VDR-like, 20k, k=10: 1 thread / 2", "aim": "1.8", "by wall time": "1.90 (1.80 to 2.00)"},
    ]


def test_the_command_prints_markdown_and_writes_parts(monkeypatch, tmp_path):
    monkeypatch.setattr(overview, "PARTS", parts_that_return({"index": INDEX, **OTHERS}))
    out = tmp_path / "overview.json"
    arguments = ["--suite", "overview", "--format", "markdown", "--output", str(out)]
    done = CliRunner().invoke(make_app(command), arguments)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "| figure | aim | by CPU time | by wall time | ratio |"
    assert lines[3] == "| index size: stock / ours, with resident postings | 0.5 | – | – | 1.00 |"
    assert "index: documents 5, terms per document 2" in lines and "search: a is approximate" in lines
    assert "threads: open ms 7.5" in lines
    told = json.loads(out.read_text())
    assert told["parts"]["index"]["ratios"][0]["median"] == 11.0


def test_a_report_as_markdown():
    lines = replace(INDEX, rows=({"system": "ours", "bytes": 1234},)).to_text(markdown=True).splitlines()
    assert lines[:2] == ["* documents: 5", "* terms_per_document: 2"]
    assert lines[3:6] == ["| system | bytes |", "|---|--:|", "| ours | 1,234 |"]
    assert "| stock / ours: index bytes | 1.00 | 1.00 | 1.00 | 1 |" in lines


@pytest.mark.heavy
def test_every_goal_is_a_ratio_of_its_part(tmp_path):
    for name, (suite, options) in overview.PARTS.items():
        asked = {} if name in ("index", "building") else {"query_count": 4, "query_terms": 3}
        toy = replace(options, documents=(40,), terms=6, workdir=tmp_path, repeats=1, **asked)
        measured = {ratio.what for ratio in suite(toy).ratios}
        for goal in overview.GOALS:
            if goal.part == name:
                assert {goal.ratio.format(clock) for clock in overview.CLOCKS} & measured
