"""Families of texts and images, end to end on coloured squares: trained, saved, and loaded by their own encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tiny_encoders import tiny_vit

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.encoders.families.stair import Stair, StairConfig
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_plugins.train.common.tower_pair import TowerPair, drop_registers
from lexvl_plugins.train.images.captioned import CaptionedImages, read_captioned
from lexvl_plugins.train.images.material import Validation
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import Recipe, check_recipe, read_recipe
from tests.plugins.train.tiny_training import losses_of, same_weights, tiny_recipe, weights_of, write_squares

# The objective of each family over networks, and its options.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "vdr-crossmodal": {"name": "vdr", "options": {"topk": 8, "normalised": True}},
    "dense-crossmodal": {"name": "info_nce"},
    "stair": {"name": "stair"},
    "lexlip": {"name": "lexlip"},
    "fdt": {"name": "fdt", "learn_temperature": True, "limits": [0.0025, 0.0498]},
}
# Further settings of the model.
EXTRA: dict[str, dict[str, Any]] = {
    "vdr-crossmodal": {"topk": 8},
    "fdt": {"codebook": {"terms": 32, "width": 8, "temperature": 4.0, "decay": 0.5, "every": 1}},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight coloured squares for training and four for validation, two captions each."""
    return write_squares(tmp_path_factory.mktemp("corpus"), train=8)


@pytest.fixture(scope="module")
def pretrained(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of both sides over pretrained networks."""
    return {
        "text": {"checkpoint": str(golden / "splade/ckpt_bert"), "least": 1, "max_length": 16, "dropout": 0.1},
        "image": {"checkpoint": str(tiny_vit(tmp_path_factory.mktemp("vit"))), "grid": 2, "cells": 0.3},
    }


FRESH: dict[str, Any] = {
    "text": {"words": 120, "max_length": 16, "width": 16, "layers": 1, "heads": 2},
    "image": {"resolution": 16, "patch_size": 8, "width": 16, "layers": 1, "heads": 2},
}


ONE_STEP = {"steps": 1, "batch_size": 4, "warmup_steps": 1}


def recipe_of(corpus: str, kind: str, networks: dict[str, Any], **changes: Any) -> Recipe:
    content = {
        "objective": {"temperature": 0.5, **OBJECTIVES.get(kind, {"name": kind})},
        "optimisation": {"steps": 2, "batch_size": 4, "warmup_steps": 1, "learning_rate": 0.01},
        "validate_every": 2,
    }
    return tiny_recipe(corpus, {"kind": kind, **EXTRA.get(kind, {}), **networks}, **{**content, **changes})


def vectors_of(side: Any, inputs: list[str]) -> np.ndarray:
    """The vectors of a loaded side before the sparsifier."""
    if side.kind == "dense":
        return side.vectors(inputs)
    return as_lexical(side).dense_weights(inputs)


def validated(recipe: Recipe, output: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, np.ndarray]]:
    """The checkpoint, and the vectors of the pair that was validated last, by side."""
    seen: dict[str, np.ndarray] = {}

    def measure(self: Validation, pair: TowerPair, model: Any) -> dict[str, float]:
        pair.eval()
        with torch.no_grad():
            images = self.images.get_plain(np.arange(len(self.images)))
            seen["images"] = drop_registers(pair.encoder_p(images), model).numpy()
            seen["texts"] = drop_registers(pair.encoder_q(self.captions.read_batch(np.arange(8))), model).numpy()
        pair.train()
        return {}

    monkeypatch.setattr(Validation, "measure", measure)
    monkeypatch.setattr(Validation, "score", lambda self, figures: 0.0)
    return train(recipe, output, device="cpu"), seen


def assert_loaded(kind: str, folder: Path, corpus: str, seen: dict[str, np.ndarray]) -> Any:
    """The encoder of a folder, whose vectors are those of the pair that was validated."""
    model, data = load_encoder(kind, str(folder), device="cpu"), held_out(corpus)
    np.testing.assert_allclose(vectors_of(model.document, list(data.images)), seen["images"], atol=1e-5)
    np.testing.assert_allclose(vectors_of(model.query, data.texts), seen["texts"], atol=1e-5)
    return model


@pytest.mark.parametrize("source", ["fresh", "pretrained"])
@pytest.mark.parametrize("kind", sorted(OBJECTIVES))
def test_the_loaded_encoder_gives_the_vectors_of_the_trained_pair(
    kind, source, corpus, pretrained, tmp_path, monkeypatch
):
    recipe = recipe_of(corpus, kind, pretrained if source == "pretrained" else FRESH)
    folder, seen = validated(recipe, tmp_path, monkeypatch)
    assert_loaded(kind, folder, corpus, seen)


def text_of(source: str, golden: Path) -> dict[str, Any]:
    """A text side over the 2,000 tokens of a tokenizer: BERT's 999 unused ones, then 993 in ASCII and 8 others."""
    if source == "fresh":
        return {**FRESH["text"], "words": 2000, "tokenizer": str(golden / "splade/ckpt_bert")}
    return {"checkpoint": str(golden / "splade/ckpt_bert"), "terms": "tokens", "max_length": 16}


@pytest.mark.parametrize(
    ("kind", "text", "image", "size"),
    [
        ("stair", "fresh", "fresh", 2000),
        ("stair", "pretrained", "fresh", 2000),
        ("lexlip", "pretrained", "pretrained", 2000),
        ("vdr-crossmodal", "fresh", "fresh", 993),
        ("vdr-crossmodal", "pretrained", "fresh", 993),
        ("vdr-crossmodal", "pretrained", "pretrained", 993),
    ],
)
def test_the_dimensions_are_the_tokens_of_a_tokenizer(
    kind, text, image, size, golden, corpus, pretrained, tmp_path, monkeypatch
):
    """VDR has the ASCII tokens from the 999th on, as its published checkpoints do."""
    images = pretrained if image == "pretrained" else FRESH
    recipe = recipe_of(corpus, kind, {"text": text_of(text, golden), "image": images["image"]})
    folder, seen = validated(recipe, tmp_path, monkeypatch)
    model = assert_loaded(kind, folder, corpus, seen)
    assert len(as_lexical(model.query).vocabulary) == size
    own = load_encoder(kind, str(folder), device="cpu", text_mask="own") if kind == "stair" else None
    for [term, _] in own.decode(own.query.weights(["a red square"]))[0] if own else ():
        assert term not in ("[CLS]", "[SEP]")


def test_a_trained_stair_is_the_network_of_its_class(corpus: str, tmp_path: Path) -> None:
    """One matrix e, a class token, the heads of the class, and no further weights; the maximum is over their states."""
    recipe = recipe_of(corpus, "stair", FRESH)
    folder = train(recipe, tmp_path, device="cpu")
    config = StairConfig.read(json.loads((folder / "config.json").read_text()), "config.json")
    assert (config.prompt, config.stage, config.image.class_token) == ("", "single", True)
    stair, saved = Stair(config), weights_of(folder)
    assert {key: weights.shape for key, weights in saved.items()} == {k: w.shape for k, w in stair.state_dict().items()}
    state = weights_of(tmp_path / "state")
    trained = [key for key in state if not key.startswith("log_")]
    assert sum(state[key].numel() for key in trained) == sum(weights.numel() for weights in stair.parameters())
    stair.load_state_dict(saved)
    pixels = Pixels(16).normalise(torch.full((1, 16, 16, 3), 90, dtype=torch.uint8))
    encoder = load_encoder("stair", str(folder), device="cpu", normalise=False)
    [weights] = as_lexical(encoder.document).dense_weights([Image.new("RGB", (16, 16), (90, 90, 90))])
    with torch.no_grad():
        logits = stair.image_head(stair.image(pixels)) @ stair.text.token_embedding.weight.T + stair.image_head.bias
    assert logits.shape[1] == 1 + 4  # the class token and the patches
    np.testing.assert_allclose(weights, torch.log1p(torch.relu(logits.amax(dim=1)))[0], atol=1e-5)


def test_the_checkpoint_of_each_stage_of_stair_is_loaded_as_that_of_its_stage(corpus: str, tmp_path: Path) -> None:
    """After stage 1 texts keep their own tokens, after the others not."""
    masks = ({"masked": True}, {}, {})
    stages = [{"objective": {"name": "stair", "options": options}, "optimisation": ONE_STEP} for options in masks]
    content = recipe_of(corpus, "stair", FRESH).model_dump(mode="json")
    model = train(check_recipe({**content, "stages": stages}, "tiny.yaml"), tmp_path, device="cpu", keep_every="stage")
    folders = [*(tmp_path / "kept" / f"stage-{number}" for number in (1, 2, 3)), model]
    assert [json.loads((folder / "config.json").read_text())["stage"] for folder in folders] == ["1", "2", "3", "3"]
    names = [type(load_encoder("stair", str(folder), device="cpu").query).__name__ for folder in folders]
    assert names == ["OwnTokenTower", "TextTower", "TextTower", "TextTower"]


@pytest.mark.parametrize(
    ("kind", "text", "image", "message"),
    [
        ("vdr-crossmodal", {"checkpoint": "minilm"}, FRESH["image"], "tokens of its tokenizer: text.terms: tokens"),
        ("vdr-crossmodal", FRESH["text"], {"checkpoint": "x"}, "text and image both have a checkpoint"),
        ("dense-crossmodal", {"checkpoint": "minilm"}, FRESH["image"], "text and image both have a checkpoint"),
        ("stair", {**FRESH["text"], "tokenizer": "minilm"}, FRESH["image"], "words 120: the tokenizer of minilm has"),
        (
            "vdr-crossmodal",
            {"checkpoint": "minilm", "terms": "tokens"},
            {"checkpoint": "x", "class_names": "names.json"},
            "class words are beside words of captions",
        ),
    ],
)
def test_networks_that_do_not_fit(kind: str, text: dict[str, Any], image: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe_of("flickr8k", kind, {"text": text, "image": image})


def held_out(corpus: str) -> CaptionedImages:
    """The validation split."""
    return read_captioned(load_dataset(corpus, "val", None, direction="text-to-image"))


@pytest.fixture(scope="module")
def dense(corpus: str, pretrained: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dense pair of 6 dimensions, with a hidden layer of 10."""
    networks = {**pretrained, "dimensions": 6, "hidden": 10}
    return str(train(recipe_of(corpus, "dense-crossmodal", networks), tmp_path_factory.mktemp("dense"), device="cpu"))


@pytest.mark.parametrize("kind", ["d2s", "joint"])
def test_a_head_over_a_dense_pair_is_loaded_with_the_pair(kind, dense, corpus, tmp_path, monkeypatch):
    recipe = recipe_of(corpus, kind, {"pair": dense, "least": 1})
    folder, seen = validated(recipe, tmp_path, monkeypatch)
    model = assert_loaded(kind, folder, corpus, seen)
    assert "squareling" in as_lexical(model.query).vocabulary.terms
    with pytest.raises(UsageError, match="backbone_checkpoint: .* names its own dense pair"):
        load_encoder(kind, str(folder), device="cpu", backbone_checkpoint=dense)
    masked = load_encoder(kind, str(folder), device="cpu", text="words")
    [own] = masked.decode(masked.query.weights(["a red squareling"]))
    assert {term for term, _ in own} <= {"red", "squareling"}


def test_a_dense_pair_that_changed_is_refused(dense: str, corpus: str, tmp_path: Path) -> None:
    folder = train(recipe_of(corpus, "d2s", {"pair": dense, "least": 1}), tmp_path, device="cpu")
    path = folder / "dense_pair/text/vocab.json"
    path.write_text("{}")
    (folder / "dense_pair/config.json").write_text((folder / "dense_pair/config.json").read_text() + " ")
    with pytest.raises(CheckpointError, match="was trained over dense_pair with SHA-256"):
        load_encoder("d2s", str(folder), device="cpu")


HEADS = ["encoder_?.head.*", "encoder_?.proj"]
# The stages of two families: LexLIP's phases and its fine-tuning, STAIR's three stages.
LEXLIP, OVER_VIEWS = {"name": "lexlip", "temperature": 0.05}, {"trained": HEADS, "views": 2}
STAGED: dict[str, list[dict[str, Any]]] = {
    "lexlip": [
        {"objective": LEXLIP, "auxiliaries": [{"name": "masked_words", "weight": 1.0}], **OVER_VIEWS},
        {"objective": {**LEXLIP, "name": "lexlip_momentum"}, "momentum": {"queue": 6, "decay": 0.9}, **OVER_VIEWS},
        {"objective": LEXLIP, "trained": []},
    ],
    "stair": [
        {"objective": {"name": "stair", "options": {"masked": True}}, **OVER_VIEWS},
        {"objective": {"name": "stair"}, **OVER_VIEWS, "trained": ["encoder_q.head.*"]},
        {"objective": {"name": "stair"}, "auxiliaries": [{"name": "caption_gated", "weight": 0.1}]},
    ],
}


def staged(corpus: str, kind: str, pretrained: dict[str, Any]) -> Recipe:
    """Stages of two steps each, with FLOPS on both sides."""
    flops = [{"name": "flops", "side": side, "weight": 0.002} for side in ("query", "document")]
    plan = {"steps": 2, "batch_size": 4, "warmup_steps": 1, "learning_rate": 0.01, "captions_per_image": 2}
    stages = [{**stage, "regularisers": flops, "optimisation": plan} for stage in STAGED[kind]]
    return tiny_recipe(corpus, {"kind": kind, **pretrained}, stages=stages, validate_every=2)


@pytest.mark.parametrize("kind", sorted(STAGED))
def test_a_resumed_run_of_stages_ends_with_the_same_weights(kind, corpus, pretrained, tmp_path):
    """Killed inside each stage."""
    recipe = staged(corpus, kind, pretrained)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    for step in (1, 3, 5):
        assert train(recipe, tmp_path / "killed", device="cpu", stop_after=step).name == "state"
    assert same_weights(train(recipe, tmp_path / "killed", device="cpu"), whole)
    assert not any(key.startswith("parts.") for key in weights_of(whole))
    assert load_encoder(kind, str(tmp_path / "killed/model"), device="cpu").kind == "impact"


RECIPES = Path(__file__).parents[3] / "runs/recipes"
NAMES = ("clip", "vdr-crossmodal", "stair", "stair-single", "lexlip", "fdt", "d2s", "joint", "v-splade")


@pytest.mark.parametrize("name", NAMES)
def test_a_small_recipe_lowers_its_loss(name, corpus, pretrained, dense, tmp_path):
    """With tiny networks in place of its own, for eight steps per stage."""
    path = RECIPES / f"{name}-small.yaml"
    content = yaml.safe_load(path.read_text())
    model = {"pair": dense, "least": 1} if "pair" in content["model"] else pretrained
    plan = {"steps": 8, "batch_size": 4, "learning_rate": 0.003, "warmup_steps": 1, "average": 0.0}
    prefixes = [f"stages.{number}." for number in range(len(content["stages"]))] if "stages" in content else [""]
    changes: dict[str, Any] = {f"model.{key}": value for key, value in model.items()}
    changes |= {f"{prefix}optimisation.{key}": value for prefix in prefixes for key, value in plan.items()}
    changes |= {"data.corpus": corpus, "state_every": 100, "log_every": 1, "validate_every": 100}
    if name == "fdt":
        changes["model.codebook"] = EXTRA["fdt"]["codebook"]
    train(read_recipe(path, changes), tmp_path, device="cpu")
    losses = losses_of(tmp_path)
    assert len(losses) == 8 * len(prefixes) and min(losses[4:8]) < losses[0]
