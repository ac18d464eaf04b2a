"""LexLIP over a tiny pair of networks: its sides, its options, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_encoders import made_lexlip

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.grounding import localise
from lexvl_anserini.ground.errors import CheckpointError, UsageError


@pytest.fixture()
def folder(golden: Path, tmp_path: Path) -> Path:
    return made_lexlip(golden, tmp_path)


@pytest.fixture()
def images() -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for h, w in ((9, 20), (30, 8), (1, 1))]


def load(folder: Path, **options):
    return load_encoder("lexlip", str(folder), device="cpu", **options)


def test_vectors_have_unit_length_unless_the_user_says_otherwise(folder, images):
    model, plain = load(folder), load(folder, normalise=False)
    for side, inputs in (("query", ["a dog", "a red boat"]), ("document", images)):
        unit, raw = (getattr(encoder, side).dense_weights(inputs) for encoder in (model, plain))
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(unit, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-6)


def test_captions_are_cut(folder):
    assert len(load(folder).query.reader(["dog " * 100])[0]) == 40
    assert len(load(folder, text_max_length=12).query.reader(["dog " * 100])[0]) == 12


def test_topk(folder, images):
    there, back = load(folder, topk=7, query_topk=3), load(folder, direction="image-to-text", topk=7)
    assert there.query.weights(["a dog"]).nnz == 3 and there.document.weights(images[:1]).nnz == 7
    assert back.query.weights(images[:1]).nnz == 7 and back.document.weights(["a dog"]).nnz == 7
    with pytest.raises(UsageError, match="topk 0"):
        load(folder, topk=0)


def test_localise(folder, images):
    """A map has the network's whole grid; the mean of all cells, which the vector has beside them, has no cell."""
    model = load(folder, normalise=False)
    word = next(term for term in model.vocabulary if term.isalpha())
    maps = localise(model, images, word, "activation")
    assert maps.shape == (3, 4, 4) and (maps >= 0).all()


@pytest.mark.parametrize(
    "change,message",
    [
        ({"encoder_q.bert_model.embeddings.LayerNorm.bias": None}, "missing: embeddings.LayerNorm.bias"),
        ({"encoder_p.head.dense.bias": None}, "missing: dense.bias"),
        ({"encoder_p.proj": None}, "encoder_p.proj is missing or has not"),
        ({"encoder_p.extra": torch.zeros(1)}, "unexpected: encoder_p.extra"),
        ({"projection.weight": torch.zeros(1)}, "unexpected: projection.weight"),
        ({"encoder_p.standard.mean": torch.zeros(9)}, r"mis-shaped: mean \[9\]"),
    ],
)
def test_weights_that_do_not_fit(folder, change, message):
    weights = load_file(folder / "model.safetensors") | change
    save_file({k: v for k, v in weights.items() if v is not None}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


def test_another_models_checkpoint(folder, golden):
    config = json.loads((folder / "config.json").read_text())
    config["encoder_q"]["type"] = "stair_text"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="encoder_q is of type 'stair_text', expected 'lexlip_text'"):
        load(folder)
