"""Corpora of precomputed vectors: the hub's layout in both directions, and every way a table can be wrong."""

import json

import numpy as np
import pyarrow as pa
import pytest
from corpus_folders import write_embeddings, write_table
from pyarrow import parquet

from lexvl_anserini.data.checks import check_corpus
from lexvl_anserini.data.corpora.embeddings import read_embeddings
from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Qrel

IMAGES = {"7": np.array([1.0, 0.0]), "2": np.array([0.0, 1.0])}
TEXTS = {"20": np.array([0.5, 0.5]), "21": np.array([0.25, 0.75]), "70": np.array([-1.0, 2.0])}
CAPTIONS = {"7": {"70": "a dog "}, "2": {"20": "a cat", "21": ""}}


@pytest.fixture
def folder(tmp_path):
    return write_embeddings(tmp_path / "embs", IMAGES, TEXTS, CAPTIONS)


def test_both_directions(folder):
    """The order is that of the JSON; a caption keeps its text beside its vector."""
    dataset = load_dataset(f"embeddings:{folder}")
    assert (dataset.split, dataset.direction, dataset.remove_query) == ("test", "text-to-image", False)
    documents, topics = list(dataset.documents()), list(dataset.topics())
    assert [(d.doc_id, d.text) for d in documents] == [("7", None), ("2", None)]
    assert [(t.query_id, t.text) for t in topics] == [("70", "a dog"), ("20", "a cat"), ("21", "")]
    assert read_embeddings([d.image for d in documents]).tolist() == [[1, 0], [0, 1]]
    assert read_embeddings([t.image for t in topics]).tolist() == [[-1, 2], [0.5, 0.5], [0.25, 0.75]]
    assert list(dataset.qrels()) == [Qrel("70", "7", 1), Qrel("20", "2", 1), Qrel("21", "2", 1)]
    assert check_corpus(dataset.documents, "x").documents == 2
    dataset = load_dataset(f"embeddings:{folder}", direction="image-to-text")
    documents, topics = list(dataset.documents()), list(dataset.topics())
    assert [(d.doc_id, d.text) for d in documents] == [("70", "a dog"), ("20", "a cat"), ("21", "")]
    assert [t.query_id for t in topics] == ["7", "2"]
    assert read_embeddings([documents[0].image, topics[0].image]).tolist() == [[-1, 2], [1, 0]]
    assert [qrel[:2] for qrel in dataset.qrels()] == [("7", "70"), ("2", "20"), ("2", "21")]


def test_other_features_of_the_same_captions(folder):
    wide = {key: np.append(value, 3.0) for key, value in IMAGES.items()}
    write_embeddings(folder, wide, TEXTS, features="_before_proj_blip")
    dataset = load_dataset(f"embeddings:{folder},before_proj_blip")
    assert read_embeddings([d.image for d in dataset.documents()]).shape == (2, 3)
    with pytest.raises(DataError, match="parquet: no such table"):
        load_dataset(f"embeddings:{folder},albef")


def test_tables_without_captions(tmp_path):
    folder = write_embeddings(tmp_path / "embs", IMAGES, TEXTS)
    dataset = load_dataset(f"embeddings:{folder}")
    assert [d.doc_id for d in dataset.documents()] == ["7", "2"]
    captions = load_dataset(f"embeddings:{folder}", direction="image-to-text")
    assert [d.doc_id for d in captions.documents()] == ["20", "21", "70"]
    with pytest.raises(DataError, match=r"no dataset_meta\.json, hence no topics"):
        dataset.topics()
    with pytest.raises(DataError, match="split 'val'"):
        load_dataset(f"embeddings:{folder}", "val")


def test_escaped_ids_find_their_rows(tmp_path):
    images, texts = {"a b": IMAGES["7"]}, {"c%20 d": TEXTS["20"]}
    folder = write_embeddings(tmp_path / "embs", images, texts, {"a b": {"c%20 d": "x"}})
    with pytest.raises(DataError, match="white space in id 'a b'"):
        load_dataset(f"embeddings:{folder}")
    dataset = load_dataset(f"embeddings:{folder}", escape_ids=True)
    [document], [topic] = dataset.documents(), dataset.topics()
    assert (document.doc_id, topic.query_id) == ("a%20b", "c%2520%20d")
    assert read_embeddings([document.image, topic.image]).tolist() == [[1, 0], [0.5, 0.5]]


@pytest.mark.parametrize("numbers", [pa.float32(), pa.float16(), pa.float64(), pa.int64()])
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list, lambda numbers: pa.list_(numbers, 2)])
def test_columns_as_writers_make_them(tmp_path, numbers, lists):
    emb = pa.array([[1, 2], [3, 4]], lists(numbers))
    parquet.write_table(pa.table({"emb": emb, "id": pa.array([5, 6]), "x": pa.array([0, 0])}), tmp_path / "t.parquet")
    assert read_embeddings([f"{tmp_path / 't.parquet'}::6"]).tolist() == [[3, 4]]


def test_many_rows_in_any_order_and_twice(tmp_path):
    """More rows than a record batch, asked for backwards."""
    vectors = np.random.default_rng(3).normal(size=(70_000, 2)).astype(np.float32)
    write_table(tmp_path / "t.parquet", [f"n{i}" for i in range(len(vectors))], vectors)
    rows = [69_999, 5, 66_000, 5, 0]
    found = read_embeddings([f"{tmp_path / 't.parquet'}::n{row}" for row in rows])
    assert found.dtype == np.float32 and (found == vectors[rows]).all()
    assert read_embeddings([]).shape == (0, 0)


def test_a_table_that_changed_is_read_again(tmp_path):
    path = tmp_path / "t.parquet"
    for value in (1.0, 2.0):
        write_table(path, ["a", *map(str, range(int(value)))], np.full((1 + int(value), 2), value))
        assert read_embeddings([f"{path}::a"])[0, 0] == value


@pytest.mark.parametrize(
    "columns,match",
    [
        ({"id": ["a"], "vector": [[1.0]]}, "no column emb; columns there: id, vector"),
        ({"id": ["a", "a"], "emb": [[1.0], [2.0]]}, "id a occurs more than once"),
        ({"id": ["a", "b"], "emb": [[1.0], [2.0, 3.0]]}, r"vectors of \[1, 2\] numbers"),
        ({"id": ["a", None], "emb": [[1.0], [2.0]]}, "a row lacks its id or its emb"),
        ({"id": ["a", "b"], "emb": [[1.0], None]}, "a row lacks its id or its emb"),
        ({"id": ["a"], "emb": [[float("nan")]]}, "not finite"),
        ({"id": ["a"], "emb": [[1.0, None]]}, "expected numbers"),
        ({"id": ["a"], "emb": [["1.0"]]}, "emb holds list<element: string>; fetch"),
        ({"id": ["a"], "emb": [1.0]}, "emb holds double; fetch the file again"),
        ({"id": [], "emb": pa.array([], pa.list_(pa.float32()))}, "no row in it"),
    ],
)
def test_tables_that_are_wrong(tmp_path, columns, match):
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=match) as caught:
        read_embeddings([f"{tmp_path / 't.parquet'}::a"])
    assert "t.parquet" in str(caught.value) and "\n" not in str(caught.value)


def test_references_that_are_wrong(folder, tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but no more")
    for reference, match in (
        ("photo.jpg", r"not an embedding .*backbone_checkpoint"),
        (f"{folder}/img_embs.parquet::9", "no embedding of id 9; 2 rows"),
        (f"{folder}/none.parquet::9", "none.parquet: cannot be read"),
        (f"{tmp_path}/broken.parquet::9", "not readable as parquet"),
    ):
        with pytest.raises(DataError, match=match):
            read_embeddings([reference])
    write_table(tmp_path / "wide.parquet", ["7"], np.zeros((1, 5)))
    with pytest.raises(DataError, match=r"wide.parquet: vectors of 5 numbers, other tables have 2"):
        read_embeddings([f"{folder}/img_embs.parquet::7", f"{tmp_path}/wide.parquet::7"])


def test_captions_and_directions_that_are_wrong(folder):
    with pytest.raises(DataError, match="no image of split 'val'; splits there: test"):
        load_dataset(f"embeddings:{folder}", "val")
    meta = json.loads((folder / "dataset_meta.json").read_text())
    meta["images"][0]["imgid"] = "99"
    (folder / "dataset_meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match="no embedding of id 99"):
        read_embeddings([d.image for d in load_dataset(f"embeddings:{folder}").documents()])
    with pytest.raises(UsageError, match="has no direction 'text-to-text'"):
        load_dataset(f"embeddings:{folder}", direction="text-to-text")
