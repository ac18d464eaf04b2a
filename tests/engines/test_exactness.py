"""Impacts and sums up to 2^24 - 1, where float32 scores are exact, and what refuses those beyond."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lucene_indexes import answers
from shard_folders import publish_shards, write_shards

from lexvl_anserini.engines.index_folder import read_report
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.ground.errors import ArtefactError
from lexvl_anserini.ground.records import Vocabulary
from lexvl_anserini.searching.building import append_index, build_index, check_index, delete_documents

# Written when impacts of 2^24 and more were accepted: d1 has one of 20,000,000, d2 none.
BEYOND = Path(__file__).parents[1] / "fixtures" / "beyond-exact"

LARGEST = 2**24 - 1


@pytest.fixture
def beyond(tmp_path):
    shutil.copytree(BEYOND, tmp_path / "beyond")
    return tmp_path / "beyond"


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_index_refuses_an_impact_beyond(tmp_path, suffix):
    shards = tmp_path / "shards"
    write_shards(shards, [("d0", {"b": 9})], [("d1", {"b": LARGEST}), ("d2", {"b": 1, "a": 20_000_000})], suffix=suffix)
    place = "row 1" if suffix == "parquet" else "line 2"
    message = (
        f"docs/shard-00001.{suffix} {place}: document 'd2', impact 20000000 of term 'a', expected an integer from 1 to "
        "16,777,215, up to which Lucene's scores are exact; encode with fewer bits"
    )
    with pytest.raises(ArtefactError) as caught:
        build_index(shards, tmp_path / "index")
    assert str(caught.value) == f"{shards}/{message}"
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("impact", [2**24, 2**31, 2**32 + 5, -(2**32) + 5, 2**63 - 1])
def test_integers_of_any_width_are_not_wrapped(tmp_path, impact):
    """Columns of another writer may have 64 bits."""
    (tmp_path / "shards/docs").mkdir(parents=True)
    name = "docs/shard-00000.parquet"
    table = {
        "id": ["d1"],
        "term": pa.array([[0]], pa.list_(pa.int64())),
        "impact": pa.array([[impact]], pa.list_(pa.int64())),
    }
    pq.write_table(pa.table(table), tmp_path / "shards" / name)
    entry = {"name": name, "documents": 1, "empty": 0, "postings": 1}
    publish_shards(tmp_path / "shards", "impact", [entry], Vocabulary(["a", "b"]))
    with pytest.raises(ArtefactError, match=f"row 0: document 'd1', impact {impact} of term 'a'"):
        build_index(tmp_path / "shards", tmp_path / "index")


def test_an_index_with_such_an_impact_is_checked_in_one_line(beyond):
    with pytest.raises(ArtefactError) as caught:
        check_index(beyond / "index", beyond / "shards")
    assert str(caught.value) == (
        f"{beyond}/index: an impact of 20,000,000, above 16,777,215 up to which Lucene's scores are exact: not "
        "searchable exactly; quantise again (encode the corpus with fewer bits, and index it)"
    )


def test_no_change_takes_such_an_impact_over(beyond, tmp_path):
    write_shards(tmp_path / "others", [("d3", {"a": 1})], terms=["a", "b"])
    index = build_index(tmp_path / "others", tmp_path / "index").path
    for act in (
        lambda: build_index([tmp_path / "others", beyond / "index"], tmp_path / "merged"),
        lambda: build_index([tmp_path / "others", beyond / "shards"], tmp_path / "merged"),
        lambda: build_index(beyond / "shards", tmp_path / "merged"),
        lambda: append_index(index, beyond / "index"),
        lambda: append_index(index, beyond / "shards", replace=True),
        lambda: append_index(beyond / "index", tmp_path / "others"),
    ):
        with pytest.raises(ArtefactError, match=r"beyond/.*20,?000,?000.* exact"):
            act()
    assert not (tmp_path / "merged").exists() and read_report(index)["documents"] == 1


def test_what_such_an_index_can_do(beyond):
    """Queries whose scores are exact are answered, others refused; without the document it is an index like others."""
    index = beyond / "index"
    assert answers(index, {"b": 7}) == [("d1", 21)]
    with pytest.raises(ArtefactError, match="topic 'q': its score could reach 20,000,000, above 16,777,215"):
        answers(index, {"a": 1})
    delete_documents(index, ["d1"])
    assert answers(index, {"a": LARGEST}) == [("d2", LARGEST)]


def test_sums_of_impacts_beyond_32_bits(tmp_path):
    """Lucene's statistics, and the counts of documents and terms, are exact whatever they sum to."""
    terms = [f"t{number}" for number in range(140)]  # of a document beyond 2^31, of all beyond 2^32
    manifest = write_shards(tmp_path / "shards", [(f"d{n}", dict.fromkeys(terms, LARGEST - n)) for n in range(2)])
    build_index(tmp_path / "shards", tmp_path / "index", term_vectors=True)
    assert read_report(tmp_path / "index")["impacts"] == 140 * (2 * LARGEST - 1)
    assert check_index(tmp_path / "index", tmp_path / "shards")["problems"] == 0
    engine = LuceneEngine(tmp_path / "index", manifest)
    assert engine.vector("d1") == dict.fromkeys(terms, LARGEST - 1)
    assert engine.bound({"t0": 2, "t1": 1}) == 3 * LARGEST
    engine.close()
    assert answers(tmp_path / "index", {"t5": 1}) == [("d0", LARGEST), ("d1", LARGEST - 1)]
