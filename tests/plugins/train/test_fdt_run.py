"""FDT over its own networks: trained from random weights, saved in the layout of the published runs, and loaded."""

from __future__ import annotations

import gzip
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch

from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.clip_bpe import SPECIALS, ClipBpe
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, UsageError
from lexvl_plugins.train.common.tower_pair import TextBatch, TowerPair
from lexvl_plugins.train.images.networks import TextNetwork, load_networks, make_clip_texts
from lexvl_plugins.train.images.sides import SIDES, Codebook, FdtText
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.model_settings import BpeTextSettings, CodebookSettings, ModelSettings
from lexvl_plugins.train.recipe import Recipe, check_recipe, read_recipe
from tests.plugins.train.test_families import assert_loaded, validated
from tests.plugins.train.tiny_training import losses_of, same_weights, tiny_recipe, weights_of, write_squares

# The sizes of the networks.
VIT: dict[str, Any] = {"resolution": 16, "patch_size": 8, "width": 16, "layers": 1, "heads": 2}
SIZES: dict[str, dict[str, Any]] = {
    "text": {"max_length": 20, "width": 16, "layers": 1, "heads": 2},
    "codebook": {"terms": 32, "width": 8},
}
SWIN: dict[str, Any] = {
    "resolution": 16,
    "patch_size": 2,
    "width": 8,
    "depths": [2, 2],
    "heads": [1, 2],
    "window": 4,
    "drop_path": 0.2,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight coloured squares for training and four for validation, two captions each."""
    return write_squares(tmp_path_factory.mktemp("corpus"), train=8)


@pytest.fixture(scope="module")
def merges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two merges, below a header."""
    path = tmp_path_factory.mktemp("merges") / "bpe.txt.gz"
    path.write_bytes(gzip.compress(b"#version\nr e\nre d</w>\n"))
    return path


def recipe_of(corpus: str, merges: Path | str, image: dict[str, Any]) -> Recipe:
    text = {"merges": str(merges), **SIZES["text"]}
    # At a high T, relevances below the 0 of padding have weights.
    codebook = {**SIZES["codebook"], "temperature": 400.0, "decay": 0.5, "every": 2}
    content = {
        "objective": {"name": "fdt", "temperature": 0.0498, "learn_temperature": True, "limits": [0.0025, 0.0498]},
        "optimisation": {"steps": 4, "batch_size": 4, "warmup_steps": 1, "learning_rate": 0.01},
        "validate_every": 4,
    }
    return tiny_recipe(corpus, {"kind": "fdt", "text": text, "image": image, "codebook": codebook}, **content)


@pytest.mark.parametrize("image", [VIT, SWIN], ids=["vit", "swin"])
def test_the_loaded_encoder_gives_the_weights_of_the_trained_pair(image, corpus, merges, tmp_path, monkeypatch):
    folder, seen = validated(recipe_of(corpus, merges, image), tmp_path / "run", monkeypatch)
    model = assert_loaded("fdt", folder, corpus, seen)
    assert len(as_lexical(model.query).vocabulary) == 32


def test_the_checkpoint_has_the_names_of_the_published_code(corpus: str, merges: Path, tmp_path: Path) -> None:
    folder = train(recipe_of(corpus, merges, VIT), tmp_path / "vit", device="cpu")
    weights = weights_of(folder)
    block = "transformer.resblocks.0"
    shapes = {
        "space_dict": (32, 8),
        "logit_scale": (1,),
        "visual.class_embedding": (16,),
        "visual.positional_embedding": (5, 16),
        "visual.conv1.weight": (16, 3, 8, 8),
        "visual.proj": (16, 8),
        f"visual.{block}.attn.in_proj_weight": (48, 16),
        f"encode_text.{block}.attn.in_proj_bias": (48,),
        "encode_text.token_embedding.weight": (517, 16),
        "encode_text.text_projection.bias": (8,),
        "img_query_model.q_map.4.weight": (8, 8),
        "txt_query_model.q_map.0.weight": (16,),
    }
    assert {name: tuple(weights[name].shape) for name in shapes} == shapes
    swin = weights_of(train(recipe_of(corpus, merges, SWIN), tmp_path / "swin", device="cpu"))
    assert {
        "visual.patch_embed.proj.weight",
        "visual.layers.0.downsample.reduction.weight",
        "visual.layers.1.blocks.1.attn.qkv.weight",
        "visual.layers.1.blocks.1.attn.q_bias",
        "visual.layers.1.blocks.1.mlp.fc2.bias",
        "visual.norm.weight",
        "visual.head.bias",
    } <= swin.keys()
    assert (folder / "bpe_simple_vocab_16e6.txt").read_bytes() == gzip.decompress(merges.read_bytes())
    model = load_encoder("fdt", str(folder), device="cpu")
    saved = load_encoder("fdt", str(copytree(folder, tmp_path / "saved")), device="cpu")
    assert saved.query.reader(["a red dog"]) == model.query.reader(["a red dog"])
    assert (as_lexical(saved.query).weights(["red"]) != as_lexical(model.query).weights(["red"])).nnz == 0


def test_a_run_resumes_with_equal_weights_and_refuses_other_merges(corpus: str, merges: Path, tmp_path: Path) -> None:
    recipe = recipe_of(corpus, merges, SWIN)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    assert min(losses_of(tmp_path / "whole")[1:]) < losses_of(tmp_path / "whole")[0]
    assert train(recipe, tmp_path / "killed", device="cpu", stop_after=2).name == "state"
    assert same_weights(train(recipe, tmp_path / "killed", device="cpu"), whole)
    other = tmp_path / "bpe.txt"
    other.write_text("#version\nr e\nre d\n")
    train(recipe_of(corpus, other, SWIN), tmp_path / "changed", device="cpu", stop_after=1)
    other.write_text("#version\nr e\nre d</w>\n")
    with pytest.raises(LexvlError, match="merges"):
        train(recipe_of(corpus, other, SWIN), tmp_path / "changed", device="cpu")


RECIPES = Path(__file__).parents[3] / "runs/recipes"


def test_the_recipes_of_the_paper_freeze_the_patch_embedding_of_the_vit_alone(merges: Path) -> None:
    sizes = {f"model.{side}.{key}": value for side, of_side in SIZES.items() for key, value in of_side.items()}
    for name, image in (("fdt", VIT), ("fdt-swin", SWIN)):
        changes = {**sizes, "model.text.merges": str(merges), "model.image": image}
        recipe = read_recipe(RECIPES / f"{name}-paper.yaml", changes)
        assert isinstance(recipe.model, ModelSettings)
        networks = load_networks(recipe.model, [], Path())
        pair = TowerPair(*SIDES["fdt"](recipe.model, networks.text.columns, networks), 0.0498)
        pair.start(recipe.stages[0])
        frozen = [key for key, parameter in pair.named_parameters() if not parameter.requires_grad]
        unused, conv = "visual_projection.weight", "vision_model.embeddings.patch_embedding.weight"
        assert frozen == [f"encoder_p.network.model.{key}" for key in (conv, unused) if name == "fdt"]


def test_padding_has_the_relevance_0(merges: Path) -> None:
    """All relevances of a text are below 0: those of a padded text become 0, those of a full one stay."""
    settings = BpeTextSettings(merges=str(merges), max_length=3, width=4, layers=1, heads=1)
    codebook = Codebook(CodebookSettings(terms=2, width=2, attention="softmax", temperature=1.0))
    network = TextNetwork(None, "", make_clip_texts(settings, 517, 2), None, None, {})  # type: ignore[arg-type]
    side = FdtText(network, 0.0, codebook, True).eval()
    with torch.no_grad():
        side.head.q_map[-1].weight.zero_()
        side.head.q_map[-1].bias.copy_(torch.tensor([1.0, 0.0]))
        codebook.rows.copy_(torch.tensor([[-1.0, 0.0], [-3.0, 0.0]]))
    relevances = torch.tensor([-1.0, -3.0]) / 2**0.5
    for ids, expected in (([515, 3, 516], relevances.softmax(0).tolist()), ([515, 516], [0.5, 0.5])):
        row = torch.tensor([ids])
        assert side(TextBatch(row, torch.ones_like(row), row > 600)).squeeze().tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "stair"}, "model: text.merges is for kind fdt beside a new image"),
        ({"image": {"checkpoint": "efficientnet-lite2"}}, "beside a new image, a ViT without stem or a Swin"),
        ({"start": "elsewhere"}, "only a pair over two pretrained networks"),
        ({"text": {"words": 9}, "image": SWIN}, r"model: image.depths \(Swin\) is for kind fdt beside text.merges"),
        ({"image": {**SWIN, "heads": [1]}}, "model.image: 2 depths and 1 heads"),
        ({"image": {**SWIN, "heads": [1, 3]}}, "model.image: width 16 of stage 1 is no multiple of its heads"),
        ({"image": {**SWIN, "resolution": 18}}, "model.image: resolution 18 is no multiple of 4 pixels"),
        ({"text": {"merges": "x", "words": 5}}, "model.text.words"),
    ],
)
def test_settings_without_meaning_are_one_line(corpus: str, merges: Path, changes: Any, message: str) -> None:
    content = recipe_of(corpus, merges, VIT).model_dump(mode="json")
    content["model"] |= changes
    with pytest.raises(UsageError, match=message) as raised:
        check_recipe(content, "tiny.yaml")
    assert "\n" not in str(raised.value)


def test_merges_that_are_not_there_are_one_line(corpus: str, merges: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none.txt: no such file; name CLIP's BPE merges"):
        train(recipe_of(corpus, tmp_path / "none.txt", VIT), tmp_path / "run", device="cpu")
    assert ClipBpe(merges, SPECIALS).size == 517
