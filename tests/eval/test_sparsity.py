"""FLOPS and the sparsity of both sides, counted by hand and pair by pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_folders import jsonl, write_shards
from typer.testing import CliRunner

from eval.analyses.terms import command
from eval.measures.flops import count_terms, flops, sparsity_of
from lexvl_anserini.cli import make_app
from lexvl_anserini.ground.errors import DataError, UsageError

DOCUMENTS = [("d1", {"a": 9, "b": 1}), ("d2", {"a": 3, "b": 9}), ("d3", {"b": 5}), ("d4", {})]
QUERIES = [{"a": 4, "b": 3}, {"c": 2}]

VECTORS = st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9)), min_size=1, max_size=6)


def test_by_hand(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", DOCUMENTS)
    row = sparsity_of(tmp_path / "shards", QUERIES)
    assert (row.documents, row.terms_per_document, row.most_document_terms, row.document_dimensions) == (4, 5 / 4, 2, 2)
    assert (row.queries, row.terms_per_query, row.most_query_terms, row.query_dimensions) == (2, 3 / 2, 2, 3)
    # a: 1/2 of the queries, 2/4 of the documents; b: 1/2 and 3/4; c: no document.
    assert row.flops == 1 / 2 * 2 / 4 + 1 / 2 * 3 / 4


@given(VECTORS, VECTORS)
def test_flops_are_the_mean_of_shared_terms_over_all_pairs(queries, documents):
    shared = [len(query.keys() & document.keys()) for query in queries for document in documents]
    assert flops(count_terms(queries, "q"), count_terms(documents, "d")) == pytest.approx(sum(shared) / len(shared))


def test_the_command(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", DOCUMENTS)
    rows = [{"id": f"q{number}", "vector": vector} for number, vector in enumerate(QUERIES)]
    # The toy's vocabulary holds the terms of its documents.
    rows[1]["vector"] = {"b": 2}
    (tmp_path / "q.jsonl").write_bytes(jsonl(rows))
    arguments = ["--shards", str(tmp_path / "shards"), "--topics", str(tmp_path / "q.jsonl")]
    [row] = json.loads(CliRunner().invoke(make_app(command), [*arguments, "--format", "json"]).stdout)
    assert row["flops"] == 1 / 2 * 2 / 4 + 1 * 3 / 4
    shown = CliRunner().invoke(make_app(command), arguments).stdout.splitlines()
    assert shown[1].split()[1:] == ["4", "1.25", "2", "2", "2", "1.50", "2", "2", "1.00"]
    write_shards(tmp_path / "twice", DOCUMENTS)
    twice = [*arguments, "--shards", str(tmp_path / "twice")]
    assert len(CliRunner().invoke(make_app(command), twice).stdout.splitlines()) == 3


def test_no_query_and_other_kinds_are_errors(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", DOCUMENTS)
    with pytest.raises(DataError, match="no vector"):
        sparsity_of(tmp_path / "shards", [])
    manifest = json.loads((tmp_path / "shards/manifest.json").read_text()) | {"kind": "dense"}
    (tmp_path / "shards/manifest.json").write_text(json.dumps(manifest))
    result = CliRunner().invoke(make_app(command), ["--shards", str(tmp_path / "shards")])
    assert isinstance(result.exception, UsageError) and "is dense; expected lexical vectors" in str(result.exception)
