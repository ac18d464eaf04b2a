import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from shard_folders import publish_shards, read_all, write_shards

from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.manifest import read_manifest
from lexvl_anserini.prune import command
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.shards.pruning import Pruning, compute_cuts, prune_shards
from lexvl_anserini.shards.reading import read_vocabulary
from tests.invoking import invoked

FIRST = [("d1", {"a": 9, "b": 2, "c": 5}), ("d2", {"a": 5, "b": 2}), ("d3", {})]
SECOND = [("d4", {"b": 2, "c": 1}), ("d5", {"a": 5})]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize(
    ("pruning", "expected"),
    [
        (Pruning(), dict([*FIRST, *SECOND])),
        (Pruning(least_impact=3), {"d1": {"a": 9, "c": 5}, "d2": {"a": 5}, "d3": {}, "d4": {}, "d5": {"a": 5}}),
        (Pruning(document_terms=1), {"d1": {"a": 9}, "d2": {"a": 5}, "d3": {}, "d4": {"b": 2}, "d5": {"a": 5}}),
        # a: 9, then the first of the two 5; b: the first two of three 2.
        (
            Pruning(term_documents=2),
            {"d1": {"a": 9, "b": 2, "c": 5}, "d2": {"a": 5, "b": 2}, "d3": {}, "d4": {"c": 1}, "d5": {}},
        ),
        (
            Pruning(only_terms=frozenset("ab"), without_terms=frozenset("b")),
            {"d1": {"a": 9}, "d2": {"a": 5}, "d3": {}, "d4": {}, "d5": {"a": 5}},
        ),
    ],
)
def test_what_is_kept(tmp_path: Path, pruning: Pruning, expected: dict[str, Any], suffix: str) -> None:
    write_shards(tmp_path / "shards", FIRST, SECOND, suffix=suffix)
    manifest = prune_shards(tmp_path / "shards", tmp_path / "less", pruning)
    assert read_all(tmp_path / "less") == expected
    postings = sum(map(len, expected.values()))
    assert (manifest.counts["documents"], manifest.counts["postings"]) == (5, postings)
    assert manifest.counts["empty"] == sum(not vector for vector in expected.values())
    assert read_manifest(tmp_path / "less") == manifest
    assert build_index(tmp_path / "less", tmp_path / "index").documents == 5


def test_terms_that_no_document_can_have_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_shards(tmp_path / "shards", FIRST, SECOND)
    prune_shards(tmp_path / "shards", tmp_path / "less", Pruning(only_terms=frozenset({"A", "b", "z"})))
    assert f"{tmp_path}/shards: no terms of its vocabulary: 'A', 'z'; did you mean 'a'?" in caplog.text


def test_texts_and_metadata_stay(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "shards", FIRST)
    shard = tmp_path / "shards" / manifest.shards[0]["name"]
    rows = [json.loads(line) for line in shard.read_text().splitlines()]
    with pytest.raises(ArtefactError, match="damaged or changed"):
        shard.write_text("".join(json.dumps({**row, "contents": "x", "metadata": {"y": 1}}) + "\n" for row in rows))
        prune_shards(tmp_path / "shards", tmp_path / "less", Pruning(document_terms=1))
    assert not list(tmp_path.glob("less*"))

    vocabulary = read_vocabulary(tmp_path / "shards", manifest)
    publish_shards(tmp_path / "shards", "impact", [dict(manifest.shards[0])], vocabulary)
    prune_shards(tmp_path / "shards", tmp_path / "less", Pruning(document_terms=1))
    found = [json.loads(line) for line in (tmp_path / "less/docs/shard-00000.jsonl").read_text().splitlines()]
    assert found[0] == {"id": "d1", "contents": "x", "vector": {"a": 9}, "metadata": {"y": 1}}


def test_a_table_is_pruned_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of any kind stay as they are, in their order, where a whole table of texts has no room."""
    monkeypatch.setattr("lexvl_anserini.data.parquet.ROWS", 2)
    manifest = write_shards(tmp_path / "shards", FIRST, suffix="parquet")
    shard = tmp_path / "shards" / manifest.shards[0]["name"]
    table = parquet.read_table(shard).append_column("contents", [["x", None, "z"]])
    table = table.add_column(0, "mine", [[{"y": 1}, {"y": 2}, None]])
    parquet.write_table(table, shard)
    vocabulary = read_vocabulary(tmp_path / "shards", manifest)
    publish_shards(tmp_path / "shards", "impact", [dict(manifest.shards[0])], vocabulary)
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "read_table", None)
        prune_shards(tmp_path / "shards", tmp_path / "less", Pruning(document_terms=1))
    less = parquet.ParquetFile(tmp_path / "less" / manifest.shards[0]["name"])
    assert less.schema_arrow == table.schema and less.num_row_groups == 2
    rows = less.read().to_pylist()
    assert [row["impact"] for row in rows] == [[9], [5], []]
    assert [(row["mine"], row["contents"]) for row in rows] == [({"y": 1}, "x"), ({"y": 2}, None), (None, "z")]


def test_finished_and_other_outputs(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", FIRST)
    arguments = [str(tmp_path / "shards"), "--output", str(tmp_path / "less"), "--format", "json"]

    def invoke(*more: str) -> Any:
        return json.loads(invoked(command, *arguments, *more))

    told = invoke("--document-terms", "1")
    counts = {"documents": 3, "empty": 1, "postings": 2, "kept_share": 0.4}
    assert told == {"output": str(tmp_path / "less"), **counts}
    assert invoke("--document-terms", "1") == told
    with pytest.raises(ArtefactError, match="holds shards of another request .*; --overwrite replaces it"):
        invoke("--document-terms", "2")
    assert invoke("--document-terms", "2", "--overwrite")["postings"] == 4
    (tmp_path / "terms.txt").write_text("a\n\n")
    assert invoke("--without-terms", str(tmp_path / "terms.txt"), "--overwrite")["postings"] == 3
    # A second pruning is noted after the first.
    arguments[:3] = [str(tmp_path / "less"), "--output", str(tmp_path / "least")]
    invoke("--least-impact", "3")
    steps = read_manifest(tmp_path / "least").layout["pruning"]
    assert [set(step) for step in steps] == [{"without_terms", "shards"}, {"least_impact", "shards"}]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 4)), max_size=8), st.integers(1, 4))
def test_a_term_keeps_its_largest_impacts(vectors: list[dict[str, int]], count: int) -> None:
    cuts = compute_cuts(vectors, Pruning(term_documents=count))
    kept = [cuts.keep(vector) for vector in vectors]
    for term in "abc":
        order = sorted((-v[term], place) for place, v in enumerate(vectors) if term in v)
        assert {place for _, place in order[:count]} == {place for place, v in enumerate(kept) if term in v}
