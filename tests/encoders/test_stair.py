"""STAIR and LexLIP: models of our own saved and loaded, and localisation; tests/oracle has the equations."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tiny_encoders import close, made_lexlip
from torch import nn
from typer.testing import CliRunner

from lexvl_anserini.cli import make_app
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.families.stair import ImageShape, OwnTokenTower, Stair, StairConfig, TextShape, save_stair
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.grounding import localise
from lexvl_anserini.encoders.parts.tokens import load_tokenizer
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.localise import command

TINY = StairConfig(
    vocab_size=2000,
    text=TextShape(width=16, layers=2, heads=2, max_length=24),
    image=ImageShape(resolution=24, patch_size=8, width=32, layers=2, heads=4),
)
# ---- a model of our own


def made(config: StairConfig = TINY) -> Stair:
    torch.manual_seed(11)
    model = Stair(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.25
    return model.eval()


@pytest.fixture(scope="module")
def tokenizer(golden):
    return load_tokenizer(golden / "common" / "tokenizer_bert_tiny")


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("stair") / "model"
    save_stair(made(), tokenizer, path)
    return path


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    rng = np.random.default_rng(5)
    return [Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for h, w in ((24, 24), (60, 31), (1, 9))]


def load(folder: Path, **options) -> Encoder:
    return load_encoder("stair", str(folder), device="cpu", **options)


def test_saved_and_loaded(folder, tokenizer, tmp_path):
    encoder = load(folder)
    matrices = [tower.composition.head.matrix for tower in (encoder.query, encoder.document)]
    assert matrices[0].data_ptr() == matrices[1].data_ptr(), "the vocabulary is tied"
    files = ["config.json", "model.safetensors"]
    assert sorted(path.name for path in folder.iterdir() if "token" not in path.name) == files
    unprompted = load(folder, prompt="").query.dense_weights(["a photo of a dog"])
    close(unprompted, encoder.query.dense_weights(["a dog"]), 0, 0)
    save_stair(made(), tokenizer, tmp_path / "again")
    for name in files:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_loading_warns_of_nothing(folder, monkeypatch):
    """transformers' logger does not propagate, so that pytest's own fixture does not see it."""
    said: list[str] = []
    monkeypatch.setattr(logging.Logger, "handle", lambda logger, record: said.append(record.getMessage()))
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_warning()
    load(folder)
    transformers.utils.logging.set_verbosity(before)
    assert said == []


def test_parameters_of_the_papers_table():
    """53.8 M for texts (embeddings counted there), 86.8 M for images."""
    with torch.device("meta"):
        model, narrow = Stair(StairConfig()), Stair(StairConfig(bridge=False))

    def millions(*parts: nn.Module) -> float:
        return round(sum(p.numel() for part in parts for p in part.parameters()) / 1e6, 1)

    assert millions(model.text, model.text_head) == 53.8
    assert millions(model.image, model.image_head) == 86.8
    assert millions(narrow.image, narrow.image_head) == 86.2


def test_special_tokens_of_bags_if_asked(folder, tokenizer):
    specials = load(folder, text_encoder_free=True, mask_specials=True).query.weights([""])
    assert specials.indices.tolist() == sorted([tokenizer.cls_token_id, tokenizer.sep_token_id])


def test_stage_one_is_masked_by_default(tokenizer, tmp_path):
    for stage in ("1", "2", "3", "single"):
        save_stair(made(replace(TINY, stage=stage)), tokenizer, tmp_path)
        assert isinstance(load(tmp_path).query, OwnTokenTower) == (stage == "1")
        assert not isinstance(load(tmp_path, text_mask="none").query, OwnTokenTower)


def test_padding_takes_part_if_asked(folder):
    shorter = load(folder, padding="max_length", text_max_length=8, normalise=False).query.dense_weights(["a dog"])
    without = load(folder, normalise=False, text_max_length=8).query.dense_weights(["a dog"])
    assert (shorter >= without - 1e-5).all() and (shorter > without + 1e-3).any()
    with pytest.raises(UsageError, match="max_length 25"):
        load(folder, text_max_length=25)


def test_a_convolutional_stem(tokenizer, images, tmp_path):
    stem = {"widths": [4, 8, 16], "blocks": [0, 0, 1]}
    save_stair(made(replace(TINY, image=replace(TINY.image, stem=stem))), tokenizer, tmp_path)
    weights = load(tmp_path).document.weights(images)
    assert weights.shape == (3, 2000) and (weights.data > 0).all() and weights.nnz


def edited(folder: Path, target: Path, **changes) -> Path:
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    about = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**about, **changes}))
    return target


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"model_type": "bert"}, "model_type 'bert', expected 'stair'"),
        ({"model_type": None}, "save_stair"),
        ({"bridges": True}, "bridges: "),
        ({"text": {"width": 16, "depth": 2}}, "text.depth: "),
        ({"text": {"width": 16, "heads": 3}}, "text: width 16 does not divide by 3 heads"),
        ({"stage": "4"}, "stage: .*'single', '1', '2' or '3'"),
        ({"image": {**vars(TINY.image), "width": 16}}, "mis-shaped: image.class_embedding"),
        ({"vocab_size": 2001}, "mis-shaped: .*text.token_embedding.weight"),
    ],
)
def test_configurations_that_do_not_fit(folder, tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message):
        load(edited(folder, tmp_path, **changes))


# ---- LexLIP, the other lexical pair over networks


def test_captions_of_lexlip_are_cut_and_another_checkpoint_is_refused(golden, tmp_path):
    folder = made_lexlip(golden, tmp_path)
    for options, length in (({}, 40), ({"text_max_length": 12}, 12)):
        model = load_encoder("lexlip", str(folder), device="cpu", **options)
        assert len(model.query.reader(["dog " * 100])[0]) == length
    about = (folder / "config.json").read_text()
    (folder / "config.json").write_text(about.replace("lexlip_text", "stair_text"))
    with pytest.raises(CheckpointError, match="encoder_q is of type 'stair_text', expected 'lexlip_text'"):
        load_encoder("lexlip", str(folder), device="cpu")


# ---- localisation


def test_localise(folder, images, tokenizer):
    encoder = load(folder)
    dog, beach = (tokenizer.convert_tokens_to_ids(word) for word in ("dog", "beach"))
    maps = localise(encoder, images, "dog")
    assert maps.shape == (3, 3, 3)
    both = localise(encoder, images, "beach dog dog")
    close(both, (maps + localise(encoder, images, "beach")) / 2)
    assert (localise(encoder, images, "Dog beach") == both).all()
    whole = load(folder, normalise=False).document.dense_weights(images)
    activations = localise(encoder, images, "dog", "activation")
    # The class token may exceed every cell, never the other way round.
    assert (activations.max(axis=(1, 2)) <= whole[:, dog] + 1e-5).all() and (activations >= 0).all()
    for query in ("", "[SEP]"):
        with pytest.raises(UsageError, match="none of its tokens"):
            localise(encoder, images, query)
    close(localise(load(folder, text_encoder_free=True), images, "dog"), maps, 0, 0)
    close(localise(load(folder, direction="image-to-text"), images, "dog"), maps, 0, 0)
    tower = encoder.document
    for other, message in (
        (load(folder, direction="text-to-text"), "no image side"),
        (Encoder("pictures", "impact", tower, tower), "reads no texts"),
    ):
        with pytest.raises(UsageError, match=message):
            localise(other, images, "dog")


def test_localise_command(folder, images, tmp_path):
    images[1].save(tmp_path / "noise.png")
    arguments = ["--encoder", "stair", "--checkpoint", str(folder), "--image", str(tmp_path / "noise.png")]
    arguments += ["--query", "dog", "--query", "beach", "--device", "cpu", "--output", str(tmp_path / "maps")]
    done = CliRunner().invoke(make_app(command), [*arguments, "--format", "json"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["query"] for row in rows] == ["dog", "beach"]
    close(np.array(rows[0]["grid"]), localise(load(folder), [images[1]], "dog")[0])
    files = sorted((tmp_path / "maps").iterdir())
    assert [path.name for path in files] == ["000.noise.png", "001.noise.png"]
    assert Image.open(files[0]).size == (31, 60)
