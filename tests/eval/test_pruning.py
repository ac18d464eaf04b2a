import json
from pathlib import Path
from typing import Any

import pytest
from invoking import invoked
from shard_folders import jsonl, write_shards

from eval.analyses import pruning
from eval.analyses.pruning import Measured, PruningSetting, command, compare_settings, list_settings, measure_settings
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import ImpactQuery, Qrel

DOCUMENTS = [("d1", {"a": 9, "b": 1}), ("d2", {"a": 3, "b": 9}), ("d3", {"b": 5}), ("d4", {"c": 1, "a": 1})]
QUERIES = [ImpactQuery("q1", {"a": 4, "b": 3}), ImpactQuery("q2", {"c": 2})]
# Exact: q1 d1 39, d2 39, d3 15, d4 4; q2 d4 2.


def test_what_cuts_cost(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", DOCUMENTS)
    of_queries = {"query_terms": [1], "first_terms": [1], "candidates": 3, "feedback": [1]}
    settings = list_settings(**of_queries, document_terms=[1], least_impacts=[2])
    measured = measure_settings(tmp_path / "shards", QUERIES, settings, hits=10, rounds=1)
    exact = [[document.doc_id for document in documents] for documents in measured["exact"].lists]
    assert exact == [["d1", "d2", "d3", "d4"], ["d4"]]
    judged = [Qrel("q1", "d3", 1), Qrel("q2", "d4", 1)]
    rows = {row["setting"]: row for row in compare_settings(measured, judged, "RR@10")}
    assert (rows["exact"]["overlap@10"], rows["exact"]["speed-up"], rows["exact"]["postings"]) == (1, 1, 7)
    assert rows["exact"]["RR@10"] == pytest.approx((1 / 3 + 1) / 2)
    # q1 by "a" alone finds d1, d2, d4 of four.
    assert rows["query terms 1"]["overlap@10"] == (3 / 4 + 1) / 2
    assert rows["query terms 1"]["terms/query"] == 1
    # The second phase ranks those three by the whole query, and finds no fourth.
    assert rows["two phases 1, 3"]["overlap@10"] == (3 / 4 + 1) / 2
    assert [d.score for d in measured["two phases 1, 3"].lists[0]] == [39, 39, 4]
    # Without the impacts below 2, d4 is empty.
    assert (rows["least impact 2"]["postings"], rows["least impact 2"]["RR@10"]) == (4, pytest.approx(1 / 6))
    assert rows["document terms 1"]["postings"] == 4
    assert all(row["ms/query"] > 0 for row in rows.values())


def test_the_command_without_judgements(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", DOCUMENTS)
    rows: list[dict[str, Any]] = [{"id": query.query_id, "vector": query.vector} for query in QUERIES]
    (tmp_path / "q.jsonl").write_bytes(jsonl(rows))
    arguments = ["--shards", tmp_path / "shards", "--topics", tmp_path / "q.jsonl", "--rounds", 1]
    told = json.loads(invoked(command, *arguments, "--threshold", 0.9, "--format", "json", "--limit", 1))
    assert [row["setting"] for row in told] == ["exact", "threshold 0.9"]
    assert "nDCG@10" not in told[0] and told[1]["overlap@10"] == 0.75
    text = invoked(command, *arguments, "--query-terms", 1)
    headings = ["setting", "terms/query", "postings", "overlap@10", "overlap@100", "ms/query", "speed-up"]
    assert text.splitlines()[0].split() == headings
    with pytest.raises(UsageError):
        invoked(command, *arguments)


def test_of_each_query_the_quicker_round_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that was interrupted at one query does not slow the others' figures; the first round warms up."""
    rounds = iter([[0.5, 0.5], [1.0, 9.0], [5.0, 2.0]])
    monkeypatch.setattr(pruning.OpenIndex, "measure", lambda self, *_: Measured([], next(rounds), 3, 2.0))
    write_shards(tmp_path / "shards", DOCUMENTS)
    measured = measure_settings(tmp_path / "shards", QUERIES, [PruningSetting("exact")], hits=10, rounds=2)
    assert measured["exact"].ms == [1.0, 2.0] and measured["exact"].ms_per_query == 1.5
