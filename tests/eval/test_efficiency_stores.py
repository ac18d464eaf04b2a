"""The suite `stores`: each store next to Lucene on toy shards, lists and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from store_servers import KINDS, serving

from eval.efficiency.command import run_suite
from eval.efficiency.stores import remove, row_of
from eval.efficiency.suite import Options
from lexvl_anserini.engines.targets import index_path
from lexvl_anserini.ground.errors import UnknownName, UsageError
from lexvl_anserini.searching.building import build_index
from tests.doors.test_stores import DOCUMENTS, QUERIES, small


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setenv("LEXVL_DATA", str(tmp_path / "data"))
    shards, queries = small(tmp_path / "shards", DOCUMENTS), tmp_path / "q.jsonl"
    rows = [{"id": query.query_id, "contents": "", "vector": query.vector} for query in QUERIES]
    queries.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Options(shards=shards, queries=queries, hits=[3, 40], workdir=tmp_path / "work")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_a_store_next_to_lucene(kind: str, options: Options, tmp_path: Path) -> None:
    with serving(kind, tmp_path):
        pass  # skips where it is not installed
    report = run_suite("stores", Options(**{**options.given(), "system": ["lucene", kind]}))
    assert [row["system"] for row in report.rows] == ["lucene", kind]
    assert all(row["equal_k3"] == row["equal_k40"] == 1 and row["ms_k3"] > 0 for row in report.rows)
    assert report.settings["documents"] == 150 and report.settings["queries"] == 7


def test_what_is_equal_and_what_is_not() -> None:
    exact = {"lists": {"3": ["a", "b"]}, "queries": 2}
    found = {"version": "x 1", "build_s": 1.26, "bytes": None, "queries": 2}
    found |= {"seconds": {"3": [0.002, 0.004]}, "lists": {"3": ["a", "c"]}}
    row = {"system": "s", "version": "x 1", "build_s": 1.3, "mb": None, "ms_k3": 3.0, "equal_k3": 0.5}
    assert row_of("s", found, exact, [3]) == row


def test_an_index_that_exists_is_not_removed(options: Options, tmp_path: Path) -> None:
    assert options.shards is not None
    with serving("memory", tmp_path) as url_of:
        build_index(options.shards, url_of("mine"))
        with pytest.raises(UsageError, match="mine: is there already"):
            remove(url_of("mine"), expected=False)
        assert index_path(url_of("mine"))
        remove(url_of("mine"), expected=True)
        remove(url_of("mine"), expected=False)


def test_unknown_systems(options: Options) -> None:
    with pytest.raises(UnknownName, match="unknown system 'qdrand'; did you mean 'qdrant'"):
        run_suite("stores", Options(**{**options.given(), "system": ["qdrand"]}))
