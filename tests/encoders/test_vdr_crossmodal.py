"""VDR cross-modal against the reference's outputs (shared golden data), and the whole line with images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.pixels import Pixels

V = 27623


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "golden" / "vdr"


@pytest.fixture(scope="module")
def about(folder: Path) -> dict:
    return json.loads((folder / "crossmodal-tiny.json").read_text())


@pytest.fixture(scope="module")
def images(folder: Path, about: dict) -> list[str]:
    return [str(folder / name) for name in about["images"]]


@pytest.fixture(scope="module")
def arrays(folder: Path):
    return np.load(folder / "crossmodal-tiny.npz")


def dense(arrays, name: str, rows: int) -> np.ndarray:
    matrix = np.zeros((rows, V), dtype=np.float32)
    matrix[arrays[f"{name}_rows"], arrays[f"{name}_cols"]] = arrays[f"{name}_vals"]
    return matrix


def load(folder: Path, **options):
    return load_encoder("vdr-crossmodal", str(folder / "crossmodal-tiny"), device="cpu", **options)


@pytest.mark.shared
def test_both_towers_give_the_reference_vectors(folder, about, images, arrays):
    model = load(folder)
    captions = about["captions"]
    np.testing.assert_allclose(model.query.dense_weights(captions, 2), arrays["text_dense"], atol=1e-6)
    np.testing.assert_allclose(model.document.dense_weights(images, 2), arrays["image_dense"], atol=1e-6)
    texts, pictures = model.query.weights(captions), model.document.weights(images)
    np.testing.assert_allclose(texts.toarray(), dense(arrays, "text_embed", len(captions)), atol=1e-6)
    np.testing.assert_allclose(pictures.toarray(), dense(arrays, "image_embed", len(images)), atol=1e-6)
    np.testing.assert_allclose((pictures @ texts.T).toarray(), arrays["scores_image_text"], atol=1e-6)


@pytest.mark.shared
def test_topk_and_alpha(folder, about, images, arrays):
    captions = about["captions"]
    model = load(folder, topk=16)
    expected = dense(arrays, "text_embed_top16", len(captions))
    np.testing.assert_allclose(model.query.weights(captions).toarray(), expected, atol=1e-6)
    expected = dense(arrays, "image_embed_top16", len(images))
    np.testing.assert_allclose(model.document.weights(images).toarray(), expected, atol=1e-6)
    alpha = load(folder, mode="alpha")
    assert alpha.query.binary and not alpha.document.binary
    assert (alpha.query.weights(captions).toarray() == dense(arrays, "text_bow", len(captions))).all()


@pytest.mark.shared
def test_pixels_within_one_grey_level(folder, images, arrays):
    crops = np.stack([Pixels(224).crop(open_image(name)) for name in images])
    assert np.abs(crops.astype(int) - arrays["image_crop_uint8"]).max() <= 1


@pytest.mark.parametrize("size", [(20, 30_011), (30_011, 33), (16, 20_000)])
def test_of_a_long_strip_only_the_centre_is_computed(size, monkeypatch):
    monkeypatch.setattr("lexvl_anserini.encoders.parts.images.pixels.MOST_PIXELS", 1 << 14)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    shorter, longer = min(size), max(size)
    resized = [16 if length == shorter else int(16 * longer / shorter) for length in size]
    left, top = (round((length - 16) / 2) for length in resized)
    whole = picture.resize(resized, Image.Resampling.BICUBIC).crop((left, top, left + 16, top + 16))
    assert np.abs(Pixels(16).crop(picture).astype(int) - np.asarray(whole)).max() <= 1
