"""All vectors of an index, read from its postings."""

import pytest
from shard_folders import write_shards

from lexvl_anserini.engines.resident.packing import read_vectors
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.searching.building import build_index


def test_ids_are_in_order_and_a_document_may_be_empty(tmp_path):
    rows = {"b": {"x": 3, "y": 4}, "a": {"x": 4, "y": 3}, "é1": {"z": 7}, "none": {}}
    write_shards(tmp_path / "shards", list(rows.items()))
    build_index(tmp_path / "shards", tmp_path / "index")
    vectors = read_vectors(tmp_path / "index")
    assert vectors.ids == ["a", "b", "none", "é1"] and vectors.terms == ["x", "y", "z"]
    assert vectors.impacts.toarray().tolist() == [[4, 3, 0], [3, 4, 0], [0, 0, 0], [0, 0, 7]]
    with pytest.raises(ArtefactError, match="no Lucene index"):
        read_vectors(tmp_path / "shards")
