"""LexLIP over a tiny pair of networks: its sides, its options, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_encoders import made_lexlip

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import CheckpointError


@pytest.fixture()
def folder(golden: Path, tmp_path: Path) -> Path:
    return made_lexlip(golden, tmp_path)


@pytest.fixture()
def images() -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for h, w in ((9, 20), (30, 8), (1, 1))]


def load(folder: Path, **options):
    return load_encoder("lexlip", str(folder), device="cpu", **options)


def test_captions_are_cut(folder):
    assert len(load(folder).query.reader(["dog " * 100])[0]) == 40
    assert len(load(folder, text_max_length=12).query.reader(["dog " * 100])[0]) == 12


def test_another_models_checkpoint(folder, golden):
    config = json.loads((folder / "config.json").read_text())
    config["encoder_q"]["type"] = "stair_text"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="encoder_q is of type 'stair_text', expected 'lexlip_text'"):
        load(folder)
