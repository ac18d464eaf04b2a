"""Pretrained networks: EfficientNet-Lite, folders of transformers, cells of several layers, class words, refusals."""

import importlib
import importlib.util
import json
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_encoders import tiny_vit
from torch import nn

from lexvl_anserini.encoders.families.vdr_crossmodal import ClassLogits, add_class_words, read_class_words
from lexvl_anserini.encoders.parts.images import image_backbones
from lexvl_anserini.encoders.parts.images.image_backbones import (
    PUBLISHED,
    VARIANTS,
    Classifier,
    EfficientNetLite,
    SameConv,
    convert_published_names,
    load_image_backbone,
)
from lexvl_anserini.encoders.parts.pretrained import CellsOf, Standard, add_changes, all_cells, cells, windows
from lexvl_anserini.encoders.parts.towers import Head
from lexvl_anserini.ground.errors import CheckpointError, MissingExtra

LITE2 = "efficientnet-lite2"
needs_lite2 = pytest.mark.skipif(
    importlib.util.find_spec(PUBLISHED[LITE2].module) is None, reason=f"the package of {LITE2} is not installed"
)


@pytest.mark.parametrize("name", VARIANTS)
def test_sizes_of_the_paper(name: str) -> None:
    """Table 1 of the paper at each width and depth: the last block of every width, and the numbers of parameters."""
    with torch.device("meta"):
        network = EfficientNetLite(name)
    widths = {"efficientnet-lite2": [16, 24, 48, 88, 120, 208, 352]}.get(name, [16, 24, 40, 80, 112, 192, 320])
    assert list(dict.fromkeys(block.project[0].out_channels for block in network.blocks)) == widths
    # 4.65, 5.42 and 6.09 million as published, with 1.28 million of the classifier.
    published = {"efficientnet-lite0": 4.65, "efficientnet-lite1": 5.42, "efficientnet-lite2": 6.09}[name]
    parameters = sum(parameter.numel() for parameter in network.parameters()) + 1281 * 1000
    assert round(parameters / 1e6, 2) == published
    assert network.width == 32 + sum(widths) + 1280


@pytest.mark.parametrize(("side", "out"), [(5, 3), (6, 3)])
def test_padding_is_below_and_right_first(side: int, out: int) -> None:
    """TensorFlow pads an even side at its end only: the first output sees rows 0 to 2."""
    layer = SameConv(1, 1, 3, stride=2)
    nn.init.ones_(layer.weight)
    image = torch.arange(float(side * side)).view(1, 1, side, side)
    found = layer(image)
    assert found.shape == (1, 1, out, out)
    first = image[0, 0, :3, :3] if side % 2 == 0 else image[0, 0, :2, :2]  # an odd side is padded on both ends
    assert found[0, 0, 0, 0] == first.sum()


def test_folding_changes_nothing() -> None:
    torch.manual_seed(0)
    network = EfficientNetLite("efficientnet-lite0").eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    pixels = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        before = [layer.clone() for layer in network.layers(pixels)]
        after = network.fold().layers(pixels)
    assert [layer.shape[1] for layer in after] == [32, 16, 24, 40, 80, 112, 192, 320, 1280]
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def test_published_names() -> None:
    keys = {
        "_conv_stem.weight": "stem.0.weight",
        "_bn0.bias": "stem.1.bias",
        "_blocks.3._expand_conv.weight": "blocks.3.expand.0.weight",
        "_blocks.3._bn2.running_mean": "blocks.3.project.1.running_mean",
        "_conv_head.weight": "head.0.weight",
    }
    weights = {key: torch.zeros(1) for key in (*keys, "_fc.weight")}
    assert list(convert_published_names(weights)) == list(keys.values())


@needs_lite2
def test_the_packaged_network_knows_what_is_in_a_photo() -> None:
    """A photo of a flower that scikit-learn has: the classifier's first class is a daisy-like flower, not noise."""
    from sklearn.datasets import load_sample_image

    from lexvl_anserini.data.pictures.images import open_image

    backbone = load_image_backbone(LITE2)
    assert backbone.classifier is not None and backbone.classifier.rows.shape == (1000, 1280)
    path = Path(importlib.import_module("sklearn.datasets").__file__).parent / "images/china.jpg"
    assert load_sample_image("china.jpg").shape[2] == 3
    crop = torch.from_numpy(backbone.pixels.crop(open_image(str(path))))[None]
    with torch.inference_mode():
        states = backbone.network(backbone.pixels.normalise(crop))
    assert states.shape == (1, 81, 1280)
    first = (states.mean(dim=1) @ backbone.classifier.rows.T + backbone.classifier.bias)[0].argmax().item()
    assert first in {663, 698, 762, 832, 580, 483, 668, 494}  # monastery, palace, ..., stupa, mosque


@needs_lite2
def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tmp_path / "weights.pth"
    changed.write_bytes(image_backbones.find_published_file(LITE2).read_bytes()[:-1] + b"x")
    monkeypatch.setattr(image_backbones, "find_published_file", lambda name: changed)
    with pytest.raises(CheckpointError, match="expected 9656183eaeafe8cb, the published weights of efficientnet-lite2"):
        load_image_backbone(LITE2)


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_backbones, "find_package", lambda name: None)
    with pytest.raises(MissingExtra, match=r"'efficientnet-lite2' needs an extra: .*\[photos\]"):
        load_image_backbone(LITE2)


def test_folders_of_transformers(tmp_path: Path, golden: Path) -> None:
    import transformers

    vit = load_image_backbone(str(tiny_vit(tmp_path / "vit")))
    assert vit.width == 16 and vit.network(torch.zeros(2, 3, 16, 16)).shape == (2, 16, 16)  # no class token
    config = transformers.ConvNextConfig(depths=[1, 1, 1, 1], hidden_sizes=[4, 8, 8, 12], image_size=64)
    transformers.ConvNextModel(config).save_pretrained(str(tmp_path / "convnext"))
    convnext = load_image_backbone(str(tmp_path / "convnext"))
    assert convnext.network(torch.zeros(1, 3, 64, 64)).shape == (1, 4, 12) and convnext.pixels.resolution == 64
    with pytest.raises(CheckpointError, match="a bert model, expected a network that reads images"):
        load_image_backbone(str(golden / "splade/ckpt_bert"))


def test_cells_are_means_of_their_parts_of_every_layer() -> None:
    small = torch.arange(4.0).view(1, 1, 2, 2)
    large = torch.arange(16.0).view(1, 1, 4, 4)
    found = all_cells([large, small], 2)
    # The mean of both layers, then each quarter: (0 + 1 + 4 + 5) / 4 = 2.5 of the large one beside 0 of the small one.
    assert found[0].tolist() == [[7.5, 1.5], [2.5, 0], [4.5, 1], [10.5, 2], [12.5, 3]]
    assert torch.equal(cells([large, small], 2), found[:, 1:])


def test_windows_are_means_around_every_position() -> None:
    ramp = torch.arange(9.0).repeat(9, 1)[None, None]  # [1, 1, 9, 9], 0 to 8 from left to right
    found = windows([ramp], 3).view(9, 9)
    assert found[4].tolist() == [0.5, 1, 2, 3, 4, 5, 6, 7, 7.5]
    # The cells that are pooled are among them.
    assert torch.equal(found[1::3, 1::3].flatten(), cells([ramp], 3).flatten())
    seven = torch.rand(1, 4, 7, 7)
    assert windows([seven], 3).shape == (1, 49, 4)
    torch.testing.assert_close(windows([seven], 3)[0, [8, 24]], cells([seven], 3)[0, [0, 4]])
    assert torch.equal(windows([seven], 7), cells([seven], 7)), "as many cells as positions: nothing is averaged"


def test_pieces_and_the_fine_grid() -> None:
    class Same(nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return pixels.flatten(2).transpose(1, 2)

    standard = Standard(3)
    standard.mean.fill_(1.0)
    standard.std.fill_(2.0)
    tower = CellsOf(Same(), 2, standard)
    pixels = torch.arange(6 * 3 * 4.0).view(6, 3, 2, 2)
    expected = (pixels.flatten(2).mean(dim=2) - 1) / 2
    torch.testing.assert_close(tower(pixels)[:, 0], expected)
    torch.testing.assert_close(tower.fine(pixels), (pixels.flatten(2).transpose(1, 2) - 1) / 2)


def test_class_words_by_hand() -> None:
    """Two classes with logits 0, 0 and 0, ln 9 in two cells, so 0, ln 3 in the whole; the first word is a term."""
    standard = Standard(2)
    standard.mean.fill_(1.0)
    standard.std.fill_(2.0)
    classifier = Classifier(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), torch.tensor([0.0, -1.0]))
    classes = ClassLogits(classifier, standard, [[1], [0, 1], [0]], torch.tensor([True, False, False]))
    states = torch.tensor([[[7.0, 0.0], [7.0, log(9) / 2]]])  # (1 + 2 s) - 1 is 0, ln 9
    found = classes(states)
    whole, cells = torch.tensor([3 / 4, 1, 1 / 4]), torch.tensor([[0.5, 1, 0.5], [0.9, 1, 0.1]])
    shares = cells / cells.amax(dim=0)
    shares[:, 0] = 1
    torch.testing.assert_close(found, (whole * shares).log()[None])
    head = Head(nn.Identity(), torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), torch.arange(4.0))
    words = add_class_words(head, classes, torch.tensor([1, 2, 3]), torch.tensor([10.0, 1.0, 100.0]))
    logits = (words.transform(states) @ words.matrix.T + words.bias)[0, 0]
    torch.testing.assert_close(logits, torch.tensor([7.0, 14 + 1 + 10 * log(3 / 4), 2.0, 3 + 100 * log(1 / 4)]))
    rare = ClassLogits(
        Classifier(torch.tensor([[1.0], [0.0]]), torch.zeros(2)), Standard(1), [[1]], torch.tensor([True])
    )
    assert rare(torch.tensor([[[99.0]]])).item() == pytest.approx(-8), "the least probability"


@pytest.mark.parametrize("content", ["{}", "[1]", '{"cat": [1, 9]}', '{"cat": 3}', '{"cat": [true]}'])
def test_damaged_class_words_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "classes.json").write_text(content)
    with pytest.raises(CheckpointError):
        read_class_words(tmp_path / "classes.json", 9)
    (tmp_path / "classes.json").write_text(json.dumps({"cat": [1, 8]}))
    assert read_class_words(tmp_path / "classes.json", 9) == {"cat": [1, 8]}


def test_changed_and_added_weights() -> None:
    base = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    changed = add_changes(base, {"a.added": torch.ones(1, 3), "b": torch.zeros(1)}, "here")
    assert changed["a"].shape == (3, 3) and changed["a"][2].tolist() == [1, 1, 1] and changed["b"].item() == 0
    with pytest.raises(CheckpointError, match=r"a.added \[1, 2\], expected rows of \[3\]"):
        add_changes(base, {"a.added": torch.ones(1, 2)}, "here")
    with pytest.raises(CheckpointError, match="c.added.*no such matrix"):
        add_changes(base, {"c.added": torch.ones(1, 2)}, "here")
    assert np.array_equal(base["a"], np.zeros((2, 3)))
