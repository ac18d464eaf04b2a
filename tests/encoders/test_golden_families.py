"""Every family against its reference's outputs, from tests/golden/families alone: a plain checkout tests them all.

The tests of single modules compare more arrays and layouts, with the golden data in ../shared.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from declared import GOLDEN
from safetensors.numpy import save_file

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.features import Embedded
from lexvl_anserini.ground.records import Document

FAMILIES = GOLDEN / "families"
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
PICTURES = [str(path) for path in sorted((FAMILIES / "images").glob("*.png"))]
# The columns of D2S and Joint whose weights are kept; the others are 0.
KEPT = slice(999, 1399)


class Golden(NamedTuple):
    """A family's golden file: a folder with its other files, its weights, and the reference's outputs."""

    folder: Path
    weights: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]

    def text(self, name: str):
        return json.loads((self.folder / name).read_text())


@pytest.fixture()
def unpacked(tmp_path: Path) -> Callable[[str], Golden]:
    """The golden file of a family, its other files below a temporary folder."""

    def unpack(family: str) -> Golden:
        parts: dict[str, dict[str, np.ndarray]] = {"weights": {}, "outputs": {}, "files": {}}
        for key, array in np.load(FAMILIES / f"{family}.npz").items():
            kind, _, name = key.partition("/")
            parts[kind][name] = array
        for name, array in parts["files"].items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(array.tobytes())
        return Golden(tmp_path, parts["weights"], parts["outputs"])

    return unpack


def tensors(weights: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in weights.items()}


def test_clip(unpacked):
    golden = unpacked("clip")
    save_file(dict(golden.weights), golden.folder / "model.safetensors")
    model = load_encoder("clip", str(golden.folder), device="cpu")
    texts = golden.text("texts.json")
    np.testing.assert_allclose(model.query.features(texts, 5), golden.outputs["plain_text_features_pad77"], **CLOSE)
    np.testing.assert_allclose(model.document.features(PICTURES, 2), golden.outputs["image_features_png"], atol=1e-5)


def test_dpr(unpacked, golden):
    about = unpacked("dpr")
    for side in ("ctx", "question"):
        named = {name.partition("/"): array for name, array in about.weights.items()}
        own = {name: array for (start, _, name), array in named.items() if start == side}
        save_file(own, about.folder / side / "model.safetensors")
    tokenizer = str(golden / "common/tokenizer_bert_tiny")
    folders = {"checkpoint": str(about.folder / "ctx"), "query_checkpoint": str(about.folder / "question")}
    model = load_encoder("dpr", tokenizer=tokenizer, device="cpu", **folders)
    texts = about.text("texts.json")
    np.testing.assert_allclose(model.query.vectors(texts["questions"], 2), about.outputs["q"], **CLOSE)
    np.testing.assert_allclose(model.document.vectors(texts["passages"], 4), about.outputs["ctx"], **CLOSE)
    documents = [Document(t, t, p) for t, p in zip(texts["titles"], texts["passages"], strict=True)]
    pairs = [model.document.read(document) for document in documents]
    np.testing.assert_allclose(model.document.vectors(pairs, 4), about.outputs["ctx_title_text_pair"], **CLOSE)


def test_blip(unpacked):
    golden = unpacked("blip")
    save_file(dict(golden.weights), golden.folder / "model.safetensors")
    model = load_encoder("blip", str(golden.folder), device="cpu")
    np.testing.assert_allclose(model.query.vectors(golden.text("texts.json"), 2), golden.outputs["text_feat"], **CLOSE)
    np.testing.assert_allclose(model.document.vectors(PICTURES, 3), golden.outputs["image_feat"], **CLOSE)


def test_albef(unpacked, golden):
    about = unpacked("albef")
    torch.save({"model": tensors(about.weights)}, about.folder / "albef.pt")
    tokenizer = str(golden / "common/tokenizer_bert_tiny")
    model = load_encoder("albef", str(about.folder / "albef.pt"), tokenizer=tokenizer, device="cpu", head_width=16)
    np.testing.assert_allclose(model.query.vectors(about.text("texts.json"), 4), about.outputs["text_feat"], **CLOSE)
    np.testing.assert_allclose(model.document.vectors(PICTURES, 2), about.outputs["image_feat"], **CLOSE)


def with_texts(golden: Path, vectors: np.ndarray) -> list[Embedded]:
    """The vectors with the captions that they are of, which masks read."""
    texts = json.loads((golden / "common/texts.json").read_text())
    return [Embedded(text, vector) for text, vector in zip(texts, vectors, strict=False)]


def test_d2s(unpacked, golden):
    about, tokenizer = unpacked("d2s"), str(golden / "common/tokenizer_bert_tiny")
    save_file(dict(about.weights), about.folder / "model.safetensors")
    load = {
        text: load_encoder("d2s", str(about.folder), tokenizer=tokenizer, text=text) for text in ("expanded", "masked")
    }
    texts, images = about.outputs["dense_texts"], about.outputs["dense_imgs"]
    found = load["expanded"].query.weights(texts, 3).toarray()[:, KEPT]
    np.testing.assert_allclose(found, about.outputs["text_full"], **CLOSE)
    found = load["expanded"].document.weights(images, 4).toarray()[:, KEPT]
    np.testing.assert_allclose(found, about.outputs["img_full"], **CLOSE)
    found = load["masked"].query.weights(with_texts(golden, texts), 3).toarray()[:, KEPT]
    np.testing.assert_allclose(found, about.outputs["text_masked"], **CLOSE)


def test_joint(unpacked, golden):
    about, tokenizer = unpacked("joint"), str(golden / "common/tokenizer_bert_tiny")
    torch.save(tensors(about.weights), about.folder / "joint.pt")

    def load(**options: str):
        return load_encoder("joint", str(about.folder / "joint.pt"), tokenizer=tokenizer, device="cpu", **options)

    texts, images = about.outputs["text_cls"], about.outputs["img_cls"]
    sparse, dense = load(), load(vectors="dense")
    np.testing.assert_allclose(dense.query.vectors(texts, 3), about.outputs["text_dense"], **CLOSE)
    np.testing.assert_allclose(dense.document.vectors(images, 3), about.outputs["img_dense"], **CLOSE)
    found = sparse.query.weights(texts, 3).toarray()[:, KEPT]
    np.testing.assert_allclose(found, about.outputs["text_sparse"], **CLOSE)
    found = sparse.document.weights(images, 5).toarray()[:, KEPT]
    np.testing.assert_allclose(found, about.outputs["img_sparse"], **CLOSE)
    found = load(text="masked").query.weights(with_texts(golden, texts)).toarray()[:, KEPT]
    np.testing.assert_allclose(found, about.outputs["text_sparse_masked"], **CLOSE)


def test_fdt(unpacked):
    golden = unpacked("fdt")
    (golden.folder / "checkpoints").mkdir()
    run = {"last_iter": 37800, "model": tensors(golden.weights)}
    torch.save(run, golden.folder / "checkpoints/ckpt_37800.pth.tar")
    texts = golden.text("about.json")
    images = [str(path) for path in (golden.folder / name for name in texts["images"])]
    raw, dense = (
        load_encoder("fdt", str(golden.folder), device="cpu", **options)
        for options in ({"normalise": False}, {"space": "features"})
    )
    captions = texts["captions"]
    assert raw.query.reader(captions) == texts["token_ids"]
    found = raw.query.dense_weights(captions, 2)
    np.testing.assert_allclose(found, golden.outputs["txt_att_Tckpt"], atol=1e-6)
    np.testing.assert_allclose(raw.document.dense_weights(images, 2), golden.outputs["img_att_Tckpt"], atol=1e-5)
    scores = (raw.document.weights(images) @ raw.query.weights(captions).T).toarray()
    np.testing.assert_allclose(scores, golden.outputs["dot_att"], atol=1e-5)
    cosines = dense.document.vectors(images) @ dense.query.vectors(captions).T
    np.testing.assert_allclose(cosines, golden.outputs["cos_fdt"], atol=1e-5)


def test_vdr_crossmodal(unpacked):
    """The first 600 of 27,623 terms, to whose length both sides are scaled: the weights of the others are 0."""
    golden = unpacked("vdr-crossmodal")
    config = golden.text("config.json")
    config["encoder_q"]["model_id"] = config["encoder_p"]["tokenizer_id"] = "bert"
    (golden.folder / "config.json").write_text(json.dumps(config))
    save_file(dict(golden.weights), golden.folder / "model.safetensors")
    model = load_encoder("vdr-crossmodal", str(golden.folder), device="cpu")
    assert len(model.vocabulary) == 27623
    images = [str(golden.folder / "images" / name) for name in ("wide_rgb.png", "tall_gray.png", "square_rgba.png")]

    def compared(found: np.ndarray, expected: np.ndarray) -> None:
        left, right = found[:, : expected.shape[1]], expected
        left, right = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (left, right))
        np.testing.assert_allclose(left, right, atol=1e-6)

    compared(model.query.dense_weights(golden.text("captions.json"), 2), golden.outputs["text_dense"])
    compared(model.document.dense_weights(images, 2), golden.outputs["image_dense"])
