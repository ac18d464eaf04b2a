"""Shards as engines read them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shard_folders import Documents, jsonl, publish_shards, read_all, write_dense_shards, write_shards

from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import Vocabulary
from lexvl_anserini.shards.reading import (
    read_ids,
    read_impacts,
    read_metadata,
    read_shard,
    read_vectors,
    read_vocabulary,
    shard_pieces,
)

DOCUMENTS: Documents = [("d1", {"a": 3, "b": 1}), ("d2", {}), ("d3", {"b": 2, "日本": 7, "😀": 1})]


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_all_formats_read_the_same(tmp_path: Path, suffix: str) -> None:
    write_shards(tmp_path, DOCUMENTS[:2], DOCUMENTS[2:], suffix=suffix)
    assert list(read_all(tmp_path).items()) == DOCUMENTS


def impacts_of(folder: Path, rows: Iterable[Any], documents: int = 1, postings: int = 1) -> list[Any]:
    (folder / "docs").mkdir(parents=True)
    (folder / "docs/shard-00000.jsonl").write_bytes(jsonl(rows))
    entry = {"name": "docs/shard-00000.jsonl", "documents": documents, "empty": 0, "postings": postings}
    vocabulary = Vocabulary(["a", "b"])
    return list(read_impacts(folder, publish_shards(folder, "impact", [entry], vocabulary), vocabulary))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "d1", "vector": {"c": 1}}, "line 2: term 'c' is not in the vocabulary of 2 terms"),
        ({"id": "d1", "vector": {"a": 0}}, "of term 'a', expected an"),
        *(({"id": "d1", "vector": {"a": n}}, f"'d1', impact {n} of term 'a'") for n in (1.5, True, "7", 2**31)),
        ({"id": "d1"}, "line 2: vector is missing"),
        ({"id": "d1", "vector": [1, 2]}, "line 2: vector is a list"),
        ({"vector": {"a": 1}}, "line 2: document id None"),
        ({"id": "", "vector": {"a": 1}}, "line 2: document id ''"),
        ({"id": "d 1", "vector": {"a": 1}}, "line 2: document id 'd 1', expected a text without white space"),
        ({"id": 7, "vector": {"a": 1}}, "line 2: document id 7"),
        ([], "line 2: a list, expected an object"),
    ],
)
def test_malformed_documents_are_named(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        impacts_of(tmp_path, [{"id": "d0", "vector": {"a": 1}}, row])


def test_counts_that_differ_from_the_manifest(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="shard-00000.jsonl: 1 documents, expected 2; 1 postings, expected 5"):
        impacts_of(tmp_path, [{"id": "d0", "vector": {"a": 1}}], documents=2, postings=5)


def test_damaged_missing_and_stray_shards(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path, DOCUMENTS[:1], DOCUMENTS[1:], suffix="jsonl.gz")
    vocabulary = read_vocabulary(tmp_path, manifest)
    second = tmp_path / "docs/shard-00001.jsonl.gz"
    whole = second.read_bytes()
    second.write_bytes(whole[:-1] + b"x")
    with pytest.raises(ArtefactError, match="shard-00001.jsonl.gz: damaged or changed since it was encoded"):
        list(read_impacts(tmp_path, manifest, vocabulary))
    second.unlink()
    with pytest.raises(ArtefactError, match="shard-00001.jsonl.gz: shard is missing; run the encode command again"):
        list(read_impacts(tmp_path, manifest, vocabulary))
    second.write_bytes(whole)
    (tmp_path / "docs/README").touch()
    with pytest.raises(ArtefactError, match="README: not a shard"):
        list(read_impacts(tmp_path, manifest, vocabulary))


def test_vocabulary_must_be_the_manifests(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path, DOCUMENTS)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ArtefactError, match=r"vocabulary digest \w+ \(2 terms\), the manifest says \w+ \(4 terms\)"):
        read_vocabulary(tmp_path, manifest)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(ArtefactError, match="vocab.txt: missing"):
        read_vocabulary(tmp_path, manifest)


@pytest.mark.parametrize(
    ("terms", "impacts", "message"),
    [
        ([[0, 9]], [[1, 1]], "dimension 9, the vocabulary has 2 terms"),
        ([[0, 1]], [[1]], "term and impact lists differ in length"),
        ([[0, 1]], [[1, 0]], "row 0: document 'd1', impact 0 of term 'b', expected an integer from 1 to 16,777,215"),
        ([[1, 1]], [[1, 2]], "document 'd1' names a dimension twice"),
    ],
)
def test_malformed_parquet(tmp_path: Path, terms: Any, impacts: Any, message: str) -> None:
    (tmp_path / "docs").mkdir()
    lists = {name: pa.array(rows, pa.list_(pa.uint32())) for name, rows in (("term", terms), ("impact", impacts))}
    pq.write_table(pa.table({"id": ["d1"], **lists}), tmp_path / "docs/shard-00000.parquet")
    vocabulary = Vocabulary(["a", "b"])
    manifest = publish_shards(tmp_path, "impact", [{"name": "docs/shard-00000.parquet", "documents": 1}], vocabulary)
    with pytest.raises(ArtefactError, match=message):
        list(read_impacts(tmp_path, manifest, vocabulary))


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_a_damaged_shard_is_one_line_wherever_it_is_damaged(tmp_path: Path, suffix: str) -> None:
    """Whoever reads a shard, without a look at its checksum, gets its documents or one line with its name."""
    manifest = write_shards(tmp_path, [(f"d{n}", {"a": n + 1}) for n in range(40)], suffix=suffix)
    vocabulary = read_vocabulary(tmp_path, manifest)
    path = tmp_path / manifest.shards[0]["name"]
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(0, len(whole), 37)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(0, len(whole), 7)]
    failed = 0
    for data in damaged:
        path.write_bytes(data)
        for reader in (read_shard(path, vocabulary), read_ids(tmp_path, manifest), read_metadata(path)):
            try:
                list(reader)
            except ArtefactError as error:
                failed += 1
                assert str(error).startswith(str(path)) and "\n" not in str(error)
    assert failed > len(damaged)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"id": [7]}, "column id holds int64; encode again"),
        ({"id": pa.array([None], pa.string())}, "a row lacks its id"),
        ({"id": ["x" * 40_000]}, "document id 'xxx.*of at most 32,766 bytes"),
        ({"term": [[None]]}, "column term holds list<.*null>"),
        ({"term": ["a"]}, "column term holds string"),
        ({"impact": pa.array([[None]], pa.list_(pa.uint32()))}, "a row lacks its impact"),
        ({"metadata": ["{"]}, "row 0: malformed JSON|metadata"),
        ({"metadata": [7]}, "metadata is a int, expected an object"),
        ({"metadata": [[7]]}, "metadata is a list, expected an object"),
    ],
)
def test_columns_of_other_types(tmp_path: Path, column: dict[str, Any], message: str) -> None:
    manifest = write_shards(tmp_path, [("d1", {"a": 1})], suffix="parquet")
    path = tmp_path / manifest.shards[0]["name"]
    columns = {"id": ["d1"], "term": pa.array([[0]], pa.list_(pa.uint32())), "impact": [[1]], **column}
    pq.write_table(pa.table(columns), path)
    with pytest.raises(ArtefactError, match=message) as caught:
        list(read_metadata(path)), list(shard_pieces(path)), list(read_shard(path, Vocabulary(["a"])))
    assert str(caught.value).startswith(str(path))


def test_a_map_is_metadata(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path, [("d1", {"a": 1})], suffix="parquet")
    path = tmp_path / manifest.shards[0]["name"]
    maps = pa.array([[("year", 7)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pq.read_table(path).append_column("metadata", maps), path)
    assert list(read_metadata(path)) == [{"year": 7}]


def test_vectors_of_different_length_or_not_finite(tmp_path: Path) -> None:
    ragged = write_dense_shards(tmp_path / "ragged", [("d1", [1, 2])], [("d2", [1])])
    with pytest.raises(ArtefactError, match="dimensions, expected"):
        list(read_vectors(tmp_path / "ragged", ragged))
    broken = write_dense_shards(tmp_path / "nan", [("d1", [1, float("nan")])])
    with pytest.raises(ArtefactError, match="a vector is not finite"):
        list(read_vectors(tmp_path / "nan", broken))
