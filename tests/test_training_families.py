"""Families of texts and images, end to end on coloured squares: trained, saved, and loaded by their own encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretrained_networks import tiny_vit
from tiny_training import write_corpus

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.training.data import CaptionedImages, read_captioned
from lexvl_anserini.training.loop import train
from lexvl_anserini.training.measuring import Validation
from lexvl_anserini.training.pairs import TowerPair, as_encoded
from lexvl_anserini.training.recipe import Recipe, checked

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220), "white": (250, 250, 250)}
# The objective of each family, and its options.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "vdr-crossmodal": {"name": "vdr", "options": {"topk": 8, "normalised": True}},
    "dense-crossmodal": {"name": "info_nce"},
    "stair": {"name": "stair"},
    "lexlip": {"name": "lexlip"},
    "fdt": {"name": "fdt", "learn_temperature": True, "limits": [0.0025, 0.0498]},
}
CODEBOOK = {"terms": 32, "width": 8, "temperature": 4.0, "decay": 0.5, "every": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight coloured squares for training and four for validation, two captions each."""
    folder = tmp_path_factory.mktemp("corpus")
    names = [list(COLOURS)[number % 4] for number in range(12)]
    images = [np.full((20, 20, 3), COLOURS[name], dtype=np.uint8) for name in names]
    for number, pixels in enumerate(images):
        pixels[number : number + 4, 4:16] = 90
    captions = [[f"a {name} squareling", f"the squareling is {name} with a grey bar"] for name in names]
    return write_corpus(folder, images, captions, train=8)


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


def recipe_of(corpus: str, kind: str, networks: dict[str, Any], **changes: Any) -> Recipe:
    content = {
        "name": "tiny",
        "data": {"corpus": corpus},
        "model": {"kind": kind, "topk": 8, **({"codebook": CODEBOOK} if kind == "fdt" else {}), **networks},
        "objective": {"temperature": 0.5, **OBJECTIVES[kind]},
        "optimisation": {"steps": 2, "batch_size": 4, "warmup_steps": 1, "learning_rate": 0.01},
        "validate_every": 2,
        "state_every": 1,
        "log_every": 1,
        **changes,
    }
    return checked(content, "tiny.yaml")


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
            images = self.images.plain(np.arange(len(self.images)))
            seen["images"] = as_encoded(pair.encoder_p(images), model).numpy()
            seen["texts"] = as_encoded(pair.encoder_q(self.captions.batch(np.arange(8))), model).numpy()
        pair.train()
        return {}

    monkeypatch.setattr(Validation, "measure", measure)
    monkeypatch.setattr(Validation, "score", lambda self, figures: 0.0)
    return train(recipe, output, device="cpu"), seen


@pytest.mark.parametrize("source", ["fresh", "pretrained"])
@pytest.mark.parametrize("kind", sorted(OBJECTIVES))
def test_the_loaded_encoder_gives_the_vectors_of_the_trained_pair(
    kind: str,
    source: str,
    corpus: str,
    pretrained: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = recipe_of(corpus, kind, pretrained if source == "pretrained" else FRESH)
    folder, seen = validated(recipe, tmp_path, monkeypatch)
    model = load_encoder(kind, str(folder), device="cpu")
    data = held_out(corpus)
    np.testing.assert_allclose(vectors_of(model.document, list(data.images)), seen["images"], atol=1e-5)
    np.testing.assert_allclose(vectors_of(model.query, data.texts), seen["texts"], atol=1e-5)


def held_out(corpus: str) -> CaptionedImages:
    """The validation split."""
    return read_captioned(load_dataset(corpus, "val", None, direction="text-to-image"))
