"""Stages over pretrained networks, end to end on coloured squares: what changes, what is stored, resuming, loading."""

import json
import shutil
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_encoders import tiny_vit

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.image_backbones import Classifier, load_image_backbone
from lexvl_anserini.encoders.parts.pretrained import Standard
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_plugins.train.common.tower_pair import ImageBatch, TextBatch
from lexvl_plugins.train.images.captioned import Taught, digest_weights
from lexvl_plugins.train.images.checkpoints import LIKELY, SHARE, match_rows, weigh
from lexvl_plugins.train.images.sides import VdrImageOver, VdrTextOver
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import Recipe, check_recipe
from lexvl_plugins.train.splits import read_splits
from lexvl_plugins.train.words import (
    join_terms,
    learn_terms,
    match_class_words,
    names_something,
    read_class_names,
    read_kinds,
)
from tests.plugins.train.tiny_training import same_weights, tiny_recipe, weights_of, write_squares

HEADS = ["encoder_?.head.*", "encoder_?.bias", "encoder_p.proj"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve coloured squares for training and four for validation, two captions each."""
    return write_squares(tmp_path_factory.mktemp("corpus"), train=12)


@pytest.fixture(scope="module")
def networks(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The checkpoints of both sides."""
    return {"text": str(golden / "splade/ckpt_bert"), "image": str(tiny_vit(tmp_path_factory.mktemp("vit")))}


def recipe_of(corpus: str, networks: dict[str, str], kind: str = "vdr-crossmodal", **second: Any) -> Recipe:
    """Two stages of four steps: the heads over stored features, then with the last layer of the image network."""
    name = {"vdr-crossmodal": "vdr", "dense-crossmodal": "info_nce"}[kind]
    options = {"topk": 8, "normalised": True} if name == "vdr" else {}
    bags = {"learn_bag_temperature": True} if name == "vdr" else {}
    stage = {
        "objective": {"name": name, "learn_temperature": True, "options": options, **bags},
        "trained": HEADS,
        "views": 2,
        "augmentation": {"flip": True},
        "optimisation": {"steps": 4, "batch_size": 4, "warmup_steps": 1, "average": 0.5, "learning_rate": 0.01},
    }
    text = {"checkpoint": networks["text"], "least": 1, "max_length": 16, "dropout": 0.1}
    image = {"checkpoint": networks["image"], "grid": 2, "dropout": 0.1, "cells": 0.3}
    model = {"kind": kind, "topk": 8, "dimensions": 6, "hidden": 10, "text": text, "image": image}
    stages = [stage, {**stage, "trained": [*HEADS, "encoder_p.network.*"], "views": 0, **second}]
    return tiny_recipe(corpus, model, stages=stages, validate_every=4, state_every=2)


@pytest.fixture(scope="module")
def trained(corpus: str, networks: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lexical pair after both stages."""
    return train(recipe_of(corpus, networks), tmp_path_factory.mktemp("trained"), device="cpu")


def test_a_cache_gives_the_same_weights_and_is_read_by_the_next_run(corpus, networks, trained, tmp_path):
    """Stage two unfreezes the network; a third stage, over frozen networks again, computes what they became."""
    recipe = recipe_of(corpus, networks)
    model = train(recipe, tmp_path / "run", device="cpu", cache=tmp_path / "cache")
    assert (model / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()
    names = {entry.name.rpartition("-")[0] for entry in (tmp_path / "cache").iterdir()}
    kinds, roles = ("states", "features", "pixels"), ("training", "validation")
    splits = {f"stored-{what}-{role}" for what in kinds for role in roles}
    assert names == {"stored-standard", *splits} and not list((tmp_path / "run").glob("stored-*"))
    before = {entry: entry.stat().st_mtime_ns for entry in (tmp_path / "cache").iterdir()}
    content = recipe.model_dump(mode="json")
    content["stages"].append(content["stages"][0])
    train(check_recipe(content, "tiny.yaml"), tmp_path / "three", device="cpu", cache=tmp_path / "cache")
    after = {entry: entry.stat().st_mtime_ns for entry in (tmp_path / "cache").iterdir()}
    assert {entry: after[entry] for entry in before} == before
    added = {entry.name.rpartition("-")[0] for entry in after.keys() - before.keys()}
    assert added == {f"stored-features-{role}" for role in roles}


def test_words_that_the_tokenizer_splits_are_terms(trained: Path) -> None:
    model = load_encoder("vdr-crossmodal", str(trained), device="cpu")
    terms = model.query.vocabulary.terms
    assert {"squareling", "red", "grey", "bar"} <= set(terms) and not {"a", "the", "is", "with"} & set(terms)
    alpha = load_encoder("vdr-crossmodal", str(trained), device="cpu", mode="alpha")
    [own] = alpha.decode(alpha.query.weights(["two squarelings, a red one"]), top_k=5)
    assert {term for term, _ in own} == {"squareling", "red"}


def test_only_what_changed_is_saved_and_networks_are_copied(trained: Path, networks: dict[str, str]) -> None:
    saved = weights_of(trained)
    assert any(key.startswith("encoder_p.backbone.") for key in saved)  # stage two changed it
    added = "encoder_q.bert_model.embeddings.word_embeddings.weight.added"
    assert [key for key in saved if key.startswith("encoder_q.bert_model.")] == [added]
    config = json.loads((trained / "config.json").read_text())
    assert config["encoder_p"]["backbone"]["checkpoint"] == "image_network"
    original = Path(networks["image"]) / "model.safetensors"
    assert (trained / "image_network/model.safetensors").read_bytes() == original.read_bytes()


@pytest.mark.parametrize("stop", [2, 4, 6])
def test_a_resumed_run_ends_with_the_same_weights(stop, trained, corpus, networks, tmp_path):
    """Inside stage one, at its end, and inside stage two."""
    recipe = recipe_of(corpus, networks)
    assert train(recipe, tmp_path, device="cpu", stop_after=stop).name == "state"
    assert same_weights(train(recipe, tmp_path, device="cpu"), trained)


def test_every_stage_keeps_a_checkpoint(trained: Path, corpus: str, networks: dict[str, str], tmp_path: Path) -> None:
    """That of stage one is the model of a run that ends there; keeping does not change the weights that follow."""
    recipe = recipe_of(corpus, networks)
    first = recipe.model_copy(update={"stages": recipe.stages[:1]})
    for stop in (3, 5, None):
        model = train(recipe, tmp_path / "run", device="cpu", stop_after=stop, keep_every="stage")
    kept = sorted((tmp_path / "run/kept").iterdir())
    assert [folder.name for folder in kept] == ["stage-1", "stage-2"]
    assert same_weights(kept[0], train(first, tmp_path / "first", device="cpu"))
    assert same_weights(kept[1], model) and same_weights(model, trained)
    assert not same_weights(kept[0], model)
    assert load_encoder("vdr-crossmodal", str(kept[0]), device="cpu").kind == "impact"
    about = json.loads((kept[0] / "training.json").read_text())
    assert about["validation"]["step"] == 4


def test_the_state_of_the_stage_before_is_used_where_the_newest_is_damaged(trained, corpus, networks, tmp_path):
    recipe = recipe_of(corpus, networks)
    train(recipe, tmp_path, device="cpu", stop_after=6)  # states of 6 and of 4 steps, the end of stage one
    next((tmp_path / "state").glob("*.safetensors")).write_bytes(b"")
    assert same_weights(train(recipe, tmp_path, device="cpu"), trained)


def test_dense_twins_teach(corpus: str, networks: dict[str, str], tmp_path: Path) -> None:
    folder = train(recipe_of(corpus, networks, "dense-crossmodal"), tmp_path / "dense", device="cpu")
    model = load_encoder("dense-crossmodal", str(folder), device="cpu")
    vectors = model.query.vectors(["a red squareling", ""])
    assert vectors.shape == (2, 6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    taught = {"auxiliaries": [{"name": "distil", "weight": 1.0}], "teacher": [str(folder), str(folder)]}
    lexical = train(recipe_of(corpus, networks, **taught), tmp_path / "vdr", device="cpu")
    digests = json.loads((lexical / "training.json").read_text())["data"]
    assert digests["the teacher of stage 1"] == digests["teacher 1 of stage 1"]


def test_the_mean_score_of_several_teachers_teaches() -> None:
    """Two teachers of one caption and two images: cosines 1 and 0 of the first, 0.6 and 0.8 of the second."""
    first = (torch.eye(2), torch.tensor([[1.0, 0.0]]))
    second = (torch.tensor([[0.6, 0.8, 0.0], [0.8, 0.6, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
    scores = Taught.join([first, second]).score(np.array([0]), np.array([0, 1]))
    np.testing.assert_allclose(scores.numpy(), [[0.8, 0.4]], rtol=1e-6)


def test_held_out_images_validate_and_do_not_train(corpus: str, networks: dict[str, str]) -> None:
    recipe = recipe_of(corpus, networks).model_dump(mode="json")
    split = read_splits(check_recipe({**recipe, "data": {"corpus": corpus, "held_out": 5}}, "tiny.yaml"), None)
    assert list(split["validation"].ids) == ["0", "5", "10"]
    assert len(split["training"].ids) == 9 and not set(split["training"].ids) & {"0", "5", "10"}


def test_a_recipe_of_stages_that_does_not_fit_raises(corpus: str, networks: dict[str, str]) -> None:
    content = recipe_of(corpus, networks).model_dump(mode="json")
    with pytest.raises(UsageError, match="expansion: a key of a stage, and .* has several; set stages.0.expansion"):
        check_recipe({**content, "expansion": "never"}, "tiny.yaml")
    with pytest.raises(UsageError, match="the auxiliary 'distil' and a teacher need each other"):
        recipe_of(corpus, networks, teacher="photos-dense")


def test_another_network_than_the_trained_one_is_refused(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "model")
    config = tmp_path / "model/image_network/config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(CheckpointError, match="was trained over image_network with SHA-256"):
        load_encoder("vdr-crossmodal", str(tmp_path / "model"), device="cpu")


def test_terms_are_frequent_words_of_letters() -> None:
    texts = ["A dog, the dog!", "a cat on 2 mats", "the cat's x"]
    assert learn_terms(texts, least=2) == ["cat", "dog"]
    with pytest.raises(UsageError, match="at least 9 times"):
        learn_terms(texts, least=9)


def test_words_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of several classes have all of them; function words and left-out words are none, known ones kinds only."""
    names = ["tabby cat", "tiger cat", "jack-o'-lantern", "a bell or wind chime"]
    cats, bells = frozenset(names[:2]), frozenset(names[3:])
    kinds = {"cat": cats, "bell": bells, "pet": frozenset(names[:1]), "ship": frozenset()}
    monkeypatch.setattr("lexvl_plugins.train.words.read_kinds", lambda: kinds)
    classes = match_class_words(names, known=["wind", "cat"])
    expected = {"bell": [3], "chime": [3], "lantern": [2], "pet": [0], "tabby": [0], "tiger": [1], "cat": [0, 1]}
    assert list(classes.items()) == list(expected.items())
    assert join_terms(["cat", "wind"], classes) == ["cat", "wind", *list(expected)[:-1]]
    (tmp_path / "names.json").write_text(json.dumps(names))
    assert read_class_names(tmp_path / "names.json") == names
    for content in ("{}", "[1]", "["):
        (tmp_path / "names.json").write_text(content)
        with pytest.raises(UsageError, match="names.json: .*JSON"):
            read_class_names(tmp_path / "names.json")


def test_kinds_have_names_of_classes() -> None:
    """Each kind has classes, by names that several kinds spell alike; no left-out word is a kind."""
    kinds = read_kinds()
    assert all(names for names in kinds.values()) and all(map(names_something, kinds))
    assert kinds["rocket"] == {"missile", "space shuttle"} and kinds["bird"] == kinds["birds"] > kinds["owl"]


def test_class_words_weigh_as_much_as_terms_of_captions() -> None:
    """A sure class word is as heavy as an image's heaviest term, a likely one as the last; a term keeps its mean."""

    class Side(VdrImageOver):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.head, self.standard = torch.nn.Identity(), Standard(2)
            self.proj = torch.nn.Parameter(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
            self.bias = torch.nn.Parameter(torch.tensor([1.0, -1.0]))

        def compute_states(self, batch: ImageBatch) -> torch.Tensor:
            return batch.values

    class Text(VdrTextOver):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.head, self.bias = torch.nn.Identity(), torch.nn.Parameter(torch.tensor([0.5, 0.0]))

        def compute_states(self, batch: TextBatch) -> torch.Tensor:
            assert batch.states is not None
            return batch.states

    class Captions:
        def __len__(self) -> int:
            return 2

        def read_batch(self, positions: np.ndarray) -> TextBatch:
            states = torch.tensor([[[1.0, 0.0], [9.0, 9.0]], [[0.0, 2.0], [3.0, 4.0]]])[positions]
            attention = torch.tensor([[1, 0], [1, 1]])[positions]  # the second state of the first text is padding
            return TextBatch(attention, attention, torch.tensor([[True, False], [True, True]])[positions], states)

    class Store:
        def __len__(self) -> int:
            return 2

        def get_plain(self, positions: np.ndarray) -> ImageBatch:
            return ImageBatch(torch.tensor([[[0.0, 0.0]], [[1.0, log(3)]]])[positions])

    classifier = Classifier(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), torch.zeros(2))
    words = {"cat": [0], "dog": [1]}
    found = weigh(Text(), Side(), Captions(), Store(), classifier, words, {"run": 0, "dog": 1})  # type: ignore[arg-type]
    # The terms have the logits 1, -1 and 3, -1: the heaviest 2 in the mean, the last -1.
    slope = 3 / log(1 / LIKELY)
    torch.testing.assert_close(found.scale, torch.tensor([slope, SHARE * slope]))
    torch.testing.assert_close(found.image_bias, torch.tensor([2.0]))
    # The dog has the probabilities 1/2 and 3/4.
    torch.testing.assert_close(found.moved, torch.tensor([0.0, -SHARE * slope * log(3 / 8) / 2]))
    # The texts have the logits 2.5 of their first term, and 6.5 and 0 of both.
    torch.testing.assert_close(found.text_bias, torch.tensor([3.0]))


@pytest.mark.parametrize("kind", ["vdr-crossmodal", "dense-crossmodal"])
def test_a_pair_begins_with_the_weights_of_a_trained_one(kind, trained, corpus, networks, tmp_path):
    """After one step of almost no length, the vectors are those of the start; a word that it lacks has a new row."""
    first = recipe_of(corpus, networks, kind)
    start = trained if kind == "vdr-crossmodal" else train(first, tmp_path / "first", device="cpu")
    content = first.model_dump(mode="json")
    content["model"]["start"] = str(start)
    content["stages"] = content["stages"][1:]
    content["stages"][0]["optimisation"] |= {"steps": 1, "learning_rate": 1e-12, "average": 0.0}
    model = train(check_recipe(content, "second.yaml"), tmp_path / "second", device="cpu")
    found, expected = weights_of(model), weights_of(start)
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[key], expected[key], atol=1e-6) for key in expected)


def test_rows_of_terms_are_matched_by_their_text() -> None:
    rows = match_rows(torch.zeros(3, 1), ("dog", "cat", "red"), torch.tensor([[1.0], [2.0]]), ("red", "dog"))
    assert rows.flatten().tolist() == [2.0, 0.0, 1.0]


def test_a_pair_does_not_begin_with_another_kind_or_over_another_network(trained, corpus, networks, tmp_path):
    content = recipe_of(corpus, networks, "dense-crossmodal").model_dump(mode="json")
    content["model"]["start"] = str(trained)
    with pytest.raises(CheckpointError, match="encoder_q is of type 'vdr_crossmodal_text', expected"):
        train(check_recipe(content, "other.yaml"), tmp_path / "kind", device="cpu")
    content = recipe_of(corpus, {**networks, "image": str(tiny_vit(tmp_path / "vit", seed=5))}).model_dump(mode="json")
    content["model"]["start"] = str(trained)
    with pytest.raises(CheckpointError, match="was trained over image_network with SHA-256"):
        train(check_recipe(content, "other.yaml"), tmp_path / "network", device="cpu")


def test_a_run_stops_after_some_hours_and_goes_on(trained, corpus, networks, tmp_path):
    """Each call has time for one step; eight calls end with the weights of one call, across the end of a stage."""
    recipe = recipe_of(corpus, networks)
    written = [train(recipe, tmp_path, device="cpu", hours=1e-9) for _ in range(8)]
    assert [path.name for path in written] == ["state"] * 7 + ["model"]
    assert same_weights(written[-1], trained)


def test_learning_rates_by_name(corpus: str, networks: dict[str, str], tmp_path: Path) -> None:
    """A network with almost no learning rate keeps its weights while the heads change."""
    slow = {"steps": 2, "batch_size": 4, "learning_rate": 0.01, "learning_rates": {"encoder_p.network.*": 1e-12}}
    run = train(recipe_of(corpus, networks, optimisation=slow), tmp_path / "slow", device="cpu")
    equal = {**slow, "learning_rates": {}}
    fast = train(recipe_of(corpus, networks, optimisation=equal), tmp_path / "fast", device="cpu")
    key = next(key for key in weights_of(fast) if key.startswith("encoder_p.backbone."))
    original = load_image_backbone(networks["image"]).network.state_dict()[key.removeprefix("encoder_p.backbone.")]
    assert torch.allclose(weights_of(run).get(key, original), original, atol=1e-6)  # what is as before is not saved
    assert not torch.allclose(weights_of(fast)[key], original, atol=1e-4)
    wrong = {**slow, "learning_rates": {"encoder_x.*": 1e-4}}
    with pytest.raises(UsageError, match="learning_rates: no weight that changes is named 'encoder_x"):
        train(recipe_of(corpus, networks, optimisation=wrong), tmp_path / "wrong", device="cpu")


def test_the_digest_of_weights_is_that_of_their_values() -> None:
    layer = torch.nn.Linear(2, 1).requires_grad_(False)
    layer.weight.copy_(torch.tensor([[1.0, -0.0]]))
    before = digest_weights(layer)
    layer.weight.lerp_(layer.weight.clone(), 0.25)
    assert digest_weights(layer) == before
    layer.weight[0, 1] = 1e-45
    assert digest_weights(layer) != before
