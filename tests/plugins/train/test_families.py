"""Families of texts and images, FDT over its own networks too: trained, saved, and loaded by their own encoders."""

import gzip
import json
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tiny_encoders import tiny_vit

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.encoders.families.stair import Stair, StairConfig
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.clip_bpe import SPECIALS, ClipBpe
from lexvl_anserini.encoders.parts.images.pixels import Pixels
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, UsageError
from lexvl_plugins.train.common.tower_pair import TextBatch, TowerPair, drop_registers
from lexvl_plugins.train.images.captioned import CaptionedImages, read_captioned
from lexvl_plugins.train.images.material import Validation
from lexvl_plugins.train.images.networks import TextNetwork, load_networks, make_clip_texts
from lexvl_plugins.train.images.sides import SIDES, Codebook, FdtText
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.model_settings import BpeTextSettings, CodebookSettings, ModelSettings
from lexvl_plugins.train.recipe import Recipe, check_recipe, read_recipe
from tests.plugins.train.tiny_training import losses_of, same_weights, tiny_recipe, weights_of, write_squares

# The objective of each family over networks, and its options.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "vdr-crossmodal": {"name": "vdr", "options": {"topk": 8, "normalised": True}},
    "dense-crossmodal": {"name": "info_nce"},
    "stair": {"name": "stair"},
    "lexlip": {"name": "lexlip"},
    "fdt": {"name": "fdt", "learn_temperature": True, "limits": [0.0025, 0.0498]},
}
# Further settings of the model.
EXTRA: dict[str, dict[str, Any]] = {
    "vdr-crossmodal": {"topk": 8},
    "fdt": {"codebook": {"terms": 32, "width": 8, "temperature": 4.0, "decay": 0.5, "every": 1}},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight coloured squares for training and four for validation, two captions each."""
    return write_squares(tmp_path_factory.mktemp("corpus"), train=8)


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


ONE_STEP = {"steps": 1, "batch_size": 4, "warmup_steps": 1}


def recipe_of(corpus: str, kind: str, networks: dict[str, Any], **changes: Any) -> Recipe:
    content = {
        "objective": {"temperature": 0.5, **OBJECTIVES.get(kind, {"name": kind})},
        "optimisation": {"steps": 2, "batch_size": 4, "warmup_steps": 1, "learning_rate": 0.01},
        "validate_every": 2,
    }
    return tiny_recipe(corpus, {"kind": kind, **EXTRA.get(kind, {}), **networks}, **{**content, **changes})


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
            images = self.images.get_plain(np.arange(len(self.images)))
            seen["images"] = drop_registers(pair.encoder_p(images), model).numpy()
            seen["texts"] = drop_registers(pair.encoder_q(self.captions.read_batch(np.arange(8))), model).numpy()
        pair.train()
        return {}

    monkeypatch.setattr(Validation, "measure", measure)
    monkeypatch.setattr(Validation, "score", lambda self, figures: 0.0)
    return train(recipe, output, device="cpu"), seen


def assert_loaded(kind: str, folder: Path, corpus: str, seen: dict[str, np.ndarray]) -> Any:
    """The encoder of a folder, whose vectors are those of the pair that was validated."""
    model, data = load_encoder(kind, str(folder), device="cpu"), held_out(corpus)
    np.testing.assert_allclose(vectors_of(model.document, list(data.images)), seen["images"], atol=1e-5)
    np.testing.assert_allclose(vectors_of(model.query, data.texts), seen["texts"], atol=1e-5)
    return model


@pytest.mark.parametrize("source", ["fresh", "pretrained"])
@pytest.mark.parametrize("kind", sorted(OBJECTIVES))
def test_the_loaded_encoder_gives_the_vectors_of_the_trained_pair(
    kind, source, corpus, pretrained, tmp_path, monkeypatch
):
    recipe = recipe_of(corpus, kind, pretrained if source == "pretrained" else FRESH)
    folder, seen = validated(recipe, tmp_path, monkeypatch)
    assert_loaded(kind, folder, corpus, seen)


def text_of(source: str, golden: Path) -> dict[str, Any]:
    """A text side over the 2,000 tokens of a tokenizer: BERT's 999 unused ones, then 993 in ASCII and 8 others."""
    if source == "fresh":
        return {**FRESH["text"], "words": 2000, "tokenizer": str(golden / "splade/ckpt_bert")}
    return {"checkpoint": str(golden / "splade/ckpt_bert"), "terms": "tokens", "max_length": 16}


@pytest.mark.parametrize(
    ("kind", "text", "image", "size"),
    [
        *(("stair", text, "fresh", 2000) for text in ("fresh", "pretrained")),
        ("lexlip", "pretrained", "pretrained", 2000),
        *(("vdr-crossmodal", text, "fresh", 993) for text in ("fresh", "pretrained")),
        ("vdr-crossmodal", "pretrained", "pretrained", 993),
    ],
)
def test_the_dimensions_are_the_tokens_of_a_tokenizer(
    kind, text, image, size, golden, corpus, pretrained, tmp_path, monkeypatch
):
    """VDR has the ASCII tokens from the 999th on, as its published checkpoints do."""
    images = pretrained if image == "pretrained" else FRESH
    recipe = recipe_of(corpus, kind, {"text": text_of(text, golden), "image": images["image"]})
    folder, seen = validated(recipe, tmp_path, monkeypatch)
    model = assert_loaded(kind, folder, corpus, seen)
    assert len(as_lexical(model.query).vocabulary) == size
    own = load_encoder(kind, str(folder), device="cpu", text_mask="own") if kind == "stair" else None
    for [term, _] in own.decode(own.query.weights(["a red square"]))[0] if own else ():
        assert term not in ("[CLS]", "[SEP]")


def test_a_trained_stair_is_the_network_of_its_class(corpus: str, tmp_path: Path) -> None:
    """One matrix e, a class token, the heads of the class, and no further weights; the maximum is over their states."""
    recipe = recipe_of(corpus, "stair", FRESH)
    folder = train(recipe, tmp_path, device="cpu")
    config = StairConfig.read(json.loads((folder / "config.json").read_text()), "config.json")
    assert (config.prompt, config.stage, config.image.class_token) == ("", "single", True)
    stair, saved = Stair(config), weights_of(folder)
    assert {key: weights.shape for key, weights in saved.items()} == {k: w.shape for k, w in stair.state_dict().items()}
    state = weights_of(tmp_path / "state")
    trained = [key for key in state if not key.startswith("log_")]
    assert sum(state[key].numel() for key in trained) == sum(weights.numel() for weights in stair.parameters())
    stair.load_state_dict(saved)
    pixels = Pixels(16).normalise(torch.full((1, 16, 16, 3), 90, dtype=torch.uint8))
    encoder = load_encoder("stair", str(folder), device="cpu", normalise=False)
    [weights] = as_lexical(encoder.document).dense_weights([Image.new("RGB", (16, 16), (90, 90, 90))])
    with torch.no_grad():
        logits = stair.image_head(stair.image(pixels)) @ stair.text.token_embedding.weight.T + stair.image_head.bias
    assert logits.shape[1] == 1 + 4  # the class token and the patches
    np.testing.assert_allclose(weights, torch.log1p(torch.relu(logits.amax(dim=1)))[0], atol=1e-5)


def test_the_checkpoint_of_each_stage_of_stair_is_loaded_as_that_of_its_stage(corpus: str, tmp_path: Path) -> None:
    """After stage 1 texts keep their own tokens, after the others not."""
    masks = ({"masked": True}, {}, {})
    stages = [{"objective": {"name": "stair", "options": options}, "optimisation": ONE_STEP} for options in masks]
    content = recipe_of(corpus, "stair", FRESH).model_dump(mode="json")
    model = train(check_recipe({**content, "stages": stages}, "tiny.yaml"), tmp_path, device="cpu", keep_every="stage")
    folders = [*(tmp_path / "kept" / f"stage-{number}" for number in (1, 2, 3)), model]
    assert [json.loads((folder / "config.json").read_text())["stage"] for folder in folders] == ["1", "2", "3", "3"]
    names = [type(load_encoder("stair", str(folder), device="cpu").query).__name__ for folder in folders]
    assert names == ["OwnTokenTower", "TextTower", "TextTower", "TextTower"]


def held_out(corpus: str) -> CaptionedImages:
    """The validation split."""
    return read_captioned(load_dataset(corpus, "val", None, direction="text-to-image"))


@pytest.fixture(scope="module")
def dense(corpus: str, pretrained: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dense pair of 6 dimensions, with a hidden layer of 10."""
    networks = {**pretrained, "dimensions": 6, "hidden": 10}
    return str(train(recipe_of(corpus, "dense-crossmodal", networks), tmp_path_factory.mktemp("dense"), device="cpu"))


@pytest.mark.parametrize("kind", ["d2s", "joint"])
def test_a_head_over_a_dense_pair_is_loaded_with_the_pair(kind, dense, corpus, tmp_path, monkeypatch):
    recipe = recipe_of(corpus, kind, {"pair": dense, "least": 1})
    folder, seen = validated(recipe, tmp_path, monkeypatch)
    model = assert_loaded(kind, folder, corpus, seen)
    assert "squareling" in as_lexical(model.query).vocabulary.terms
    with pytest.raises(UsageError, match="backbone_checkpoint: .* names its own dense pair"):
        load_encoder(kind, str(folder), device="cpu", backbone_checkpoint=dense)
    masked = load_encoder(kind, str(folder), device="cpu", text="words")
    [own] = masked.decode(masked.query.weights(["a red squareling"]))
    assert {term for term, _ in own} <= {"red", "squareling"}


def test_a_stage_of_contrastive_losses_pretrains_the_head_of_joint(dense: str, corpus: str, tmp_path: Path) -> None:
    """The first stage leaves the pair's last layers as they are; the second one, of the whole objective, does not."""
    plan = {"steps": 2, "batch_size": 4, "warmup_steps": 1, "learning_rate": 0.01}
    alone = {"name": "joint", "options": {"distillation": "none", "inter": 0}}
    stages = [
        {"objective": alone, "trained": ["encoder_q.head.single_*"], "optimisation": plan},
        {"objective": {"name": "joint"}, "expansion": "controlled", "expanded_after": 0.5, "optimisation": plan},
    ]
    model = {"kind": "joint", "pair": dense, "least": 1, "head": "random"}
    last = train(tiny_recipe(corpus, model, stages=stages), tmp_path, device="cpu", keep_every="stage")
    pair, first, whole = weights_of(Path(dense)), weights_of(tmp_path / "kept/stage-1"), weights_of(last)
    for name, other in (("text_proj", "encoder_q"), ("vision_proj", "encoder_p")):
        assert torch.equal(first[f"{name}.weight"], pair[f"{other}.head.2.weight"])
        assert not torch.equal(whole[f"{name}.weight"], first[f"{name}.weight"])
    assert not torch.equal(whole["single_vocab_projector.weight"], first["single_vocab_projector.weight"])


def test_a_dense_pair_that_changed_is_refused(dense: str, corpus: str, tmp_path: Path) -> None:
    folder = train(recipe_of(corpus, "d2s", {"pair": dense, "least": 1}), tmp_path, device="cpu")
    path = folder / "dense_pair/text/vocab.json"
    path.write_text("{}")
    (folder / "dense_pair/config.json").write_text((folder / "dense_pair/config.json").read_text() + " ")
    with pytest.raises(CheckpointError, match="was trained over dense_pair with SHA-256"):
        load_encoder("d2s", str(folder), device="cpu")


HEADS = ["encoder_?.head.*", "encoder_?.proj"]
# The stages of two families: LexLIP's phases and its fine-tuning, STAIR's three stages.
LEXLIP, OVER_VIEWS = {"name": "lexlip", "temperature": 0.05}, {"trained": HEADS, "views": 2}
STAGED: dict[str, list[dict[str, Any]]] = {
    "lexlip": [
        {"objective": LEXLIP, "auxiliaries": [{"name": "masked_words", "weight": 1.0}], **OVER_VIEWS},
        {"objective": {**LEXLIP, "name": "lexlip_momentum"}, "momentum": {"queue": 6, "decay": 0.9}, **OVER_VIEWS},
        {"objective": LEXLIP, "trained": []},
    ],
    "stair": [
        {"objective": {"name": "stair", "options": {"masked": True}}, **OVER_VIEWS},
        {"objective": {"name": "stair"}, **OVER_VIEWS, "trained": ["encoder_q.head.*"]},
        {"objective": {"name": "stair"}, "auxiliaries": [{"name": "caption_gated", "weight": 0.1}]},
    ],
}


def staged(corpus: str, kind: str, pretrained: dict[str, Any]) -> Recipe:
    """Stages of two steps each, with FLOPS on both sides."""
    flops = [{"name": "flops", "side": side, "weight": 0.002} for side in ("query", "document")]
    plan = {"steps": 2, "batch_size": 4, "warmup_steps": 1, "learning_rate": 0.01, "captions_per_image": 2}
    stages = [{**stage, "regularisers": flops, "optimisation": plan} for stage in STAGED[kind]]
    return tiny_recipe(corpus, {"kind": kind, **pretrained}, stages=stages, validate_every=2)


@pytest.mark.parametrize("kind", sorted(STAGED))
def test_a_resumed_run_of_stages_ends_with_the_same_weights(kind, corpus, pretrained, tmp_path):
    """Killed inside each stage."""
    recipe = staged(corpus, kind, pretrained)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    for step in (1, 3, 5):
        assert train(recipe, tmp_path / "killed", device="cpu", stop_after=step).name == "state"
    assert same_weights(train(recipe, tmp_path / "killed", device="cpu"), whole)
    assert not any(key.startswith("parts.") for key in weights_of(whole))
    assert load_encoder(kind, str(tmp_path / "killed/model"), device="cpu").kind == "impact"


RECIPES = Path(__file__).parents[3] / "runs/recipes"
NAMES = (
    "clip",
    "clip-stair",
    "fdt-clip",
    "vdr-crossmodal",
    "stair",
    "stair-single",
    "lexlip",
    "fdt",
    "d2s",
    "joint",
    "v-splade",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_small_recipe_lowers_its_loss(name, corpus, pretrained, dense, tmp_path):
    """With tiny networks in place of its own, for eight steps per stage."""
    path = RECIPES / f"{name}-small.yaml"
    content = yaml.safe_load(path.read_text())
    model = {"pair": dense, "least": 1} if "pair" in content["model"] else pretrained
    plan = {"steps": 8, "batch_size": 4, "learning_rate": 0.003, "warmup_steps": 1, "average": 0.0}
    prefixes = [f"stages.{number}." for number in range(len(content["stages"]))] if "stages" in content else [""]
    changes: dict[str, Any] = {f"model.{key}": value for key, value in model.items()}
    changes |= {f"{prefix}optimisation.{key}": value for prefix in prefixes for key, value in plan.items()}
    changes |= {"data.corpus": corpus, "state_every": 100, "log_every": 1, "validate_every": 100}
    if name == "fdt":
        changes["model.codebook"] = EXTRA["fdt"]["codebook"]
    train(read_recipe(path, changes), tmp_path, device="cpu")
    losses = losses_of(tmp_path)
    assert len(losses) == 8 * len(prefixes) and min(losses[4:8]) < losses[0]


# The sizes of the networks.
VIT: dict[str, Any] = {"resolution": 16, "patch_size": 8, "width": 16, "layers": 1, "heads": 2}
SIZES: dict[str, dict[str, Any]] = {
    "text": {"max_length": 20, "width": 16, "layers": 1, "heads": 2},
    "codebook": {"terms": 32, "width": 8},
}
BLOCKS: dict[str, Any] = {"depths": [2, 2], "heads": [1, 2], "window": 4, "drop_path": 0.2}
SWIN: dict[str, Any] = {"resolution": 16, "patch_size": 2, "width": 8, **BLOCKS}


@pytest.fixture(scope="module")
def merges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two merges, below a header."""
    path = tmp_path_factory.mktemp("merges") / "bpe.txt.gz"
    path.write_bytes(gzip.compress(b"#version\nr e\nre d</w>\n"))
    return path


def fdt_recipe(corpus: str, merges: Path | str, image: dict[str, Any]) -> Recipe:
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
    folder, seen = validated(fdt_recipe(corpus, merges, image), tmp_path / "run", monkeypatch)
    model = assert_loaded("fdt", folder, corpus, seen)
    assert len(as_lexical(model.query).vocabulary) == 32


def test_the_checkpoint_has_the_names_of_the_published_code(corpus: str, merges: Path, tmp_path: Path) -> None:
    folder = train(fdt_recipe(corpus, merges, VIT), tmp_path / "vit", device="cpu")
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
    swin = weights_of(train(fdt_recipe(corpus, merges, SWIN), tmp_path / "swin", device="cpu"))
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
    recipe = fdt_recipe(corpus, merges, SWIN)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    assert min(losses_of(tmp_path / "whole")[1:]) < losses_of(tmp_path / "whole")[0]
    assert train(recipe, tmp_path / "killed", device="cpu", stop_after=2).name == "state"
    assert same_weights(train(recipe, tmp_path / "killed", device="cpu"), whole)
    other = tmp_path / "bpe.txt"
    other.write_text("#version\nr e\nre d\n")
    train(fdt_recipe(corpus, other, SWIN), tmp_path / "changed", device="cpu", stop_after=1)
    other.write_text("#version\nr e\nre d</w>\n")
    with pytest.raises(LexvlError, match="merges"):
        train(fdt_recipe(corpus, other, SWIN), tmp_path / "changed", device="cpu")


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


MINILM, NAMED = {"checkpoint": "minilm"}, {"checkpoint": "x", "class_names": "names.json"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "stair"}, "model: text.merges is for kind fdt or dense-crossmodal beside a new"),
        ({"image": {"checkpoint": "efficientnet-lite2"}}, "beside a new image, a ViT without stem or a Swin"),
        ({"start": "elsewhere"}, "only a pair over two pretrained networks"),
        ({"text": {"words": 9}, "image": SWIN}, r"model: image.depths \(Swin\) is beside text.merges"),
        ({"image": {**SWIN, "heads": [1]}}, "model.image: 2 depths and 1 heads"),
        ({"image": {**SWIN, "heads": [1, 3]}}, "model.image: width 16 of stage 1 is no multiple of its heads"),
        ({"image": {**SWIN, "resolution": 18}}, "model.image: resolution 18 is no multiple of 4 pixels"),
        ({"text": {"merges": "x", "words": 5}}, "model.text.words"),
        ({"kind": "vdr-crossmodal", "text": MINILM}, "tokens of its tokenizer: text.terms: tokens"),
        ({"kind": "vdr-crossmodal", "text": FRESH["text"], "image": NAMED}, "text and image both have a checkpoint"),
        ({"kind": "dense-crossmodal", "text": MINILM}, "text and image both have a checkpoint"),
        ({"kind": "stair", "text": {**FRESH["text"], "tokenizer": "minilm"}}, "words 120: the tokenizer of minilm has"),
        ({"kind": "vdr-crossmodal", "text": {**MINILM, "terms": "tokens"}, "image": NAMED}, "class words are beside"),
    ],
)
def test_settings_without_meaning_are_one_line(corpus: str, merges: Path, changes: Any, message: str) -> None:
    content = fdt_recipe(corpus, merges, VIT).model_dump(mode="json")
    content["model"] |= changes
    with pytest.raises(UsageError, match=message) as raised:
        check_recipe(content, "tiny.yaml")
    assert "\n" not in str(raised.value)


def test_merges_that_are_not_there_are_one_line(corpus: str, merges: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none.txt: no such file; name CLIP's BPE merges"):
        train(fdt_recipe(corpus, tmp_path / "none.txt", VIT), tmp_path / "run", device="cpu")
    assert ClipBpe(merges, SPECIALS).size == 517
