"""The CLIPs that STAIR and FDT are compared with: trained, saved and loaded, against their equations in NumPy."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image

from lexvl_anserini.encoders.families.stair import Stair
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.pixels import Pixels, make_crop
from lexvl_anserini.ground.errors import LexvlError, UsageError
from lexvl_plugins.train.clip_twin import StairTwin, TwinConfig
from lexvl_plugins.train.common.tower_pair import TowerPair
from lexvl_plugins.train.images.networks import load_networks
from lexvl_plugins.train.images.sides import SIDES
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.model_settings import ModelSettings
from lexvl_plugins.train.recipe import Recipe, check_recipe, read_recipe
from lexvl_plugins.train.reproduction import count_side
from tests.plugins.train.test_families import (
    FRESH,
    RECIPES,
    SIZES,
    SWIN,
    VIT,
    assert_loaded,
    corpus,
    fdt_recipe,
    held_out,
    merges,
    recipe_of,
    validated,
)
from tests.plugins.train.tiny_training import losses_of, same_weights, weights_of

__all__ = ["corpus", "merges"]  # fixtures

Floats = NDArray[np.float64]
POOLED = [
    {"text": "last", "image": "attention"},
    {"text": "first", "image": "mean"},
    {"text": "mean", "image": "max"},
    {"text": "max", "image": "first"},
    {"text": "attention", "image": "first"},
]


def twin_of_stair(corpus: str, pooling: dict[str, str] = POOLED[0], **changes: Any) -> Recipe:
    return recipe_of(corpus, "dense-crossmodal", {**FRESH, "dimensions": 6, "pooling": pooling}, **changes)


def twin_of_fdt(corpus: str, merges: Path, image: dict[str, Any]) -> Recipe:
    content = fdt_recipe(corpus, merges, image).model_dump(mode="json", exclude_defaults=True)
    content["model"] = {"kind": "dense-crossmodal", "dimensions": 6, **content["model"]}
    content["model"]["kind"] = "dense-crossmodal"
    del content["model"]["codebook"]
    content["stages"][0]["objective"]["name"] = "info_nce"
    return check_recipe(content, "tiny.yaml")


@pytest.fixture(scope="module")
def trained_twin(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of STAIR's CLIP."""
    return train(twin_of_stair(corpus), tmp_path_factory.mktemp("twin"), device="cpu")


@pytest.fixture(scope="module")
def trained_stair(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(recipe_of(corpus, "stair", FRESH), tmp_path_factory.mktemp("stair"), device="cpu")


@pytest.fixture(scope="module", params=[VIT, SWIN], ids=["vit", "swin"])
def fdt_pair(request, corpus: str, merges: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The checkpoints of FDT's CLIP and of FDT over one network of images."""
    recipes = (twin_of_fdt(corpus, merges, request.param), fdt_recipe(corpus, merges, request.param))
    twin, family = (train(recipe, tmp_path_factory.mktemp("fdt"), device="cpu") for recipe in recipes)
    return twin, family


# ---- the networks in NumPy, from the names that all three layouts share


class Plain:
    """A network's numbers below a prefix."""

    def __init__(self, weights: dict[str, torch.Tensor], prefix: str):
        below = {key: value for key, value in weights.items() if key.startswith(prefix)}
        self.of = {key.removeprefix(prefix): value.double().numpy() for key, value in below.items()}

    def linear(self, name: str, x: Floats) -> Floats:
        bias = self.of.get(f"{name}.bias", np.zeros(1))
        return x @ self.of[f"{name}.weight"].T + bias

    def norm(self, name: str, x: Floats) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * self.of[f"{name}.weight"]
            + (self.of[f"{name}.bias"])
        )

    def attend(self, name: str, queries: Floats, states: Floats, heads: int, causal: bool = False) -> Floats:
        """Attention of queries [M, D] over states [L, D]."""
        rows = zip(
            np.split(self.of[f"{name}.in_proj_weight"], 3), np.split(self.of[f"{name}.in_proj_bias"], 3), strict=True
        )
        q, k, v = (x @ w.T + b for x, (w, b) in zip((queries, states, states), rows, strict=True))
        parts = []
        for one in np.split(np.arange(q.shape[1]), heads):
            scores = q[:, one] @ k[:, one].T / np.sqrt(len(one))
            if causal:
                scores[np.triu_indices(len(scores), 1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            parts.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, one])
        return self.linear(f"{name}.out_proj", np.concatenate(parts, axis=1))

    def blocks(self, x: Floats, heads: int, causal: bool = False) -> Floats:
        """Pre-LayerNorm blocks, x + attention, then x + MLP, with QuickGELU."""
        count = len({key.split(".")[2] for key in self.of if key.startswith("transformer.resblocks.")})
        for name in (f"transformer.resblocks.{number}" for number in range(count)):
            normed = self.norm(f"{name}.ln_1", x)
            x = x + self.attend(f"{name}.attn", normed, normed, heads, causal)
            inner = self.linear(f"{name}.mlp.c_fc", self.norm(f"{name}.ln_2", x))
            x = x + self.linear(f"{name}.mlp.c_proj", inner / (1 + np.exp(-1.702 * inner)))
        return x

    def texts(self, ids: list[int], causal: bool) -> Floats:
        """The states [L, D] of a text."""
        x = self.of["token_embedding.weight"][ids] + self.of["positional_embedding"][: len(ids)]
        return self.norm("ln_final", self.blocks(x, 2, causal))

    def images(self, pixels: Floats) -> Floats:
        """The states [1 + P, D] of an image [3, R, R], the class token first; none is normed at the end."""
        kernel = self.of["conv1.weight"]
        size = kernel.shape[-1]
        corners = range(0, pixels.shape[1], size)
        cells = [np.tensordot(kernel, pixels[:, y : y + size, x : x + size], 3) for y in corners for x in corners]
        x = np.stack([self.of["class_embedding"], *cells]) + self.of["positional_embedding"]
        return self.blocks(self.norm("ln_pre", x), 2)


def pool(head: Plain, states: Floats, pooling: str) -> Floats:
    if pooling == "attention":
        return head.attend("pool.attention", head.of["pool.query"][None], states, 2)[0]
    plain = {"first": states[0], "last": states[-1], "mean": states.mean(axis=0), "max": states.max(axis=0)}
    return plain[pooling]


def unit(vector: Floats) -> Floats:
    return vector / np.sqrt((vector**2).sum())


def seen_by(encoder: Any, corpus: str, pixels: Any) -> tuple[list[list[int]], list[Floats]]:
    """Token ids and pixels of the validation split."""
    data = held_out(corpus)
    crops = [torch.from_numpy(np.array(pixels.crop(Image.open(path))))[None] for path in data.images]
    normalised = [pixels.normalise(crop)[0].double().numpy() for crop in crops]
    return encoder.query.items.reader(data.texts), normalised


# ---- STAIR's


@pytest.mark.parametrize("pooling", POOLED, ids=lambda pooling: "-".join(pooling.values()))
def test_stairs_clip_is_its_equations(pooling, corpus, tmp_path, monkeypatch):
    """Vectors of the trained pair, of the loaded encoder, and in NumPy over the saved weights."""
    folder, seen = validated(twin_of_stair(corpus, pooling), tmp_path, monkeypatch)
    encoder = assert_loaded("clip-twin", folder, corpus, seen)
    weights = weights_of(folder)
    text, image, *heads = (Plain(weights, f"{part}.") for part in ("text", "image", "text_head", "image_head"))
    ids, pixels = seen_by(encoder, corpus, Pixels(16))
    texts = [pool(heads[0], text.texts(row, causal=False), pooling["text"]) for row in ids]
    images = [pool(heads[1], image.norm("ln_post", image.images(crop)), pooling["image"]) for crop in pixels]
    for head, pooled, side in ((heads[0], texts, "texts"), (heads[1], images, "images")):
        expected = [unit(head.linear("proj", vector)) for vector in pooled]
        np.testing.assert_allclose(seen[side], expected, atol=1e-5)


def shapes_below_the_head(weights: Any) -> dict[str, tuple[int, ...]]:
    return {
        key: tuple(value.shape) for key, value in weights.items() if not key.startswith(("text_head", "image_head"))
    }


def test_stairs_clip_has_the_weights_of_stair_below_the_head(trained_twin: Path, trained_stair: Path) -> None:
    twin, stair = weights_of(trained_twin), weights_of(trained_stair)
    assert shapes_below_the_head(twin) == shapes_below_the_head(stair)
    assert {key for key in twin if "head" in key} == {
        *("text_head.proj.weight", "image_head.proj.weight", "image_head.pool.query"),
        *(f"image_head.pool.attention.{end}" for end in ("in_proj_weight", "in_proj_bias")),
        *(f"image_head.pool.attention.out_proj.{end}" for end in ("weight", "bias")),
    }


def test_the_networks_of_the_papers_recipes_are_equal_below_the_head() -> None:
    """Of the whole size, without numbers."""
    models = [read_recipe(RECIPES / f"{name}-paper.yaml").model for name in ("clip-stair", "stair", "stair-single")]
    twin, *stairs = models
    assert isinstance(twin, ModelSettings)
    for stair in stairs:
        assert isinstance(stair, ModelSettings) and (twin.text, twin.image) == (stair.text, stair.image)
    counted = [count_side(name, side) for name in ("clip-stair-paper", "stair-paper") for side in (0, 1)]
    assert counted == pytest.approx([53.758, 88.556, 53.790, 86.815], abs=5e-4)
    # 30,522 tokens and 76 positions of 512, twelve blocks, a LayerNorm, a projection.
    block = 12 * (12 * 512**2 + 13 * 512)
    assert counted[0] * 1e6 == 30_522 * 512 + 76 * 512 + block + 2 * 512 + 512**2
    # Patches of 16 x 16 and 196 positions with a class token, twelve blocks, two LayerNorms, attention, a projection.
    body = 768 * 768 + 197 * 768 + 768 + 12 * (12 * 768**2 + 13 * 768) + 4 * 768
    assert round(counted[1] * 1e6) == body + (768 + 4 * 768**2 + 4 * 768) + 768 * 512
    assert round(count_side("clip-stair-paper", 1, {"model.pooling.image": "first"}) * 1e6) == body + 768 * 512


# ---- FDT's


def test_fdts_clip_over_a_vit_is_its_equations(corpus, merges, tmp_path, monkeypatch):
    """The encoder `clip` loads it: the end symbol and the class token, projected (equations 1 to 3)."""
    folder, seen = validated(twin_of_fdt(corpus, merges, VIT), tmp_path, monkeypatch)
    encoder = assert_loaded("clip", folder, corpus, seen)
    text, image = (Plain(weights_of(folder), prefix) for prefix in ("encode_text.", "visual."))
    ids, pixels = seen_by(encoder, corpus, make_crop(16))
    assert all(row[-1] == max(row) for row in ids)
    texts = [unit(text.linear("text_projection", text.texts(row, causal=True)[-1])) for row in ids]
    images = [unit(image.norm("ln_post", image.images(crop)[0]) @ image.of["proj"]) for crop in pixels]
    np.testing.assert_allclose(seen["texts"], texts, atol=1e-5)
    np.testing.assert_allclose(seen["images"], images, atol=1e-5)


def test_fdts_clip_over_swin_projects_the_mean_of_its_cells(corpus, merges, tmp_path, monkeypatch):
    recipe = twin_of_fdt(corpus, merges, SWIN)
    folder, seen = validated(recipe, tmp_path, monkeypatch)
    encoder = assert_loaded("clip-twin", folder, corpus, seen)
    text, image = (Plain(weights_of(folder), prefix) for prefix in ("encode_text.", "visual."))
    ids, pixels = seen_by(encoder, corpus, make_crop(16))
    texts = [unit(text.linear("text_projection", text.texts(row, causal=True)[-1])) for row in ids]
    np.testing.assert_allclose(seen["texts"], texts, atol=1e-5)
    cells: list[torch.Tensor] = []
    document: Any = encoder.document
    swin = document.embed.__closure__[0].cell_contents.image.__closure__[0].cell_contents
    with swin.swinv2.encoder.register_forward_hook(lambda _, __, states: cells.append(states.last_hidden_state)):
        document.vectors(list(held_out(corpus).images), batch_size=1)
    assert len(cells) == len(pixels)
    means = [image.norm("norm", states[0].double().numpy()).mean(axis=0) for states in cells]
    expected = [unit(image.linear("head", mean)) for mean in means]
    np.testing.assert_allclose(seen["images"], expected, atol=1e-5)


def test_fdts_clip_has_the_weights_of_fdt_without_its_head(fdt_pair: tuple[Path, Path]) -> None:
    """With the projections that FDT has and does not use, here of 6 numbers instead of the codebook's 8."""
    twin, family = map(weights_of, fdt_pair)
    kept = [key for key in family if not key.startswith(("space_dict", "img_query_model", "txt_query_model"))]
    assert sorted(twin) == sorted(kept) and len(kept) < len(family)
    projections = {"visual.proj", "visual.head.weight", "visual.head.bias", "encode_text.text_projection.weight"}
    other = {key for key in kept if twin[key].shape != family[key].shape}
    assert other == (projections & {*kept}) | {"encode_text.text_projection.bias"}


def test_the_recipes_of_fdts_clip_are_those_of_fdt_without_the_codebook(merges: Path) -> None:
    """ViT and Swin of the whole size are the same networks; the ViT's patch embedding alone keeps its first weights."""
    for twin, family, unused in (
        ("fdt-clip", "fdt", {"visual_projection.weight"}),
        ("fdt-clip-swin", "fdt-swin", set()),
    ):
        content, theirs = (yaml.safe_load((RECIPES / f"{name}-paper.yaml").read_text()) for name in (twin, family))
        differing = {key for key in content.keys() | theirs.keys() if content.get(key) != theirs.get(key)}
        assert differing - {"trained"} == {"name", "model", "objective"}
        assert (content["model"]["text"], content["model"]["image"]) == (
            theirs["model"]["text"],
            theirs["model"]["image"],
        )
        assert content["model"]["dimensions"] == theirs["model"]["codebook"]["width"] == 512
        names = []
        for name in (twin, family):
            sizes = {
                f"model.{side}.{key}": value for side in ("text", "image") for key, value in SIZES.get(side, {}).items()
            }
            changes = {**sizes, "model.text.merges": str(merges), "model.image": SWIN if "swin" in name else VIT}
            recipe = read_recipe(RECIPES / f"{name}-paper.yaml", changes)
            assert isinstance(recipe.model, ModelSettings)
            networks = load_networks(recipe.model, [], Path())
            pair = TowerPair(*SIDES[recipe.model.kind](recipe.model, networks.text.columns, networks), 0.05)
            pair.start(recipe.stages[0])
            named = {key: p.requires_grad for key, p in pair.named_parameters() if ".network." in key}
            names.append(named)
        assert names[0].keys() == names[1].keys()
        changed = {key for key in names[0] if names[0][key] != names[1][key]}
        assert changed == {f"encoder_p.network.model.{key}" for key in unused}


# ---- recipes


def test_the_small_twins_differ_from_their_families_in_kind_and_objective_only() -> None:
    """Equal networks, data, pairs, negatives, dropout and rates; the mean of the cells leaves out no cell."""
    own = {"name", "model", "objective", "regularisers", "auxiliaries", "trained"}
    for twin, families in (
        ("clip-stair", ("stair-single", "vdr-crossmodal")),
        ("fdt-clip", ("fdt",)),
    ):
        content = yaml.safe_load((RECIPES / f"{twin}-small.yaml").read_text())
        assert content["model"]["kind"] == "dense-crossmodal" and content["objective"]["name"] == "info_nce"
        for family in families:
            theirs = yaml.safe_load((RECIPES / f"{family}-small.yaml").read_text())
            assert {k: v for k, v in content.items() if k not in own} == {
                k: v for k, v in theirs.items() if k not in own
            }
            assert content["model"]["text"] == theirs["model"]["text"]
            assert content["model"]["image"] == {k: v for k, v in theirs["model"]["image"].items() if k != "cells"}
            limits = [recipe["objective"].get("limits") for recipe in (content, theirs)]
            assert limits[0] == limits[1] and content["objective"]["temperature"] == theirs["objective"]["temperature"]


def test_families_in_stages_see_as_many_pairs_and_negatives_as_the_twin() -> None:
    def budget(name: str) -> set[tuple[int, int, float, float]]:
        recipe = read_recipe(RECIPES / f"{name}-small.yaml")
        model, plans = recipe.model, [stage.optimisation for stage in recipe.stages]
        assert isinstance(model, ModelSettings)
        pairs = sum(plan.steps * plan.batch_size * plan.captions_per_image for plan in plans)
        dropout = (model.text.dropout, getattr(model.image, "dropout", 0.0))
        return {(pairs, plan.batch_size, *dropout) for plan in plans}

    names = ("clip-stair", "fdt-clip", "stair", "stair-single", "vdr-crossmodal", "fdt", "v-splade")
    assert {name: budget(name) for name in names} == {name: {(61_440, 256, 0.3, 0.4)} for name in names}


def test_a_twin_learns_and_resumes(corpus: str, tmp_path: Path) -> None:
    plan = {"steps": 12, "batch_size": 4, "learning_rate": 0.003, "warmup_steps": 1}
    recipe = twin_of_stair(corpus, optimisation=plan, validate_every=100)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    losses = losses_of(tmp_path / "whole")
    assert min(losses[8:]) < losses[0]
    train(recipe, tmp_path / "part", device="cpu", stop_after=5)
    assert same_weights(train(recipe, tmp_path / "part", device="cpu"), whole)


# ---- what is refused


def refuse(folder: Path, encoder: str) -> str:
    with pytest.raises(LexvlError) as raised:
        load_encoder(encoder, str(folder), device="cpu")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_is_no_twin_of_stair_is_one_line(trained_twin: Path, trained_stair: Path, tmp_path: Path) -> None:
    twin, stair = trained_twin, trained_stair
    assert "model_type 'stair', expected 'stair-clip'" in refuse(stair, "clip-twin")
    refuse(stair, "clip")
    refuse(twin, "clip")
    assert "expected 'stair'" in refuse(twin, "stair")
    # Heads of STAIR under the configuration of its CLIP.
    folder = copytree(stair, tmp_path / "headed")
    (folder / "config.json").write_text((twin / "config.json").read_text())
    assert "unexpected: image_head.bias" in refuse(folder, "clip-twin")


def test_what_is_no_twin_of_fdt_is_one_line(fdt_pair: tuple[Path, Path], tmp_path: Path) -> None:
    twin, family = fdt_pair
    encoder = "clip-twin" if "visual.head.weight" in weights_of(twin) else "clip"
    assert "unexpected: img_query_model" in refuse(family, encoder)
    assert "no codebook (space_dict), so not an FDT model" in refuse(twin, "fdt")
    folder = copytree(twin, tmp_path / "without")
    (folder / "bpe_simple_vocab_16e6.txt").unlink()
    assert "no BPE merges" in refuse(folder, encoder)
    if encoder == "clip":
        assert "expected 'stair-clip' or CLIP's texts beside a Swin" in refuse(twin, "clip-twin")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling": {"text": "mode", "image": "first"}}, "pooling.text: \"mode\", expected 'first', "),
        ({"vocab_size": 7}, "7"),
        ({"dimensions": 0}, "dimensions: "),
        ({"text": {"width": 5}}, "model"),
        ({"temperature": 1.0}, "temperature: "),
    ],
)
def test_a_damaged_configuration_is_one_line(change, message, trained_twin, tmp_path):
    folder = copytree(trained_twin, tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | change))
    assert message in refuse(folder, "clip-twin")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "stair"}, "model: pooling is for kind dense-crossmodal over new networks"),
        ({"text": {"merges": "bpe.txt"}}, "model: pooling is for kind dense-crossmodal over new networks"),
        ({"pooling": {"image": "last"}}, "model.pooling.image: "),
    ],
)
def test_settings_without_meaning_are_one_line(changes, message, corpus):
    content = twin_of_stair(corpus).model_dump(mode="json")
    content["model"] |= changes
    content["stages"][0]["objective"]["name"] = "stair" if changes.get("kind") else "info_nce"
    with pytest.raises(UsageError, match=message) as raised:
        check_recipe(content, "tiny.yaml")
    assert "\n" not in str(raised.value)


def test_a_twin_is_a_stair_with_other_heads() -> None:
    config = TwinConfig.read(
        {
            "vocab_size": 9,
            "text": {"width": 4, "layers": 1, "heads": 2, "max_length": 5},
            "image": {"resolution": 4, "patch_size": 2, "width": 6, "layers": 1, "heads": 3},
            "dimensions": 2,
            "pooling": {},
        },
        "config.json",
    )
    assert (config.pooling.text, config.pooling.image) == ("last", "first")  # CLIP's own
    twin = StairTwin(config)
    assert isinstance(twin, Stair)
    padded = torch.tensor([[1, 2, 3, 0, 0], [1, 2, 3, 4, 5]])
    real = (padded > 0).long()
    alone = twin.text_head(twin.text(padded[:1, :3], real[:1, :3]), real[:1, :3])
    both = twin.text_head(twin.text(padded, real), real)
    torch.testing.assert_close(both[:1], alone)
