"""Runs on pages, measured as ViDoRe's authors do, by trec_eval's gains and order of equal scores."""

from __future__ import annotations

import json
from math import log2

import pytest

from eval.measures.averages import VIDORE_2
from eval.reproduce import command as reproduce
from lexvl_plugins.pages.vidore import command
from tests.invoking import invoked
from tests.plugins.pages.page_tables import page, write_tables
from tests.plugins.pages.v_splade_folders import write_export


def test_the_mean_of_the_second_version_has_a_verdict(tmp_path, monkeypatch):
    """Over pages of one shade each, and weights that are random: the verdict says that these are not the published."""
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    for number, name in enumerate(VIDORE_2):
        write_tables(
            tmp_path / "data/vidore" / name,
            corpus={"corpus-id": [0, 1], "image": [page(50 * number), page(50 * number + 30)]},
            queries={"query-id": [0, 1, 2], "query": ["a b", "c", "d"], "language": ["english", "english", "french"]},
            qrels={"query-id": [0, 1, 2], "corpus-id": [1, 0, 0], "score": [1, 2, 1]},
        )
    weights = write_export(tmp_path / "weights")
    arguments = ("v-splade-readme", "--rows", "*Quality", "--checkpoint", f"naver/v-splade-quality={weights}")
    printed = invoked(reproduce, *arguments, "--output", tmp_path / "out", "--format", "json")
    [cell] = [row for row in json.loads(printed) if row["quantity"] == "text-to-image vidore-2 nDCG@5"]
    values = []
    for part in (tmp_path / "out/parts").glob("*.json"):
        content = json.loads(part.read_text())
        run = ("--run", tmp_path / "out/runs" / content["run"], "--dataset", content["request"]["corpus"])
        [own] = [r for r in json.loads(invoked(command, *run, "--format", "json")) if r["measure"] == "nDCG@5"]
        assert content["values"] == {"nDCG@5": own["value"]}
        values.append(own["value"])
    assert len(values) == 4 and cell["measured"] == pytest.approx(sum(values) / 4)
    assert cell["published"] == 0.499


def test_the_measures(tmp_path):
    """Page 1 (grade 2) is second; pages 3 and 4 have equal scores, so that 4 (grade 1), the larger id, is third."""
    write_tables(
        tmp_path,
        corpus={"corpus-id": ["1", "2", "3", "4"], "image": [b"x"] * 4},
        queries={"query-id": ["0", "9"], "query": ["a", "b"]},
        qrels={"query-id": ["0", "0", "9"], "corpus-id": ["1", "4", "2"], "score": [2, 1, 1]},
    )
    run = tmp_path / "x.trec"
    run.write_text("0 Q0 2 1 9 x\n0 Q0 1 2 8 x\n0 Q0 3 3 7 x\n0 Q0 4 4 7 x\n")
    rows = json.loads(invoked(command, "--run", run, "--dataset", f"vidore:{tmp_path}", "--format", "json"))
    values = {row["measure"]: row["value"] for row in rows}
    ideal = 2 + 1 / log2(3)
    assert values["nDCG@5"] == pytest.approx((2 / log2(3) + 1 / log2(4)) / ideal / 2) == values["nDCG@10"]
    assert values["Recall@5"] == 0.5  # the topic without a hit counts
