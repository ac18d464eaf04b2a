"""FDT against the reference's outputs (shared golden data), its parts by hand, and the line with both of its spaces."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from declared import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_encoders import as_open_layout
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.families.fdt import (
    Grounding,
    QueryMap,
    pool_floored_max,
    pool_floored_mean,
    read_temperature,
    sparsemax,
)
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.pixels import BILINEAR, make_crop
from lexvl_anserini.encoders.parts.towers import Batch
from lexvl_anserini.ground.errors import CheckpointError, UsageError

RUN = "checkpoints/ckpt_37800.pth.tar"


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "golden" / "fdt"


@pytest.fixture(scope="module")
def about(folder: Path) -> dict:
    return json.loads((folder / "fdt-tiny.json").read_text())


@pytest.fixture(scope="module")
def images(folder: Path, about: dict) -> list[str]:
    return [str(folder / name) for name in about["images"]]


@pytest.fixture(scope="module")
def arrays(folder: Path):
    return np.load(folder / "fdt-tiny.npz")


def load(folder: Path, **options):
    return load_encoder("fdt", str(folder), device="cpu", **options)


def copied(folder: Path, to: Path, **changes) -> Path:
    """A copy of the run whose configuration's `fdt` entry is changed; None removes an entry."""
    (to / "checkpoints").mkdir(parents=True)
    shutil.copyfile(folder / RUN, to / RUN)
    shutil.copyfile(folder / "bpe_tiny.txt.gz", to / "bpe_tiny.txt.gz")
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        place = config if key == "t_decay" else config["model"]["kwargs"]["fdt"]
        if value is None:
            place.pop(key)
        else:
            place[key] = value
    (to / "config.json").write_text(json.dumps(config))
    return to


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "temperature", "weight_atol", "sum_atol"),
    [("Tckpt", None, 1e-6, 2e-5), ("T1000", 1000.0, 1e-6, 2e-5), ("T005", 0.05, 2e-4, 1e-3)],
)
def test_weights_and_features_are_the_references(
    folder, about, images, arrays, name, temperature, weight_atol, sum_atol
):
    options = {} if temperature is None else {"temperature": temperature}
    model = load(folder, normalise=False, **options)
    dense = load(folder, space="features", **options)
    for side, own, features, inputs in (
        ("txt", model.query, dense.query, about["captions"]),
        ("img", model.document, dense.document, images),
    ):
        found = own.weights(inputs, 2)
        np.testing.assert_allclose(found.toarray(), arrays[f"{side}_att_{name}"], atol=weight_atol)
        assert np.diff(found.indptr).tolist() == about[f"nnz_{side}_{name}"]
        np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(features.features(inputs, 2), arrays[f"{side}_sd_{name}"], atol=sum_atol)


@pytest.fixture
def swin_run(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray], dict[str, torch.Tensor]]:
    """A run over a Swin transformer V2, whose image side is the reference's; and that side's inputs and outputs."""
    arrays = dict(np.load(GOLDEN / "fdt/swin-tiny.npz"))
    weights = {key[2:]: torch.from_numpy(value) for key, value in arrays.items() if key.startswith("w/")}
    (tmp_path / "bpe.txt").write_text("#version\nr e\n")
    shape = {"hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    network = CLIPTextModelWithProjection(CLIPTextConfig(vocab_size=516, max_position_embeddings=8, **shape))
    network.text_projection = torch.nn.Linear(8, 6)  # with a bias, as DeCLIP's
    texts = as_open_layout(network.state_dict(), declip=True)
    query_map = {f"txt_query_model.{key}": value for key, value in QueryMap(8, 12).state_dict().items()}
    weights |= {**texts, **query_map, "logit_scale": torch.ones(1)}
    config = {"model": {"kwargs": {"text_encode": {"bpe_path": "bpe.txt", "transformer_heads": 2}}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_run(tmp_path, weights)
    return tmp_path, arrays, weights


def save_run(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    torch.save({"model": {f"module.{key}": value for key, value in weights.items()}}, folder / "ckpt_1.pth.tar")


def test_swin_is_the_references(swin_run):
    """Outputs of the published code's SwinTransformerV2 and Query_model at T = 2, from its own state dict."""
    folder, arrays, _ = swin_run
    pixels = torch.from_numpy(arrays["pixels"])
    tower = load(folder, temperature=2.0).document
    with torch.inference_mode():
        np.testing.assert_allclose(tower.composition.backbone(pixels), arrays["patches"], atol=1e-5)
        np.testing.assert_allclose(tower.compute_attention((pixels,), None), arrays["weights"], atol=1e-5)
        features = load(folder, temperature=2.0, space="features").document
        found = features.embed(Batch(np.arange(3), (pixels,)))
    np.testing.assert_allclose(found, arrays["features"], atol=1e-5)
    assert tower.pixels == make_crop(32), "a window's table and the mask of shifted windows say the resolution"
    assert load(folder, temperature=2.0).query.weights(["red", ""]).shape == (2, 40)


def test_a_swin_transformer_without_buffers_or_of_version_1(swin_run):
    folder, arrays, weights = swin_run
    bare = {key: value for key, value in weights.items() if not re.search("attn_mask|relative_", key)}
    save_run(folder, bare)
    config = json.loads((folder / "config.json").read_text())
    config["model"]["kwargs"]["image_encode"] = {"input_resolution": 32, "window_size": 4}
    (folder / "config.json").write_text(json.dumps(config))
    tower = load(folder, temperature=2.0).document
    with torch.inference_mode():
        weights_of_images = tower.compute_attention((torch.from_numpy(arrays["pixels"]),), None)
    np.testing.assert_allclose(weights_of_images, arrays["weights"], atol=1e-5)
    save_run(folder, {key: value for key, value in bare.items() if "logit_scale" not in key})
    with pytest.raises(CheckpointError, match="fit a Swin transformer V2; missing: visual.layers.0.*logit_scale"):
        load(folder, temperature=2.0)
    save_run(folder, {**bare, "visual.stray": torch.ones(1), "stray": torch.ones(1)})
    with pytest.raises(CheckpointError, match="unexpected: .*stray"):
        load(folder, temperature=2.0)


@pytest.mark.shared
def test_tokens_and_crops(folder, about, images, arrays):
    model = load(folder)
    assert model.query.vocabulary[:2] == ("fdt00000", "fdt00001") and len(model.query.vocabulary) == 512
    assert model.query.reader(about["captions"]) == about["token_ids"]
    crops = np.stack([model.document.pixels.crop(open_image(name)) for name in images])
    assert np.abs(crops.astype(int) - arrays["image_crop_uint8"]).max() <= 1
    assert model.document.pixels.shorter == 256 and model.document.pixels.resample == BILINEAR


@pytest.mark.shared
def test_sparsemax_of_a_real_size(arrays):
    expected = np.zeros(arrays["sparsemax_in"].shape, dtype=np.float32)
    expected[arrays["sparsemax_rows"], arrays["sparsemax_cols"]] = arrays["sparsemax_vals"]
    found = sparsemax(torch.from_numpy(arrays["sparsemax_in"])).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert ((found > 0) == (expected > 0)).all()


@settings(derandomize=True)
@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=12), st.floats(-30, 30, width=32))
def test_sparsemax_projects_on_the_simplex(row, shift):
    """Rows sum to 1, a shift changes nothing, and no point of the simplex's corners is nearer than what is found."""
    z = torch.tensor([row], dtype=torch.float64)
    w = sparsemax(z)
    assert w.sum().item() == pytest.approx(1, abs=1e-6) and (w >= 0).all()
    torch.testing.assert_close(sparsemax(z + shift), w, atol=1e-6, rtol=0)
    distance = (w - z).norm()
    for corner in torch.eye(len(row), dtype=torch.float64):
        assert distance <= (corner - z).norm() + 1e-9


def test_padding_counts_as_zero():
    """Two positions, the second masked: the maximum has a floor of 0, the mean divides by the model's positions."""
    logits, masked = torch.tensor([[[-1.0, 3.0], [9.0, 9.0]]]), torch.tensor([1])
    assert pool_floored_max(logits.clone(), masked, lambda x: x / 2).tolist() == [[0.0, 1.5]]
    assert pool_floored_mean(logits.clone(), masked, lambda x: x, positions=4).tolist() == [[-0.25, 0.75]]


def test_pruning_then_normalising():
    weights = torch.tensor([[0.6, 0.3, 0.06, 0.04]])
    both = Grounding(sparsemax, topk=3, threshold=0.2).prune(weights)
    np.testing.assert_allclose(both, [[2 / 5**0.5, 1 / 5**0.5, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(Grounding(sparsemax, topk=1, normalise=False).prune(weights), [[0.6, 0, 0, 0]])


@pytest.mark.shared
def test_the_temperature_of_an_iteration(about):
    decay = {"org_t": 1000, "sd_T_decay_iter": 2700, "sd_T_min": 0.01}
    for factor, iteration, expected in about["temperature_examples"]:
        config = {"t_decay": {**decay, "sd_T_decay_w": factor}}
        assert read_temperature(config, {"last_iter": iteration}, "x") == pytest.approx(expected)


def test_a_temperature_must_be_had():
    config = {"t_decay": {"org_t": 1000, "sd_T_decay_iter": 2700, "sd_T_decay_w": 1, "sd_T_min": 0.01}}
    with pytest.raises(CheckpointError, match="lack last_iter; give it with --set temperature=T"):
        read_temperature(config, {}, "x")
    with pytest.raises(CheckpointError, match="lack org_t, sd_T_decay_iter"):
        read_temperature({}, {"last_iter": 3}, "x")
    stored = {"model": {"kwargs": {"fdt": {"temperature": 17.5}}}}
    assert read_temperature(stored, {}, "x") == 17.5


@pytest.mark.shared
def test_refusals(folder, tmp_path):
    for options, message in (
        ({"dimensions": 8}, "dimensions is for dense vectors"),
        ({"space": "features", "topk": 4}, "are for space=weights"),
        ({"threshold": 1.0}, "threshold 1.0"),
        ({"topk": 0}, "topk 0"),
        ({"temperature": 0.0}, "temperature 0.0: expected a number above 0"),
        ({"space": "features", "dimensions": 33}, "dimensions 33: expected 1 to 32"),
        ({"space": "images"}, 'space="images"'),
    ):
        with pytest.raises(UsageError, match=message):
            load(folder, **options)
    with pytest.raises(CheckpointError, match="pool_type 'median' is not known; expected max, sum, mean"):
        load(copied(folder, tmp_path / "pool", pool_type="median"))
    with pytest.raises(CheckpointError, match="no temperature; .* lack org_t"):
        load(copied(folder, tmp_path / "decay", t_decay=None))
    several = copied(folder, tmp_path / "several")
    shutil.copyfile(several / RUN, several / "checkpoints" / "ckpt_1.pth.tar")
    with pytest.raises(CheckpointError, match=r"several iterations \(ckpt_1.pth.tar, ckpt_37800.pth.tar\)"):
        load(several)
    without = copied(folder, tmp_path / "without")
    (without / "bpe_tiny.txt.gz").unlink()
    with pytest.raises(CheckpointError, match="no BPE merges"):
        load(without)
    assert load(without, merges=str(folder / "bpe_tiny.txt.gz")).query.reader(["a dog"])
    with pytest.raises(CheckpointError, match="no such file"):
        load(without, merges=str(tmp_path / "none.txt"))
    clip = folder.parent / "clip" / "ckpt_eos_v4"
    with pytest.raises(CheckpointError, match=r"no codebook \(space_dict\)"):
        load(clip)
