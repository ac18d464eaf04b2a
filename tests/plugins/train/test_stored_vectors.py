"""Heads of D2S and Joint over the stored vectors of `embeddings:`: no image is read, every token is a term."""

import json
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pytest
import torch
from corpus_folders import write_embeddings
from safetensors.torch import save_file

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.checkpoints.weights import read_weights
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.tokens import load_tokenizer
from lexvl_anserini.ground.errors import LexvlError, UsageError
from lexvl_plugins.train.images.dense_heads import HeadMaterial
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import read_recipe
from lexvl_plugins.train.splits import Sources
from tests.plugins.train.test_families import assert_loaded, corpus, dense, pretrained, recipe_of, validated, vectors_of  # noqa: F401
from tests.plugins.train.tiny_training import losses_of, weights_of

RECIPES = Path(__file__).parents[3] / "runs/recipes"


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A corpus of stored vectors [6]: eight images for training, four for validation, two captions of each."""
    draws, folder = np.random.default_rng(3), tmp_path_factory.mktemp("vectors")
    colours = ("red", "green", "blue", "grey")
    captions = {
        str(n): {f"{n}{part}": f"a {colours[n % 4]} {word}" for part, word in (("a", "square"), ("b", "bar"))}
        for n in range(12)
    }
    images = {image: draws.standard_normal(6, dtype=np.float32) for image in captions}
    texts = {caption: images[image] + 0.1 for image, own in captions.items() for caption in own}
    write_embeddings(folder, images, texts, captions, split="train")
    about = json.loads((folder / "dataset_meta.json").read_text())
    for image in about["images"][8:]:
        image["split"] = "val"
    (folder / "dataset_meta.json").write_text(json.dumps(about))
    return f"embeddings:{folder}"


@pytest.fixture(scope="module")
def blip(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What Joint begins with of a BLIP: projections from 6 to 5 numbers, and the embeddings of words."""
    folder = tmp_path_factory.mktemp("blip")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        if (golden / "splade/ckpt_bert" / name).exists():
            copyfile(golden / "splade/ckpt_bert" / name, folder / name)
    rows = len(load_tokenizer(folder))
    draw = torch.Generator().manual_seed(4)
    shapes = {"text_encoder.embeddings.word_embeddings.weight": (rows, 7)}
    for side in ("text", "vision"):
        shapes |= {f"{side}_proj.weight": (5, 6), f"{side}_proj.bias": (5,)}
    save_file({key: torch.randn(size, generator=draw) for key, size in shapes.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return str(folder)


@pytest.mark.parametrize(("kind", "words"), [("d2s", "ckpt_distilbert"), ("d2s", "ckpt_bert"), ("joint", "blip")])
def test_a_head_over_stored_vectors_is_loaded_in_the_layout_of_its_reference(
    kind, words, vectors, blip, golden, tmp_path, monkeypatch
):
    """No image is read, and every token is a term."""
    name = blip if words == "blip" else str(golden / "splade" / words)
    folder, seen = validated(recipe_of(vectors, kind, {"words": name}), tmp_path, monkeypatch)
    model = assert_loaded(kind, folder, vectors, seen)
    assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    found = load_dataset(vectors, "val", None)
    rows = vectors_of(model.document, [model.document.read(document) for document in found.documents()])
    np.testing.assert_allclose(rows, seen["images"], atol=1e-5)


def test_a_head_over_stored_vectors_begins_as_the_words(vectors: str, golden: Path, tmp_path: Path) -> None:
    """The projector has the embeddings and the bias of DistilBERT's masked-LM head, as D2S' constructor."""
    words = golden / "splade/ckpt_distilbert"
    recipe = recipe_of(vectors, "d2s", {"words": str(words)})
    material = HeadMaterial.read(recipe, tmp_path, Sources.read(recipe, None, tmp_path))
    head: Any = material.make_pair(recipe, torch.device("cpu")).encoder_q.head
    expected = read_weights(words)
    assert torch.equal(head.vocab_projector.weight, expected["distilbert.embeddings.word_embeddings.weight"])
    assert torch.equal(head.vocab_projector.bias, expected["vocab_projector.bias"])
    assert torch.equal(head.vocab_layer_norm.weight, expected["vocab_layer_norm.weight"])


def test_a_random_head_has_no_weights_of_the_words(vectors: str, golden: Path, tmp_path: Path) -> None:
    """It has the range of Glorot and Bengio, depends on the seed alone, and has a new LayerNorm."""
    words = golden / "splade/ckpt_distilbert"
    heads = []
    for folder in ("a", "b"):
        recipe = recipe_of(vectors, "d2s", {"words": str(words), "head": "random"})
        material = HeadMaterial.read(recipe, tmp_path / folder, Sources.read(recipe, None, tmp_path))
        heads.append(material.make_pair(recipe, torch.device("cpu")).encoder_q.head)
    head: Any = heads[0]
    rows, width = head.vocab_projector.weight.shape
    limit = (6 / (rows + width)) ** 0.5
    assert torch.equal(head.vocab_projector.weight, heads[1].vocab_projector.weight)  # type: ignore[union-attr]
    assert 0.9 * limit < float(head.vocab_projector.weight.detach().abs().max()) <= limit
    assert not head.vocab_projector.bias.any() and (head.vocab_layer_norm.weight == 1).all()


# Changes of the paper's recipes: expansion control with Joint, and the rows of its ablation.
ABLATION: dict[str, dict[str, Any]] = {
    "joint-paper": {},
    "joint-paper, expansion control": {"expansion": "controlled"},
    "joint-albef-paper": {},
    "joint-albef-paper, without distillation": {"objective.options.distillation": "none"},
    "joint-albef-paper, one-way": {"objective.options.distillation": "one-way"},
    "joint-albef-paper, contrastive": {"objective.options.distillation": "none", "objective.options.inter": 0},
    "joint-albef-paper, random head": {"model.head": "random"},
    "joint-albef-paper, frozen last layers": {"trained": ["encoder_q.head.single_*"]},
    "d2s-paper": {},
}


@pytest.mark.parametrize("name", ABLATION)
def test_a_recipe_of_the_papers_lowers_its_loss_over_stored_vectors(name, vectors, blip, golden, tmp_path):
    """With small vectors and words in the place of the published ones; frozen layers stay."""
    recipe = RECIPES / f"{name.partition(',')[0]}.yaml"
    words = blip if name.startswith("joint") else str(golden / "splade/ckpt_distilbert")
    plan = {"steps": 8, "batch_size": 8, "learning_rate": 0.003, "warmup_steps": 1, "warmup": "n", "learning_rates": {}}
    changes: dict[str, Any] = {f"optimisation.{key}": value for key, value in plan.items()}
    changes |= {"data.corpus": vectors, "model.words": words, "precision": "no", "log_every": 1, **ABLATION[name]}
    changes["regularisers"] = []
    if name == "d2s-paper":  # its draws of expansion compare losses of different texts
        changes |= {"expansion": "always", "objective.options.teacher_temperature": 0.1}
    folder = train(read_recipe(recipe, changes), tmp_path, device="cpu")
    losses = losses_of(tmp_path)
    assert len(losses) == 8 and min(losses[4:]) < losses[0]
    assert load_encoder(name.partition("-")[0], str(folder), device="cpu").kind == "impact"
    if name.startswith("joint"):
        same = torch.equal(weights_of(folder)["text_proj.weight"], read_weights(Path(blip))["text_proj.weight"])
        assert same == ("frozen" in name)


def test_vectors_of_another_width_than_the_projections_are_refused(vectors: str, blip: str, tmp_path: Path) -> None:
    weights = read_weights(Path(blip))
    wide = {key: torch.ones(5, 9) if key.endswith("proj.weight") else value for key, value in weights.items()}
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        copyfile(Path(blip) / name, tmp_path / name)
    save_file(wide, tmp_path / "model.safetensors")
    message = "text_proj reads 9 numbers, the stored vectors have 6; name those before the projection"
    with pytest.raises(UsageError, match=message):
        train(recipe_of(vectors, "joint", {"words": str(tmp_path)}), tmp_path / "run", device="cpu")


BERT, HALF = {"words": "BERT"}, {"objective": {"name": "info_nce"}, "expansion": "controlled"}


@pytest.mark.parametrize(
    ("stored", "kind", "model", "changes", "message"),
    [
        (True, "d2s", {}, {}, "expected either `pair` .* or `words`"),
        (True, "d2s", {"pair": "photos-dense", "words": "minilm"}, {}, "expected either `pair`"),
        (True, "joint", BERT, {}, "no text_proj; Joint begins with the projections of a BLIP or ALBEF"),
        (True, "joint", BERT, HALF, "expansion controlled: only d2s and joint mask texts by batch, not info_nce"),
        (True, "joint", BERT, {"expanded_after": 0.5}, "expanded_after: only expansion controlled .* found always"),
        (True, "joint", BERT, {"expanded_after": 0}, "expanded_after: 0, expected a number above 0"),
        (False, "d2s", BERT, {}, "stored vectors .* train d2s and joint with model.words"),
        (True, "d2s", {"pair": "photos-dense", "least": 1}, {}, "data.corpus embeddings:.*model.words"),
    ],
)
def test_heads_without_words_are_refused(stored, kind, model, changes, message, vectors, corpus, golden, tmp_path):  # noqa: F811
    words = {**model, "words": str(golden / "splade/ckpt_distilbert")} if model == BERT else model
    with pytest.raises(LexvlError, match=message):
        train(recipe_of(vectors if stored else corpus, kind, words, **changes), tmp_path, device="cpu")
