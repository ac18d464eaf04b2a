"""CLIP and its relatives' layouts against transformers' and the references' outputs (shared golden data)."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import as_open_layout, close

from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.checkpoints.clip_layout import MERGES, ClipShape, convert_names
from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.families import clip
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.clip_bpe import END, START, ClipBpe, clean
from lexvl_anserini.encoders.parts.images.pixels import Crop, read_preprocessor
from lexvl_anserini.ground.errors import CheckpointError, UsageError


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "golden" / "clip"


@pytest.fixture(scope="module")
def images(shared: Path) -> list[str]:
    return [str(path) for path in sorted((shared / "golden" / "common" / "images").glob("*.png"))]


def load(folder: Path, **options):
    return load_encoder("clip", str(folder), device="cpu", **options)


def texts_of(folder: Path, layout: str) -> list[str]:
    return json.loads((folder / f"meta_{layout[-2:]}.json").read_text())["texts"]


@pytest.mark.shared
def test_pixels_are_transformers(folder, images):
    arrays = np.load(folder / "outputs_eos_v4.npz")
    for crop, expected, step in (
        (read_preprocessor(folder / "ckpt_eos_v4", 32), arrays["pixel_values_from_png_32"], 1),
        (Crop(224, floor=True), arrays["pixel_values_224_stride8"], 8),
    ):
        crops = torch.from_numpy(np.stack([crop.crop(open_image(name)) for name in images]))
        np.testing.assert_allclose(crop.normalise(crops)[:, :, ::step, ::step], expected, atol=1e-6)


@pytest.mark.shared
def test_a_checkpoint_without_tokenizer(folder):
    """An old folder of .bin weights with position_ids in them; its tokenizer comes from elsewhere."""
    texts = texts_of(folder, "legacy_v4")
    with pytest.raises(CheckpointError, match="no tokenizer"):
        load(folder / "ckpt_legacy_bin")
    model = load(folder / "ckpt_legacy_bin", tokenizer=str(folder / "ckpt_legacy_v4"))
    other = load(folder / "ckpt_legacy_v4")
    np.testing.assert_allclose(model.query.vectors(texts), other.query.vectors(texts), atol=1e-6)


@pytest.mark.shared
def test_other_checkpoints_are_refused(folder):
    with pytest.raises(CheckpointError, match="a bert model, expected clip"):
        load(folder.parent / "splade" / "ckpt_bert")
    with pytest.raises(UsageError, match="config.json has its own"):
        load(folder / "ckpt_eos_v4", activation="gelu")


def test_preprocessors(tmp_path):
    path = tmp_path / "preprocessor_config.json"
    assert read_preprocessor(tmp_path, 64) == Crop(64, floor=True)
    path.write_text('{"size": 224, "crop_size": 224, "resample": 2, "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}')
    assert read_preprocessor(tmp_path, 224) == Crop(224, (0, 0, 0), (1, 1, 1), 224, 2, True)
    for text, message in (
        ('{"size": {"height": 32, "width": 32}, "crop_size": 32}', "size {'height': 32, 'width': 32}; expected"),
        ('{"size": 32, "crop_size": 32, "do_center_crop": false}', "without do_center_crop; expected"),
        ('{"size": 32, "crop_size": {"height": 24, "width": 24}}', "crops to 24 pixels, the model reads 32"),
    ):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read_preprocessor(tmp_path, 32)


# --- weights in OpenAI's and DeCLIP's layout


@pytest.fixture(scope="module")
def openai(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint as OpenAI's layout, with what its archives hold besides, and a configuration of heads."""
    to = tmp_path_factory.mktemp("openai")
    weights = as_open_layout(load_file(folder / "ckpt_legacy_v4" / "model.safetensors"))
    extra = {name: torch.tensor(77) for name in ("input_resolution", "context_length", "vocab_size")}
    torch.save({**weights, **extra}, to / "vit.pt")
    heads = {"image_encode": {"heads": 2}, "text_encode": {"transformer_heads": 2}}
    (to / "config.json").write_text(json.dumps({"model": {"kwargs": heads}}))
    return to


@pytest.mark.shared
def test_openai_layout_gives_the_same_vectors(folder, images, openai):
    tokenizer = str(folder / "ckpt_legacy_v4")
    texts = texts_of(folder, "legacy_v4")
    model, expected = load(openai / "vit.pt", tokenizer=tokenizer), load(folder / "ckpt_legacy_v4")
    np.testing.assert_allclose(model.query.features(texts), expected.query.features(texts), atol=1e-6)
    squares = [open_image(name).resize((32, 32)) for name in images]  # the two libraries round a crop's offset apart
    np.testing.assert_allclose(model.document.features(squares), expected.document.features(squares), atol=1e-6)
    gelu = load(openai, tokenizer=tokenizer, activation="gelu")
    assert np.abs(gelu.query.features(texts) - model.query.features(texts)).max() > 1e-3
    with pytest.raises(CheckpointError, match="no BPE merges"):
        load(openai)


@pytest.mark.shared
def test_open_clip_folders(folder, openai, tmp_path):
    """open_clip's configuration says heads, activation and statistics."""
    weights = torch.load(openai / "vit.pt", weights_only=True)
    stored = {key: value.contiguous() for key, value in weights.items() if value.dim() or key == "logit_scale"}
    save_file(stored, tmp_path / "a.safetensors")
    config = {
        "model_cfg": {"vision_cfg": {"width": 32, "head_width": 16}, "text_cfg": {"heads": 2}, "quick_gelu": True},
        "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3},
    }
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    tokenizer = str(folder / "ckpt_legacy_v4")
    texts = texts_of(folder, "legacy_v4")
    model = load(tmp_path, tokenizer=tokenizer)
    close(model.query.features(texts), load(openai, tokenizer=tokenizer).query.features(texts), atol=1e-6)
    assert model.document.items.pixels == Crop(32, (0.5,) * 3, (0.5,) * 3)
    config["preprocess_cfg"]["resize_mode"] = "squash"
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="resize_mode 'squash', expected shortest"):
        load(tmp_path, tokenizer=tokenizer)


@pytest.mark.shared
def test_declip_layout_is_the_references_own_features(shared, tmp_path):
    """FDT's towers without FDT are DeCLIP's CLIP: its class and end features, its text projection with a bias."""
    fdt = shared / "golden" / "fdt"
    about, arrays = json.loads((fdt / "fdt-tiny.json").read_text()), np.load(fdt / "fdt-tiny.npz")
    state = torch.load(fdt / "checkpoints/ckpt_37800.pth.tar", weights_only=True)
    own = ("module.space_dict", "module.logit_scale_sd", "module.img_query", "module.txt_query")
    plain = {key: value for key, value in state["model"].items() if not key.startswith(own)}
    torch.save({"model": plain, "last_iter": 3}, tmp_path / "ckpt.pth.tar")
    for name in ("config.json", "bpe_tiny.txt.gz"):
        shutil.copyfile(fdt / name, tmp_path / name)
    model = load(tmp_path / "ckpt.pth.tar")
    np.testing.assert_allclose(model.query.features(about["captions"]), arrays["txt_ft"], atol=2e-5, rtol=1e-5)
    found = model.document.features([str(fdt / name) for name in about["images"]])
    np.testing.assert_allclose(found, arrays["img_ft"], atol=2e-5, rtol=1e-5)
    with pytest.raises(CheckpointError, match="unexpected: .*space_dict"):
        load(fdt / "checkpoints/ckpt_37800.pth.tar")


def test_shapes_of_configurations():
    with pytest.raises(CheckpointError, match=r"in_proj_weight \[4, 2\], expected three"):
        convert_names({"visual.transformer.resblocks.0.attn.in_proj_weight": torch.zeros(4, 2)}, "x")
    assert ClipShape.from_run({}) == ClipShape()
    run = {"model": {"kwargs": {"clip": {"text_encode": {"transformer_heads": 4}}}}}
    assert ClipShape.from_run(run) == ClipShape(None, 4)
    config = {"vision_cfg": {"width": 1280, "head_width": 80}, "text_cfg": {"heads": 16}}
    assert ClipShape.from_open_clip(config) == ClipShape(16, 16, "gelu")


@pytest.fixture
def open_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with open_clip's table of weights, which has no function that downloads; the folder of the package."""
    known = {
        ("ViT-tiny", "x"): {"hf_hub": "owner/tiny/", "url": "https://nowhere/tiny.pt"},
        ("ViT-tiny", "file"): {"hf_hub": "owner/tiny/vit.pt"},
        ("ViT-tiny", "old"): {"hf_hub": "", "url": "https://nowhere/tiny.pt"},
    }
    package = SimpleNamespace(
        __file__=str(tmp_path / "__init__.py"),
        __spec__=SimpleNamespace(name="open_clip"),
        get_pretrained_cfg=lambda name, tag: known.get((name, tag), {}),
    )
    monkeypatch.setitem(sys.modules, "open_clip", package)
    return tmp_path


def test_a_name_of_open_clip_goes_through_the_door_of_the_hub(open_clip, monkeypatch):
    """The package made the model, and so downloaded it, without the hub's digests."""
    asked = []

    def refuse(reference, weights=True):
        asked.append(reference)
        raise CheckpointError(f"{reference}: cannot be had from the hub")

    monkeypatch.setattr(clip, "find_checkpoint", refuse)
    for name in ("ViT-tiny/x", "ViT-tiny/file"):
        with pytest.raises(CheckpointError, match="^owner/tiny: cannot be had from the hub"):
            load_encoder("clip", device="cpu", open_clip=name)
    assert asked == ["owner/tiny"] * 2
    for name, message in (
        ("ViT-tiny/old", "are not on the hub; download https://nowhere/tiny.pt and give its folder as checkpoint"),
        ("ViT-huge/x", "no name that the package has weights of"),
        ("ViT-tiny", "no name that the package has weights of"),
    ):
        with pytest.raises(UsageError, match=f"open_clip='{name}': .*{message}"):
            load_encoder("clip", device="cpu", open_clip=name)
    with pytest.raises(UsageError, match="exclude each other"):
        clip.find_open_clip(clip.Source(Checkpoint("x", open_clip), torch.device("cpu")), "ViT-tiny/x")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install open_clip_torch"):
        clip.find_open_clip(clip.Source(None, torch.device("cpu")), "ViT-tiny/x")


@pytest.mark.shared
def test_a_name_of_open_clip_loads_the_model_of_the_hub(folder, openai, open_clip, monkeypatch):
    """With the package's merges: the hub's folders in this layout need no tokenizer of their own."""
    hub = open_clip / "hub"
    hub.mkdir()
    shutil.copy(openai / "vit.pt", hub)
    config = {"vision_cfg": {"width": 32, "head_width": 16}, "text_cfg": {"heads": 2}, "quick_gelu": True}
    preprocess = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    (hub / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    (open_clip / MERGES).write_text((folder / "ckpt_legacy_v4" / "merges.txt").read_text().rstrip("\n"))
    monkeypatch.setattr(clip, "find_checkpoint", lambda reference: Checkpoint(reference, hub))
    texts, expected = texts_of(folder, "legacy_v4"), load(folder / "ckpt_legacy_v4")
    for name in ("ViT-tiny/x", "ViT-tiny/file"):
        model = load_encoder("clip", device="cpu", open_clip=name)
        np.testing.assert_allclose(model.query.vectors(texts), expected.query.vectors(texts), atol=1e-6)
        assert model.document.items.pixels == Crop(32, (0.5,) * 3, (0.25,) * 3)


# --- the tokenizer


def test_bpe_by_hand(tmp_path):
    """Merges a b, then ab c</w>: "abc" is one token, "ab" the bytes a and b</w>."""
    path = tmp_path / "merges.txt"
    path.write_text("#version\na b\nab c</w>")
    bpe = ClipBpe(path)
    assert len(bpe) == 256 + 256 + 2 + 2
    a, b_end = ord("a") - 33, 256 + ord("b") - 33
    cleaned = [514, 513, 256 + ord("&") - 33, a, b_end, 515]
    assert bpe(["ABC &amp;amp; ab", ""], 77)["input_ids"] == [cleaned, [514, 515]]
    assert bpe(["abc abc abc"], 4)["input_ids"] == [[514, 513, 513, 515]]
    assert bpe(["abc"], 4, add_special_tokens=False)["input_ids"] == [[513]]
    assert bpe([f"a {END} {START}"], 9)["input_ids"] == [[514, 256 + a, 515, 514, 515]]


def test_a_final_newline_counts_if_the_model_was_made_so(tmp_path):
    path = tmp_path / "merges.txt"
    path.write_text("#version\na b\n")
    assert len(ClipBpe(path)) == len(ClipBpe(path, size=515)) == 515
    junk = ClipBpe(path, size=516)
    assert junk.ids[START] == 514 and junk(["ab"], 9)["input_ids"] == [[514, 64, 256 + 65, 515]]
    with pytest.raises(CheckpointError, match="515 tokens, the model has 520"):
        ClipBpe(path, size=520)


def test_merges_that_are_none(tmp_path):
    for content, message in (
        (b"#version\na b\nabc\nd e", "line 3: 'abc', expected two symbols"),
        (b"\x1f\x8bno gzip", "cannot be read as BPE merges"),
    ):
        (tmp_path / "merges.txt").write_bytes(content)
        with pytest.raises(CheckpointError, match=message):
            ClipBpe(tmp_path / "merges.txt")
    assert clean("  A\t\u00a0Dog \n &amp;lt; CAFÉ ") == "a dog < café"
