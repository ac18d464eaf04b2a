"""D2S and Joint: their heads against the reference's outputs (shared golden data), masks, live and stored features."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpus_folders import write_embeddings, write_golden

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.families.dense_heads import JointHead
from lexvl_anserini.encoders.loading import load_encoder, load_encoder_from
from lexvl_anserini.encoders.parts.features import Embedded
from lexvl_anserini.ground.errors import ArtefactError, CheckpointError, DataError, OnError, UsageError
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.records import Document, Topic

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


# ---- golden: D2S


@pytest.fixture(scope="module")
def tiny(shared):
    """The tokenizer of all golden models."""
    return str(shared / "golden/common/tokenizer_bert_tiny")


@pytest.fixture(scope="module")
def texts(shared):
    return json.loads((shared / "golden/common/texts.json").read_text())


def load_d2s(shared, tiny, folder="ckpt", **options):
    return load_encoder("d2s", str(shared / "golden/d2s" / folder), tokenizer=tiny, device="cpu", **options)


@pytest.fixture(scope="module")
def d2s_corpus(shared, tmp_path_factory):
    """The golden training set in the hub's layout."""
    about = json.loads((shared / "golden/d2s/train_data.json").read_text())
    arrays = np.load(shared / "golden/d2s/train_data.npz")
    return write_golden(tmp_path_factory.mktemp("d2s") / "tiny-dense", about, arrays["img_embs"], arrays["txt_embs"])


def ranked(scores, ids, depth=10):
    """The ids of one query, score descending."""
    return [ids[i] for i in np.lexsort((ids, -scores))[:depth]]


def measured(scores, dataset, doc_ids, query_ids):
    """Hit rates at 1, 5 and 10 and RR@10 of scores [query, document]."""
    relevant = {qrel.query_id: qrel.doc_id for qrel in dataset.qrels()}
    lists = {query: ranked(row, doc_ids) for row, query in zip(scores, query_ids, strict=True)}
    ranks = np.array([[*lists[q], relevant[q]].index(relevant[q]) + 1 for q in query_ids], dtype=float)
    ranks[ranks > 10] = np.inf
    return {**{f"R@{k}": (ranks <= k).mean() for k in (1, 5, 10)}, "MRR@10": (1 / ranks).mean()}


def read_all(dataset, model):
    documents, topics = list(dataset.documents()), list(dataset.topics())
    ids = [d.doc_id for d in documents], [t.query_id for t in topics]
    return *ids, [model.document.read(d) for d in documents], [model.query.read_topic(t) for t in topics]


@pytest.mark.shared
def test_the_published_evaluation_from_embeddings(shared, tiny, d2s_corpus):
    """Scores, run, measures and avg_flops of the reference, without a picture."""
    golden = json.loads((shared / "golden/d2s/train_and_eval.json").read_text())["eval_ckpt"]
    dataset, model = load_dataset(f"embeddings:{d2s_corpus}"), load_d2s(shared, tiny)
    doc_ids, query_ids, documents, queries = read_all(dataset, model)
    sparse_documents, sparse_queries = model.document.weights(documents, 4), model.query.weights(queries, 5)
    scores = (sparse_queries @ sparse_documents.T).toarray()
    for query, row in zip(query_ids, scores, strict=True):
        np.testing.assert_allclose(row, [golden["run"][query][doc_id] for doc_id in doc_ids], **CLOSE)
    found = measured(scores, dataset, doc_ids, query_ids)
    overlap = ((sparse_queries > 0).astype(np.float32) @ (sparse_documents > 0).astype(np.float32).T).mean()
    expected = golden["sparse"]
    assert {**found, "avg_flops": overlap} == pytest.approx(expected, rel=1e-5)
    lines = (line.split() for line in (shared / "golden/d2s/test_run_file.trec").read_text().splitlines())
    run: dict[str, list[str]] = {}
    for query, _, doc_id, *_ in lines:
        run.setdefault(query, []).append(doc_id)
    assert run == {query: ranked(row, doc_ids) for query, row in zip(query_ids, scores, strict=True)}


# ---- golden: Joint


@pytest.mark.shared
def test_joint_from_embeddings_measures_as_the_reference(shared, tiny, tmp_path):
    """The last epoch's validation, dense and sparse, from its weights and the states before the projection."""
    golden = shared / "golden/joint"
    about, arrays = json.loads((golden / "train_data.json").read_text()), np.load(golden / "train_data.npz")
    final = {key: torch.from_numpy(value) for key, value in np.load(golden / "train_final.npz").items()}
    torch.save({"state_dict": final}, tmp_path / "last.ckpt")
    folder = write_golden(tmp_path / "tiny", about, arrays["img_cls"], arrays["text_cls"], "_before_proj_albef")
    dataset = load_dataset(f"embeddings:{folder},before_proj_albef")
    expected = json.loads((golden / "train_and_eval.json").read_text())["val_per_epoch"][-1]
    for vectors, mode in (("dense", "dense"), ("sparse", "single")):
        model = load_encoder("joint", str(tmp_path / "last.ckpt"), tokenizer=tiny, device="cpu", vectors=vectors)
        doc_ids, query_ids, documents, queries = read_all(dataset, model)
        if vectors == "dense":
            scores = model.query.vectors(queries) @ model.document.vectors(documents).T
        else:
            scores = (model.query.weights(queries) @ model.document.weights(documents).T).toarray()
        assert measured(scores, dataset, doc_ids, query_ids) == pytest.approx(expected[mode], rel=1e-6)


# ---- a head small enough to compute by hand


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory, golden):
    """A D2S head over two numbers: the token at hand (id 999 on) weighs log(1 + its row of E times LN(u))."""
    folder = tmp_path_factory.mktemp("by-hand")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(golden / "splade/ckpt_bert" / name, folder / name)
    vocabulary = torch.zeros(2000, 2)
    words = [line.strip() for line in (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()]
    for term, row in (("[CLS]", (1, 0)), ("a", (2, 0)), ("man", (0, 2)), ("horse", (3, 0))):
        vocabulary[words.index(term)] = torch.tensor(row, dtype=torch.float32)
    layers = {"proj": torch.eye(2), "vocab_layer_norm": torch.ones(2), "vocab_projector": vocabulary}
    weights = {f"{name}.weight": weight for name, weight in layers.items()}
    weights |= {f"{name}.bias": torch.zeros(len(weight)) for name, weight in layers.items()}
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"model_type": "d2s", "mlm_head": "distilbert-base-uncased"}))
    return folder


def load_by_hand(folder, **options):
    return load_encoder("d2s", str(folder), device="cpu", **options)


def test_inputs_are_references_arrays_or_texts_with_either(by_hand, tmp_path):
    vectors = {"x": np.array([3.0, 1.0]), "y": np.array([0.0, 5.0])}
    folder = write_embeddings(tmp_path / "embs", vectors, vectors)
    reference = f"{folder / 'text_embs.parquet'}::x"
    model = load_by_hand(by_hand)
    inputs = [reference, np.array([3.0, 1.0]), Embedded("", reference), [3, 1], Embedded("a", np.array([3.0, 1.0]))]
    rows = model.query.weights(inputs, 2).toarray()
    assert rows.any() and (rows == rows[0]).all()
    assert model.query.weights([]).shape == (0, 2000) and model.query.dense_weights([]).shape == (0, 2000)


def test_directions_and_what_is_read(by_hand):
    item = {"text": "a man", "image": "t.parquet::1"}
    there, back = load_by_hand(by_hand, text="words"), load_by_hand(by_hand, direction="image-to-text", text="words")
    topic = there.query.read_topic(Topic("q", **item))
    assert (topic, topic.vector) == ("a man", "t.parquet::1")
    assert back.document.read(Document("d", **item)) == topic
    assert there.document.read(Document("d", image="t.parquet::1")).vector == "t.parquet::1"
    assert back.query.read_topic(Topic("q", image="t.parquet::1")) == ""
    with pytest.raises(UsageError, match="topic 'q' has no text"):
        there.query.read_topic(Topic("q", image="t.parquet::1"))
    with pytest.raises(UsageError, match="topic 'q' has no embedding; .*backbone_checkpoint"):
        there.query.read_topic(Topic("q", text="a man"))
    with pytest.raises(UsageError, match="has no tokens to mask a vector by"):
        there.query.weights([np.zeros(2)])


def test_vectors_and_tokenizers_that_do_not_fit_the_head(by_hand, tmp_path):
    model = load_by_hand(by_hand)
    with pytest.raises(DataError, match=r"vectors of \(3,\) numbers, this head reads 2"):
        model.query.weights([np.zeros(3)])
    with pytest.raises(DataError, match="not an embedding"):
        model.document.weights(["picture.jpg"])
    with pytest.raises(DataError, match="vectors of different lengths"):
        model.query.weights([np.zeros(2), np.zeros(3)])
    shutil.copyfile(by_hand / "pytorch_model.bin", tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="distilbert-base-uncased.* as tokenizer"):
        load_encoder("d2s", str(tmp_path / "model.pt"), device="cpu")


SEVEN_TERMS = {"vocab_projector.weight": torch.zeros(7, 2), "vocab_projector.bias": torch.zeros(7)}


@pytest.mark.parametrize(
    "changes,config,message",
    [
        ({"vocab_projector.weight": None}, {}, "no D2S head"),
        ({}, {"model_type": "bert"}, "model type 'bert'; this encoder loads D2S heads"),
        (SEVEN_TERMS, {}, "has 2000 tokens, the model 7"),
    ],
)
def test_heads_that_are_refused(by_hand, tmp_path, changes, config, message):
    folder = shutil.copytree(by_hand, tmp_path / "changed")
    weights = torch.load(by_hand / "pytorch_model.bin", weights_only=True) | changes
    torch.save({key: value for key, value in weights.items() if value is not None}, folder / "pytorch_model.bin")
    about = json.loads((by_hand / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | config))
    with pytest.raises(CheckpointError, match=message):
        load_encoder("d2s", str(folder), device="cpu")


# ---- golden: live features


@pytest.mark.shared
@pytest.mark.parametrize("family,file", [("blip", "lavis_checkpoint.pth"), ("albef", "lavis_checkpoint.pt")])
def test_live_features_are_those_of_the_dense_encoder(shared, tiny, texts, family, file):
    """D2S over a live backbone equals D2S over the vectors that backbone gives."""
    backbone = str(shared / "golden" / family / file)
    options = {"backbone_checkpoint": backbone, "head_width": 16}
    images = [str(path) for path in sorted((shared / "golden/common/images").glob("*.png"))]
    dense = load_encoder(family, backbone, tokenizer=tiny, device="cpu", head_width=16)
    stored, live = load_d2s(shared, tiny), load_d2s(shared, tiny, **options)
    for inputs, side in ((texts, "query"), (images, "document")):
        vectors = getattr(dense, side).vectors(inputs)
        expected = getattr(stored, side).weights(vectors).toarray()
        np.testing.assert_allclose(getattr(live, side).weights(inputs, 3).toarray(), expected, atol=1e-4)
    policy = OnError("skip")
    found = live.document.weights(["nowhere.png", images[0]], on_error=policy).toarray()
    assert [one.position for one in policy.skipped] == [0] and not found[0].any()
    np.testing.assert_allclose(found[1], live.document.weights(images[:1]).toarray()[0], atol=1e-4)
    assert live.query.read_topic(Topic("q", text="a man")) == "a man"
    masked = load_d2s(shared, tiny, text="masked", **options).query.weights(texts).toarray()
    embedded = [Embedded(text, vector) for text, vector in zip(texts, dense.query.vectors(texts), strict=True)]
    expected = load_d2s(shared, tiny, text="masked").query.weights(embedded)
    np.testing.assert_allclose(masked, expected.toarray(), atol=1e-4)


@pytest.mark.shared
def test_live_states_of_joint(shared, tiny, texts, tmp_path):
    """Joint reads [CLS] before the backbone's projection; a head of another width is refused."""
    backbone = shared / "golden/blip/lavis_checkpoint.pth"
    arrays = np.load(shared / "golden/blip/lavis_outputs.npz")
    rng = torch.Generator().manual_seed(2)
    head = JointHead(arrays["text_cls_hidden"].shape[1], 8, 12, 2002, untied=False)
    weights = {key: torch.randn(value.shape, generator=rng) for key, value in head.state_dict().items()}
    torch.save(weights, tmp_path / "head.pt")
    options = {"backbone_checkpoint": str(backbone), "head_width": 16, "tokenizer": tiny, "device": "cpu"}
    live, stored = (load_encoder("joint", str(tmp_path / "head.pt"), **o) for o in (options, {"tokenizer": tiny}))
    images = [str(shared / "golden/common/images" / name) for name in _meta(shared)["images"]]
    found = live.query.weights(_meta(shared)["raw_texts"]).toarray()
    np.testing.assert_allclose(found, stored.query.weights(arrays["text_cls_hidden"]).toarray(), atol=1e-4)
    found = live.document.weights(images).toarray()
    np.testing.assert_allclose(found, stored.document.weights(arrays["image_cls_hidden"]).toarray(), atol=1e-4)
    places = {"tokenizer": tiny, "backbone_checkpoint": str(backbone)}
    with pytest.raises(CheckpointError, match="its vectors have 32 numbers, the head reads 24"):
        load_encoder("joint", str(shared / "golden/joint/proj_model_blip.pt"), device="cpu", head_width=16, **places)


def _meta(shared):
    return json.loads((shared / "golden/blip/lavis_meta.json").read_text())


@pytest.mark.shared
def test_an_index_of_stored_vectors_is_asked_through_a_backbone(shared, tiny):
    """The index was made from vectors; a typed text needs the backbone, which is no other checkpoint of the index."""
    stored = load_d2s(shared, tiny)
    made_by = {"name": "d2s", "checkpoint": stored.checkpoint, "checkpoint_digest": stored.checkpoint_digest}
    vocabulary = {"digest": stored.query.vocabulary.digest}
    manifest = Manifest("impact", {**made_by, "options": stored.options}, {}, {}, vocabulary=vocabulary)
    settings = {"backbone_checkpoint": str(shared / "golden/blip/lavis_checkpoint.pth"), "head_width": 16}
    asked = load_encoder_from(manifest.encoder, device="cpu", settings=settings, vocabulary=manifest.vocabulary_digest)
    assert asked.query.read_topic(Topic("q", text="a man")) == "a man"
    other = replace(manifest, encoder={**manifest.encoder, "checkpoint_digest": "0" * 64})
    with pytest.raises(ArtefactError, match=f"has digest {stored.checkpoint_digest[:16]}, .* with 0000"):
        load_encoder_from(other.encoder, device="cpu", settings=settings, vocabulary=other.vocabulary_digest)
