"""D2S and Joint against their equations written afresh: drawn sizes, stored vectors, and live ones of a drawn BLIP."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from oracle_parts import (
    SEEDS,
    TEXTS,
    close,
    dense,
    dense_shapes,
    draw,
    ln,
    norm_shapes,
    random_weights,
    top_columns,
    unit,
    write_wordpieces,
)
from safetensors.torch import save_file

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.features import Embedded


def vectors_of(seed: int, width: int, length: bool) -> torch.Tensor:
    """A vector per text, in double the usual spread so that many dimensions are below 0."""
    vectors = 2 * torch.randn(len(TEXTS), width, generator=torch.Generator().manual_seed(seed))
    return unit(vectors) if length else vectors


def own_mask(tokenizer, text: str, size: int, specials: bool) -> torch.Tensor:
    """1 at the tokens of a text of at most 512 tokens."""
    ids = tokenizer(text, truncation=True, max_length=512, add_special_tokens=specials)["input_ids"]
    mask = torch.zeros(size)
    mask[ids] = 1
    mask[[0] if specials else [0, 101, 102]] = 0
    return mask


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", ["safetensors", "bin", "model.pt"])
def test_d2s(golden, tmp_path, seed, layout):
    size, width, inner = draw(seed, (1300, 12, 20), (1999, 30, 16), (1024, 8, 44))
    tokenizer = write_wordpieces(golden, tmp_path / "tokens", size)
    shapes = dense_shapes("proj", inner, width) | dense_shapes("vocab_projector", size, inner)
    shapes |= norm_shapes(inner, "vocab_layer_norm")
    weights = random_weights(shapes, seed)
    checkpoint = tmp_path / "d2s"
    checkpoint.mkdir()
    if layout == "model.pt":
        checkpoint = checkpoint / "model.pt"
        torch.save(weights, checkpoint)
    else:
        config = {"model_type": "d2s", "architectures": ["D2SModel"], "mlm_head": "nowhere/at-all", "dense_size": width}
        (checkpoint / "config.json").write_text(json.dumps(config))
        if layout == "bin":
            torch.save(weights, checkpoint / "pytorch_model.bin")
        else:
            save_file(weights, checkpoint / "model.safetensors")
    vectors = vectors_of(seed, width, length=True)
    hidden = ln(dense(vectors, weights, "proj"), weights, "vocab_layer_norm", 1e-12)
    wanted = torch.log1p(dense(hidden, weights, "vocab_projector").clamp(min=0))
    texts = [Embedded(text, vector.numpy()) for text, vector in zip(TEXTS, vectors, strict=True)]

    def load(**options):
        return load_encoder("d2s", str(checkpoint), device="cpu", tokenizer=str(tmp_path / "tokens"), **options)

    expanded = load(topk=7)
    close(expanded.query.weights(texts, 4).toarray()[:, :5], (wanted * top_masks(wanted, 7))[:, :5])
    close(load().query.weights(texts, 4).toarray(), wanted)
    close(load().document.weights(list(vectors.numpy()), 4).toarray(), wanted)
    for option, specials in (("masked", True), ("words", False)):
        model = load(text=option)
        masks = torch.stack([own_mask(tokenizer, text, size, specials) for text in TEXTS])
        close(model.query.weights(texts, 4).toarray(), wanted * masks)
        close(model.document.weights(list(vectors.numpy()), 4).toarray(), wanted)


def top_masks(rows: torch.Tensor, k: int) -> torch.Tensor:
    mask = torch.zeros_like(rows)
    for row, columns in zip(mask, (top_columns(row, k) for row in rows), strict=True):
        row[sorted(columns)] = 1
    return mask


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layout", ["lightning", "bare"])
def test_joint(golden, tmp_path, seed, tied, layout):
    size, hidden, width, inner = draw(seed, (1300, 12, 20, 9), (1999, 30, 16, 24), (1024, 8, 44, 16))
    tokenizer = write_wordpieces(golden, tmp_path / "tokens", size)
    rows = size + draw(seed, 2, 0, 2)  # BLIP's vocabulary has [DEC] and [ENC] besides
    shapes = dense_shapes("text_proj", width, hidden) | dense_shapes("vision_proj", width, hidden)
    shapes |= dense_shapes("single_proj", inner, width) | norm_shapes(inner, "single_vocab_layer_norm")
    shapes |= dense_shapes("single_vocab_projector", rows, inner)
    if tied:
        del shapes["single_vocab_projector.bias"]
    weights = random_weights(shapes, seed)
    # Small states before the LayerNorm, so that its epsilon shows.
    weights["single_proj.weight"] *= 0.02
    weights["single_proj.bias"] *= 0.02
    checkpoint = tmp_path / "checkpoint_best.ckpt"
    stored = {f"model.{key}": value for key, value in weights.items()} if layout == "lightning" else weights
    temperature = torch.tensor(0.05)
    if layout == "lightning":
        outer = {
            "epoch": 2, "global_step": 9, "state_dict": {**stored, "temp": temperature, "loss_fn.temp": temperature},
            "hyper_parameters": {"config": {"w1": 0.2}}, "q_reg_t": 3, "q_reg_weight_t": 1e-5,
        }  # fmt: skip
        torch.save(outer, checkpoint)
    else:
        torch.save(stored, checkpoint)
    states = vectors_of(seed, hidden, length=False)
    eps = 1e-5 if tied else 1e-12
    texts = [Embedded(text, state.numpy()) for text, state in zip(TEXTS, states, strict=True)]

    def load(**options):
        return load_encoder("joint", str(checkpoint), device="cpu", tokenizer=str(tmp_path / "tokens"), **options)

    both = {}
    for side in ("text", "vision"):
        vectors = unit(dense(states, weights, f"{side}_proj"))
        features = ln(dense(vectors, weights, "single_proj"), weights, "single_vocab_layer_norm", eps)
        logits = dense(features, weights, "single_vocab_projector")
        both[side] = vectors, torch.log1p(logits.clamp(min=0))
    pictures = list(states.numpy())
    model = load()
    close(model.query.weights(texts, 4).toarray(), both["text"][1])
    close(model.document.weights(pictures, 4).toarray(), both["vision"][1])
    assert list(model.query.vocabulary.terms)[size:] == ["[DEC]", "[ENC]"][: rows - size]
    vectors = load(vectors="dense")
    close(vectors.query.vectors(texts, 4), both["text"][0])
    close(vectors.document.vectors(pictures, 4), both["vision"][0])
    for option, specials in (("masked", True), ("words", False)):
        masks = torch.stack([own_mask(tokenizer, text, rows, specials) for text in TEXTS])
        close(load(text=option).query.weights(texts, 4).toarray(), both["text"][1] * masks)
    reverse = load(direction="image-to-text")
    close(reverse.query.weights(pictures, 4).toarray(), both["vision"][1])
    assert np.array_equal(reverse.document.weights(texts).toarray() > 0, (both["text"][1] > 0).numpy())
