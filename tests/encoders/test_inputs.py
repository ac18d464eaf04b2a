"""What a caller may give an encoder and a search: one thing or several, and what is refused at the call."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from shard_folders import write_shards

from lexvl_anserini.encoders.encoder import Encoder, OtherModality, as_tensor
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import Document, ImpactQuery, ScoredDoc, Topic
from lexvl_anserini.queries.clauses import Term, TreeQuery
from lexvl_anserini.queries.query_vectors import encode_queries
from lexvl_anserini.runs.order import as_frame
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.searcher import Searcher, search_index


class LetterCounts:
    """A dense side: how often "a" and "b" occur; of images their width and height."""

    kind = "dense"

    def __init__(self, images: bool = False):
        self.images = images

    def read(self, document: Document) -> str:
        return self._read(document.image, document.contents)

    def read_topic(self, topic: Topic) -> str:
        return self._read(topic.image, topic.text)

    def _read(self, image: str | None, text: str | None) -> str:
        if (image is None) if self.images else not text:
            raise OtherModality("the other modality")
        return str(image if self.images else text)

    def vectors(self, inputs: Any, batch_size: int = 32, progress: Any = None, on_error: Any = None) -> np.ndarray:
        if self.images:
            sizes = [Image.open(item).size if isinstance(item, str) else item.size for item in inputs]
            return np.array(sizes, dtype=np.float32).reshape(-1, 2)
        return np.array([[text.count("a"), text.count("b")] for text in inputs], dtype=np.float32).reshape(-1, 2)


MODEL = Encoder("letters", "dense", LetterCounts(), LetterCounts(images=True))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("aab", [2, 1]),
        (Topic("q", "b"), [0, 1]),
        (["aab"], [[2, 1]]),
        (("aab", Topic("q", "b")), [[2, 1], [0, 1]]),
        ((text for text in ("a", "b")), [[1, 0], [0, 1]]),
        ([], np.empty((0, 2))),
    ],
)
def test_a_text_is_one_query_and_a_list_several(given, expected):
    np.testing.assert_array_equal(MODEL.encode_query(given), np.array(expected, dtype=np.float32))


def test_a_path_an_image_and_a_document_are_one_document(tmp_path):
    picture = Image.new("RGB", (3, 2))
    picture.save(tmp_path / "p.png")
    for one in (picture, tmp_path / "p.png", str(tmp_path / "p.png"), Document("d", image=str(tmp_path / "p.png"))):
        assert MODEL.encode_document(one).tolist() == [3, 2]
        assert MODEL.encode_document([one, one]).tolist() == [[3, 2], [3, 2]]


def test_a_text_for_a_side_of_images_is_named_as_one():
    for text in ("a red boat", ["a red boat"], "boat " * 2000):
        with pytest.raises(UsageError, match="boat' is no file, and this side of the encoder reads images|boat boat"):
            MODEL.encode_document(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "None is nothing to encode; expected a text, a path, a PIL image, a Document or a Topic, or a list"),
        (7, "a value of type int is nothing to encode"),
        (b"ab", "a value of type bytes is nothing to encode"),
        ({"a": 1}, "a value of type dict is nothing to encode"),
        (["a", None], "None in a list is nothing to encode"),
        ([["a"]], "a value of type list in a list is nothing to encode"),
        (Path("a.jpg"), "the path 'a.jpg', but this side of the encoder reads texts only; expected a text"),
        ([Image.new("L", (1, 1))], "an image, but this side of the encoder reads texts only"),
    ],
)
def test_what_cannot_be_encoded_is_one_line(given, message):
    with pytest.raises(UsageError) as caught:
        MODEL.encode_query(given)
    assert str(caught.value).startswith(message)


def test_one_text_to_a_lexical_encoder_is_one_row(load):
    model = load("bag-of-tokens", "splade/ckpt_bert")
    one, several = model.encode_query("a dog runs"), model.encode_query(["a dog runs", "a man"])
    assert one.shape == (1, several.shape[1]) and (one != several[0]).nnz == 0
    document = Document("d", title="a dog", text="runs")
    assert (model.encode_document(document) != model.encode_document(["a dog runs"])).nnz == 0


@pytest.fixture
def index(tmp_path: Path) -> Any:
    write_shards(tmp_path / "s", [("d1", {"ash": 3}), ("d2", {"ash": 1, "bay": 4})])
    return build_index(tmp_path / "s", tmp_path / "i")


def test_an_index_searches_one_query_or_several(index):
    query, tree = ImpactQuery("q", {"ash": 2}), TreeQuery("t", Term("bay"))
    assert index.search(query, k=1) == [ScoredDoc("q", "d1", 1, 6.0)]
    assert index.search([query]) == [[ScoredDoc("q", "d1", 1, 6.0), ScoredDoc("q", "d2", 2, 2.0)]]
    assert index.search(tree) == [ScoredDoc("t", "d2", 1, 4.0)]
    assert index.search([]) == [] == list(search_index(index, []))
    assert list(search_index(index.path, query, hits=1)) == [[ScoredDoc("q", "d1", 1, 6.0)]]


def test_a_search_refuses_other_types_at_the_call(index):
    for query, kind in ((None, "NoneType"), (5, "int"), ([5], "int"), ({"q": "ash"}, "dict"), (b"ash", "bytes")):
        with pytest.raises(UsageError, match=f"a value of type {kind} is no query; expected a text, a Topic"):
            search_index(index, query)
        with pytest.raises(UsageError, match="query is .*, expected a text, a Topic or an ImpactQuery"):
            Searcher(index).explain(query)


def test_lists_are_frames_and_objects_say_what_they_are(index, load):
    query = ImpactQuery("q", {"ash": 2})
    expected = [["q", "d1", 1, 6.0], ["q", "d2", 2, 2.0]]
    assert as_frame(index.search(query)).values.tolist() == expected
    assert as_frame(index.search([query, query])).values.tolist() == expected * 2
    assert list(as_frame([]).columns) == ["query_id", "doc_id", "rank", "score"]
    assert repr(index) == f"Index('{index.path}', impact, 2 documents, encoder 'toy')"
    assert repr(MODEL) == "Encoder('letters', dense)"
    model = load("bag-of-tokens", "splade/ckpt_bert")
    assert repr(model) == f"Encoder('bag-of-tokens', impact, checkpoint={model.checkpoint!r}, device='cpu')"


def test_texts_are_encoded_by_the_encoder_of_the_index(tmp_path, load, golden, monkeypatch):
    from lexvl_anserini.data.dataset import Dataset
    from lexvl_anserini.searching import searcher
    from lexvl_anserini.shards.writing import write_impacts

    model = load("bag-of-tokens", "splade/ckpt_bert")
    documents = [Document("d1", text="a dog runs"), Document("d2", text="a man")]
    dataset = Dataset("toy", "", lambda: iter(documents), lambda: iter(()), lambda: iter(()))
    write_impacts(dataset, model, tmp_path / "s")
    index = build_index(tmp_path / "s", tmp_path / "i")
    loaded = []
    changes = searcher.EncoderChanges.load
    monkeypatch.setattr(
        searcher.EncoderChanges, "load", lambda self, manifest: loaded.append(1) or changes(self, manifest)
    )
    assert [hit.doc_id for hit in index.search("a dog", k=5)] == ["d1", "d2"]
    assert [[hit.query_id for hit in hits] for hits in index.search(["dog", "man"], k=1)] == [["1"], ["2"]]
    assert len(loaded) == 1
    assert [hit.doc_id for hit in next(search_index(index, "man", model=model))] == ["d2"]


# ---- arguments of sentence-transformers: taken, or refused with what to do

TEXTS = ["a dog runs", "", "red"]


@pytest.fixture
def model(load):
    return load("bag-of-tokens", "splade/ckpt_bert")


def test_tensors_are_those_of_sentence_transformers(model):
    import torch

    for encode in (model.encode_query, model.encode_document):
        tensor, rows = encode(TEXTS, convert_to_tensor=True), encode(TEXTS, batch_size=1)
        assert tensor.layout == torch.sparse_coo and tensor.shape == rows.shape and tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.to_dense().numpy(), rows.toarray())
    dense = np.arange(3, dtype=np.float32)
    assert as_tensor(dense).tolist() == [0.0, 1.0, 2.0]


def test_progress_is_shown_on_request(model, caplog, monkeypatch):
    from lexvl_anserini.ground import progress

    monkeypatch.setattr(progress, "LOG_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO, "lexvl_anserini"):
        model.encode_query(TEXTS)
        model.encode_query(TEXTS, show_progress_bar=False)
        assert caplog.records == []
        model.encode_query(TEXTS, show_progress_bar=True)
    assert caplog.records[-1].getMessage().startswith("encode: 3 of 3 inputs")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("prompt", "put it before the texts"),
        ("device", r"load_encoder\(\.\.\., device=\.\.\.\)"),
        ("max_active_dims", "option topk"),
        ("normalize_embeddings", "own lengths"),
        ("batchsize", "it takes batch_size, show_progress_bar and convert_to_tensor"),
    ],
)
def test_other_arguments_are_refused(name, remedy, model):
    for encode in (model.encode_query, model.encode_document):
        with pytest.raises(UsageError, match=f"{name}: no argument of .*{remedy}"):
            encode("a dog", **{name: "x"})


# ---- encoders as stock Pyserini's query encoders

BERT = "splade/ckpt_bert"
QUERIES = ("a man riding a horse on a beach", "", "PIZZA!")


@pytest.mark.parametrize("name,checkpoint", [("splade", BERT), ("vdr", "vdr/text-tiny"), ("bag-of-tokens", BERT)])
def test_stock_and_our_search_get_the_same_queries(load, name, checkpoint):
    model = load(name, checkpoint)
    quantiser = Quantiser.named(query_bits=6).for_towers(model.query.binary, model.document.binary).to_json()
    counts = {"documents": 1, "max_impact": 255}
    manifest = Manifest("impact", model.identity(), {"name": "x"}, counts, quantiser)
    encoder = model.as_pyserini(manifest)
    ours = [query.vector for query in encode_queries(model, [Topic("q", text) for text in QUERIES], manifest)]
    assert [encoder.encode(text) for text in QUERIES] == ours == encoder.encode_all(QUERIES)
    assert all(type(weight) is int and weight >= 1 for vector in ours for weight in vector.values())
    assert encoder.encode("a dog", max_length=5) == encoder.encode("a dog"), "stock's options mean nothing here"


def test_without_a_manifest_queries_have_eight_bits(load):
    vector = load("splade", BERT).as_pyserini().encode(QUERIES[0])
    assert max(vector.values()) == 255
    assert set(load("bag-of-tokens", BERT).as_pyserini().encode(QUERIES[0]).values()) == {1}
    with pytest.raises(UsageError, match="encoder 'bm25' is text; an impact index answers lexical queries"):
        load_encoder("bm25").as_pyserini()
