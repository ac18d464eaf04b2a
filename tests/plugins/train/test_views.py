"""What LexLIP's training does to images: RandAugment, batches of half the side, networks for another side."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_encoders import tiny_vit

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.image_backbones import load_image_backbone
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.ground.errors import LexvlError
from lexvl_plugins.train.images.captioned import make_views
from lexvl_plugins.train.images.rand_augment import OPERATIONS, distort, draw_operations
from lexvl_plugins.train.images.resolution import admit_half, interpolate_rows, resize_network
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import Augmentation, RandAugment, Recipe
from tests.plugins.train.tiny_training import same_weights, tiny_recipe, weights_of

CPU = torch.device("cpu")
GREY = np.full((4, 4, 3), 100, dtype=np.uint8)


def apply(name: str, pixels: np.ndarray, magnitude: float = 9.0, sign: float = 1.0) -> np.ndarray:
    """An operation alone, at a magnitude."""
    operation = OPERATIONS[name]
    value = operation.least + (operation.most - operation.least) * magnitude / 30
    return np.asarray(operation.apply(Image.fromarray(pixels), value * sign))


# --- RandAugment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("posterise", 0),  # int(1.2) = 1 bit: 0 or 128
        ("solarise", 155),  # from 76.8 on, 255 - 100
        ("solarise_add", 255 - 133),  # 100 + 33, from 128 on inverted
        ("brightness", 64),  # factor .1 + .3 * 1.8 = .64
        ("colour", 100),
        ("contrast", 100),
        ("sharpness", 100),
        ("auto_contrast", 100),
        ("equalise", 100),
        ("rotate", 100),
    ],
)
def test_operations_have_the_values_of_magnitude_9(name: str, expected: int) -> None:
    """In the middle of a grey picture, whose corners a rotation makes black."""
    assert apply(name, GREY)[1:3, 1:3].tolist() == np.full((2, 2, 3), expected).tolist()


def test_shifts_and_shears_leave_black() -> None:
    """A shift of 30 pixels in 224 is 3 in 24; a shear of .09 moves row 12 by one."""
    white = np.full((24, 24, 3), 255, dtype=np.uint8)
    left, right = apply("shift_x", white), apply("shift_x", white, sign=-1.0)
    assert (left[:, :20] == 255).all() and (left[:, 21:] == 0).all()
    assert (right[:, 4:] == 255).all() and (right[:, :3] == 0).all()
    assert np.array_equal(apply("shift_y", white), left.transpose(1, 0, 2))
    sheared = apply("shear_x", white)
    assert (sheared[0] == 255).all() and (sheared[23, 22:] == 0).all() and (sheared[23, :21] == 255).all()
    assert np.array_equal(apply("shear_y", white), sheared.transpose(1, 0, 2))
    assert np.array_equal(apply("rotate", white, 0), white)


def test_draws_are_even_and_depend_on_the_batch_alone() -> None:
    """14 operations, two of 7,000 images: each about 1,000 times; half of the signed values are negative."""
    drawn = draw_operations(RandAugment(), np.random.default_rng(1), 7000)
    names = [name for row in drawn for name, _ in row]
    assert len(OPERATIONS) == 14 and all(900 < names.count(name) < 1100 for name in OPERATIONS)
    degrees = [value for row in drawn for name, value in row if name == "rotate"]
    assert {abs(value) for value in degrees} == {9.0} and 0.45 < np.mean([value > 0 for value in degrees]) < 0.55
    crops = np.random.default_rng(2).integers(0, 256, (6, 8, 8, 3)).astype(np.uint8)
    whole = distort(crops, RandAugment(), np.random.default_rng(3))
    part = distort(crops[2:4], RandAugment(), np.random.default_rng(3), slice(2, 4), 6)
    assert np.array_equal(part, whole[2:4]) and not np.array_equal(whole, crops)
    assert not np.array_equal(whole, distort(crops, RandAugment(), np.random.default_rng(4)))


def test_views_are_those_without_what_is_not_asked_for() -> None:
    """Operations before the normalisation; half the batches have half the side."""
    crops = np.random.default_rng(2).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)

    def views(seed: int, **changes: Any) -> torch.Tensor:
        return make_views(crops, Pixels(8), Augmentation(**changes), np.random.default_rng(seed), CPU)

    plain = Pixels(8).normalise(torch.from_numpy(crops))
    assert torch.equal(views(1), plain) and views(1, half=1.0).shape == (2, 3, 4, 4)
    halves = [views(seed, half=0.5).shape[-1] for seed in range(400)]
    assert 160 < halves.count(4) < 240 and halves.count(4) + halves.count(8) == 400
    changed = distort(crops, RandAugment(operations=3), np.random.default_rng(5))
    found = views(5, rand_augment={"operations": 3})
    assert torch.equal(found, Pixels(8).normalise(torch.from_numpy(changed)))
    flat = views(1, half=1.0) - torch.nn.functional.interpolate(plain, (4, 4), mode="bicubic", antialias=True)
    assert flat.abs().max() == 0


# --- images of another side -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_rows_of_positions_are_interpolated_as_a_square(first: bool) -> None:
    """A plane rises inside by one in two of twice as many rows; those of class tokens, or BEiT's last ones, stay."""
    plane = torch.tensor([[float(x), float(y)] for y in range(8) for x in range(8)])
    others = torch.full((3, 2), 9.0)
    found = interpolate_rows(torch.cat([others, plane] if first else [plane, others]), 256 + 3, first)
    kept, square = (found[:3], found[3:]) if first else (found[-3:], found[:-3])
    grid = square.unflatten(0, (16, 16))[4:-4, 4:-4]
    steps = (grid[:, 2:] - grid[:, :-2])[..., 0], (grid[2:] - grid[:-2])[..., 1]
    assert torch.equal(kept, others)
    assert all(torch.allclose(step, torch.ones_like(step), atol=1e-5) for step in steps)
    assert torch.equal(interpolate_rows(plane, 64, first), plane)


def tiny_beit(folder: Path) -> Path:
    """A BEiT as LexLIP's, with biases of relative positions alone, that reads 16 x 16 pixels as 4 x 4 cells."""
    from transformers import BeitConfig, BeitModel

    torch.manual_seed(3)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    blocks: dict[str, Any] = {"intermediate_size": 32, "image_size": 16, "patch_size": 4}
    model = BeitModel(BeitConfig(**sizes, **blocks, use_relative_position_bias=True), add_pooling_layer=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    model.save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("make", [tiny_vit, tiny_beit])
def test_a_network_reads_images_of_another_side(make: Any, tmp_path: Path) -> None:
    """Written and read again, its states are those of transformers' interpolation, which is bilinear for BEiT."""
    folder = make(tmp_path / "own")
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": 16, "image_mean": [0.5] * 3, "resample": 3}))
    own = load_image_backbone(str(folder))
    large = resize_network(own, 32, tmp_path / "large")
    assert (large.pixels.resolution, large.pixels.mean) == (32, (0.5, 0.5, 0.5)) and large.digest != own.digest
    assert resize_network(own, 16, tmp_path / "none") is own and not (tmp_path / "none").exists()
    pixels = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        found = large.network(pixels)
        expected = own.network.model(pixel_values=pixels, interpolate_pos_encoding=True).last_hidden_state[:, 1:]
    assert found.shape == (2, 64, 16)
    difference = (found - expected).abs().max()
    assert difference < (1e-5 if make is tiny_vit else 0.5)


@pytest.mark.parametrize("make", [tiny_vit, tiny_beit])
def test_a_network_reads_half_the_side(make: Any, tmp_path: Path) -> None:
    own = load_image_backbone(str(make(tmp_path)))
    pixels = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        before = own.network(pixels)
        admit_half(own)
        assert torch.equal(own.network(pixels), before) and own.network(pixels[..., :8, :8]).shape == (2, 4, 16)


def test_networks_that_cannot_are_refused(tmp_path: Path) -> None:
    own = load_image_backbone(str(tiny_vit(tmp_path / "vit")))
    with pytest.raises(LexvlError, match="has patches of 4 pixels; expected a multiple"):
        resize_network(own, 18, tmp_path / "x")
    with pytest.raises(LexvlError, match="augmentation.half: .* does not read 3 pixels"):
        admit_half(replace(own, pixels=replace(own.pixels, resolution=6)))


def recipe_of(corpus: str, model: dict[str, Any], stage: dict[str, Any], **image: Any) -> Recipe:
    """Three steps of LexLIP over a tiny ViT that changes."""
    whole = {"kind": "lexlip", **model, "image": {**model["image"], **image}}
    plan = {"steps": 3, "batch_size": 4, "warmup_steps": 1}
    return tiny_recipe(corpus, whole, objective={"name": "lexlip"}, optimisation=plan, **stage)


@pytest.fixture(scope="module")
def model(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    image = {"checkpoint": str(tiny_vit(tmp_path_factory.mktemp("vit"))), "grid": 4}
    return {"text": {"checkpoint": str(golden / "splade/ckpt_bert"), "least": 1, "max_length": 16}, "image": image}


@pytest.fixture(scope="module")
def plain(images: str, model: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair trained on the images as they are."""
    return train(recipe_of(images, model, {}), tmp_path_factory.mktemp("plain"), device="cpu")


AUGMENTED: dict[str, Any] = {"augmentation": {"rand_augment": {}, "half": 0.5}}


def test_training_on_views_resumes(images: str, model: dict[str, Any], plain: Path, tmp_path: Path) -> None:
    """With operations and half sides, a run that stops and goes on ends with the same weights."""
    recipe = recipe_of(images, model, AUGMENTED)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    train(recipe, tmp_path / "stopped", device="cpu", stop_after=2)
    assert same_weights(train(recipe, tmp_path / "stopped", device="cpu"), whole)
    assert not same_weights(plain, whole)


def test_a_pair_is_tuned_on_images_of_another_side(
    images: str, model: dict[str, Any], plain: Path, tmp_path: Path
) -> None:
    """It begins with the pair trained before, and its encoder reads images of the new side."""
    started = {**model, "start": str(plain)}
    recipe = recipe_of(images, started, {"trained": ["encoder_q.head.bias"]}, resolution=32, grid=8)
    tuned = train(recipe, tmp_path / "tuned", device="cpu")
    assert load_encoder("lexlip", tuned).document.pixels.resolution == 32
    ours, theirs = weights_of(tuned), weights_of(plain)
    key = "encoder_p.backbone.model.embeddings.position_embeddings"
    assert ours[key].shape == (1, 65, 16) and theirs[key].shape == (1, 17, 16)
    assert torch.allclose(ours[key][0], interpolate_rows(theirs[key][0], 65, True))
    same = [name for name in theirs if name != key and name != "encoder_q.head.bias" and name in ours]
    assert len(same) > 10 and all(torch.equal(ours[name], theirs[name]) for name in same)
    again = recipe_of(images, {**model, "start": str(tuned)}, {}, resolution=32, grid=8)
    assert train(again, tmp_path / "again", device="cpu", stop_after=1).is_dir()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({**AUGMENTED, "views": 2}, "views 2 are stored, without rand_augment and half; set views: 0"),
        ({"augmentation": {"rand_augment": {"magnitude": 31}}}, "magnitude"),
    ],
)
def test_recipes_are_refused(images: str, model: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LexvlError, match=message):
        recipe_of(images, model, changes)
    fresh = {"text": {"width": 8, "heads": 2}, "image": {"resolution": 16, "width": 8, "heads": 2}}
    with pytest.raises(LexvlError, match="only a pretrained one reads half"):
        recipe_of(images, fresh, {"augmentation": {"half": 0.5}})
