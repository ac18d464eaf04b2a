"""Late interaction against a plain MaxSim: a tiny random ColBERT, the command, and folders of other kinds."""

import json
from functools import partial
from threading import Lock
from types import SimpleNamespace

import numpy as np
import pytest
from corpus_folders import write_beir
from PIL import Image
from tiny_encoders import made_dense

from lexvl_anserini.encode import command as encode
from lexvl_anserini.encoders.encoder import OtherModality
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.manifest import RunManifest, read_run_manifest
from lexvl_anserini.ground.records import Document, Topic
from lexvl_anserini.rerank import command
from lexvl_anserini.runs.fusion import Fusion, build_fused_manifest
from lexvl_anserini.runs.order import in_order
from lexvl_anserini.runs.trec import read_lists, read_run, write_run
from lexvl_anserini.searching.rescoring import load_run_encoder, rerank_lists
from lexvl_plugins.pages.multi_vector import NO_TOKENS, ImageTokens, TokenVectors
from tests.invoking import invoked

BERT = "splade/ckpt_bert"
TEXTS = {"a": "dog", "b": "a dog and a man on the beach", "c": "man!", "d": "", "e": "dog"}
TOPICS = {"q": "dog man", "r": "the beach"}


@pytest.fixture(scope="module", params=["meanmaxsim", "maxsim"])
def folder(request, golden, tmp_path_factory):
    """A ColBERT over the tiny BERT, with a random projection; documents leave out `!`, queries have 8 tokens."""
    torch, parts = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers", minversion="6")
    modules = parts.multi_vector_encoder.modules
    from sentence_transformers.base.modules import Dense, Normalize, Transformer

    torch.manual_seed(3)
    expansion = {"strategy": "fixed", "attend": False, "length": 8}
    bert = Transformer(str(golden / BERT), query_expansion=expansion, module_output_name="token_embeddings")
    dense = Dense(32, 6, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")
    mask, unit = modules.MultiVectorMask(skiplist_words=["!"]), Normalize(module_input_name="token_embeddings")
    model = parts.MultiVectorEncoder(modules=[bert, dense, mask, unit], device="cpu", similarity_fn_name=request.param)
    place = tmp_path_factory.mktemp("colbert")
    model.save_pretrained(str(place))
    return request.param, place


def compute_maxsim(model, query, text, mean):
    """The equation as two loops over tokens, in Python's numbers; `model` is sentence-transformers' own."""
    queries, documents = model.encode_query([query])[0].tolist(), model.encode_document([text])[0].tolist()
    greatest = [max(sum(x * y for x, y in zip(q, d, strict=True)) for d in documents) for q in queries]
    return sum(greatest) / (len(greatest) if mean else 1)


def test_scores_are_maxsim(folder):
    from sentence_transformers import MultiVectorEncoder

    name, place = folder
    model = load_encoder("multi-vector", place, device="cpu", direction="text-to-text")
    own = MultiVectorEncoder(str(place), device="cpu")
    lists = {query_id: in_order(query_id, [(doc_id, 9) for doc_id in TEXTS]) for query_id in TOPICS}
    topics = [Topic(query_id, text) for query_id, text in TOPICS.items()]
    documents = [Document(doc_id, text=text) for doc_id, text in TEXTS.items()]
    for hits in rerank_lists(topics, lists, model, lambda: iter(documents), batch_size=2):
        query = TOPICS[hits.query_id]
        expected = {doc_id: compute_maxsim(own, query, text, name == "meanmaxsim") for doc_id, text in TEXTS.items()}
        found = {hit.doc_id: hit.score for hit in hits}
        assert found == pytest.approx(expected, abs=1e-5) and found["a"] == found["e"]
        assert [hit.doc_id for hit in hits] == sorted(expected, key=lambda key: (-found[key], key))
        theirs = own.similarity(own.encode_query([query]), own.encode_document([*TEXTS.values()]))[0].tolist()
        assert list(expected.values()) == pytest.approx(theirs, abs=1e-5)


def test_maxsim_by_hand():
    """Query tokens (1, 0) and (0, 2): of (3, 1), (0, 4) the greatest products are 3 and 8."""
    vectors = TokenVectors([np.array([[3.0, 1.0], [0.0, 4.0]]), np.array([[-1.0, -1.0]]), np.empty((0, 2))])
    query = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert (vectors @ query).tolist() == [11, -3, NO_TOKENS] and (vectors[[1, 0]] @ query).tolist() == [-3, 11]
    assert len(vectors) == 3 and len(vectors[2]) == 0 and vectors.astype(np.float32)[0].dtype == np.float32


def test_images_are_decoded_for_the_model(tmp_path):
    """In the order of the inputs, some at a time; the stand-in for a model returns the size of each as one token."""
    for width in range(1, 36):
        Image.new("RGB", (width, 2)).save(tmp_path / f"{width}.png")
    model = SimpleNamespace(encode_document=lambda images, **options: [np.array([image.size]) for image in images])
    tower = ImageTokens(model, Lock(), "document")
    paths = [tower.read(Document("d", image=str(tmp_path / f"{width}.png"))) for width in range(35, 0, -1)]
    assert [row.tolist() for row in tower.vectors(paths).rows] == [[[width, 2]] for width in range(35, 0, -1)]
    with pytest.raises(OtherModality, match="document 'd' has no image"):
        tower.read(Document("d", text="dog"))


@pytest.fixture
def first(tmp_path):
    """A run of BM25 over texts."""
    name = f"beir:{write_beir(tmp_path / 'corpus', TEXTS, TOPICS, [('q', 'b'), ('r', 'b')])}"
    corpus = {"name": name, "split": "test", "data_dir": None, "escape_ids": False, "direction": "text-to-text"}
    manifest = RunManifest(name, name, "test", None, corpus, {"name": "bm25"}, {}, "index", 5, remove_query=False)
    lists = [in_order(query_id, [("c", 3), ("b", 2), ("a", 1)]) for query_id in TOPICS]
    write_run(tmp_path / "first.trec", lists, manifest)
    return tmp_path / "first.trec"


def test_the_command(first, folder, tmp_path):
    output, fused = tmp_path / "second.trec", tmp_path / "fused.trec"
    options = ("--encoder", "multi-vector", "--checkpoint", folder[1], "--device", "cpu")
    told = json.loads(invoked(command, "--run", first, "--output", output, *options, "--depth", 2, "--format", "json"))
    assert (told["topics"], told["lines"]) == (2, 6)
    assert [hit.doc_id for hit in read_run(output)][2::3] == ["a", "a"], "below the depth"
    about = read_run_manifest(output).encoder
    assert (about.name, about["options"]) == ("multi-vector", {"direction": "text-to-text"})
    assert about["reranks"]["encoder"]["name"] == "bm25"
    # A mixture of runs is scored by an encoder that is named, and a run of this one is part of a hybrid.
    write_run(fused, read_lists(first).values(), build_fused_manifest([first, first], Fusion(), 10), tag="fusion")
    invoked(command, "--run", fused, "--output", tmp_path / "third.trec", *options)
    assert load_run_encoder(output, 1.0, None, "cpu").model.name == "multi-vector"


def test_what_is_refused(first, folder, golden, tmp_path):
    """One line each: a dense and a sparse model, pictures for a model of texts, and documents to be stored."""
    score = partial(invoked, command, "--run", first, "--output", tmp_path / "x", "--encoder", "multi-vector")
    sparse = golden / "sentence_transformers_sparse/st6_inference_free_idf_log1p"
    expected = r"expected a model of vectors per token .*; load it with --encoder "
    for place, kind in ((made_dense(golden, tmp_path), "sentence"), (sparse, "splade")):
        with pytest.raises(CheckpointError, match=expected + kind):
            score("--checkpoint", place)
    with pytest.raises(CheckpointError, match="a 'BertForMaskedLM', expected a model of vectors per token"):
        score("--checkpoint", golden / BERT)
    with pytest.raises(UsageError, match="reads text, and text-to-image needs image; --set direction=text-to-text"):
        load_encoder("multi-vector", folder[1], device="cpu")
    store = ("--corpus", f"beir:{tmp_path}/corpus", "--encoder", "multi-vector", "--checkpoint", folder[1])
    with pytest.raises(UsageError, match="no index holds a vector per token; search with another encoder, then rerank"):
        invoked(encode, *store, "--output", tmp_path / "shards", "--set", "direction=text-to-text")
    with pytest.raises(UsageError, match="of kind 'multi-vector' has no dense vectors"):
        load_encoder("multi-vector", folder[1], direction="text-to-text").encode_query("dog")
    names = folder[1] / "modules.json"
    kept = names.read_text()
    try:
        names.write_text(kept.replace("sentence_transformers.base.modules.dense.Dense", "own.Dense"))
        with pytest.raises(CheckpointError, match="a module 'own.Dense', expected one of sentence_transformers"):
            score("--checkpoint", folder[1])
    finally:
        names.write_text(kept)
