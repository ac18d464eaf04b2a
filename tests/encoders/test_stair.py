"""STAIR against an oracle of the paper's equations (shared golden data), and models of our own saved and loaded."""

from __future__ import annotations

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
from lexvl_anserini.encoders.parts.batches import BagTower
from lexvl_anserini.encoders.parts.images.grounding import localise
from lexvl_anserini.encoders.parts.images.pixels import Pixels, place_on_grid
from lexvl_anserini.encoders.parts.images.vision import ImageTower
from lexvl_anserini.encoders.parts.pretrained import TokenHead
from lexvl_anserini.encoders.parts.sparsify import keep_positive
from lexvl_anserini.encoders.parts.tokens import TokenColumns, load_tokenizer
from lexvl_anserini.encoders.parts.towers import Composition, Head, TextTower, log1p_relu, pool_max
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.records import Vocabulary
from lexvl_anserini.localise import command

TINY = StairConfig(
    vocab_size=2000,
    text=TextShape(width=16, layers=2, heads=2, max_length=24),
    image=ImageShape(resolution=24, patch_size=8, width=32, layers=2, heads=4),
)
CAPTIONS = ["a dog on a beach", "", "a man riding a horse on a beach near the ocean", "🐶 一只狗 </s> [SEP]", "PIZZA!"]


# ---- the paper's equations


@pytest.fixture(scope="module")
def oracle(shared: Path):
    return np.load(shared / "golden" / "stair" / "formula_oracle.npz")


def head_of(oracle, side: str) -> TokenHead:
    size, width = oracle["E"].shape
    head = TokenHead(width, width, size, bridge=True, eps=1e-12).double()
    names = {"dense.weight": "dense_w", "dense.bias": "dense_b", "norm.weight": "ln_w", "norm.bias": "ln_b"}
    names["bias"] = "bias"
    head.load_state_dict({key: torch.from_numpy(oracle[f"{side}_{name}"]) for key, name in names.items()})
    return head.eval()


@pytest.mark.shared
@pytest.mark.parametrize("side", ["img", "txt"])
def test_equations_4_and_5_in_double_precision(oracle, side):
    head, embeddings = head_of(oracle, side), torch.from_numpy(oracle["E"])
    logits = head(torch.from_numpy(oracle[f"h_{side}"])) @ embeddings.T + head.bias
    close(logits, oracle[f"logits_{side}"], 1e-9, 1e-9)
    kept = np.ones(logits.shape[:2]) if side == "img" else oracle["txt_mask"]
    masked = torch.from_numpy(np.flatnonzero(kept == 0))
    close(pool_max(logits.detach(), masked, log1p_relu), oracle[f"enc_{side}"], 1e-9, 1e-9)


def composition_of(oracle, side: str, normalise: bool = False) -> Composition:
    head = head_of(oracle, side).float()
    embeddings = torch.from_numpy(oracle["E"]).float()
    hidden = torch.from_numpy(oracle[f"h_{side}"]).float()
    projection = Head(head, embeddings, head.bias.detach())
    return Composition(lambda *_: hidden, projection, log1p_relu, pool_max, keep_positive(), normalise)


def columns_of(oracle, specials: tuple[int, ...]) -> TokenColumns:
    """[PAD] is token 0, [CLS] 1, [SEP] 2."""
    of_token = np.arange(len(oracle["E"]))
    of_token[list(specials)] = -1
    return TokenColumns(Vocabulary(f"t{i}" for i in range(len(of_token))), of_token)


def text_inputs(oracle) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    attention = torch.from_numpy(oracle["txt_mask"])
    return (torch.from_numpy(oracle["txt_ids"]), attention), attention == 0


def text_tower(oracle, normalise: bool = False) -> TextTower:
    return TextTower(composition_of(oracle, "txt", normalise), None, columns_of(oracle, (0,)))


def own_tower(oracle, specials: tuple[int, ...], normalise: bool = False) -> OwnTokenTower:
    return OwnTokenTower(composition_of(oracle, "txt"), None, columns_of(oracle, specials), normalise=normalise)


def image_tower(oracle, normalise: bool = False) -> ImageTower:
    return ImageTower(composition_of(oracle, "img", normalise), Pixels(8), columns_of(oracle, (0,)))


@pytest.mark.shared
@torch.inference_mode()
def test_towers_give_the_equations(oracle):
    inputs, padding = text_inputs(oracle)
    close(text_tower(oracle).pooled(inputs, padding), oracle["enc_txt"])
    close(text_tower(oracle).pooled(inputs, None), oracle["enc_txt_without_pad_masking"])
    close(image_tower(oracle).pooled((torch.zeros(5),), None), oracle["enc_img"])
    images = image_tower(oracle, normalise=True).pooled((torch.zeros(5),), None)
    close(images @ text_tower(oracle, normalise=True).pooled(inputs, padding).T, oracle["sim_cos"])


@pytest.mark.shared
@torch.inference_mode()
@pytest.mark.parametrize("name,specials", [("incl_special", (0,)), ("no_special", (0, 1, 2))])
def test_texts_masked_to_their_own_tokens(oracle, name, specials):
    """Equation 8; the fifth text has no token but special ones."""
    inputs, padding = text_inputs(oracle)
    plain = own_tower(oracle, specials)
    expected = oracle[f"enc_txt_masked_{name}"]
    close(plain.pooled(inputs, padding), expected)
    bags = plain.columns.own([row[: n.sum()] for row, n in zip(oracle["txt_ids"], oracle["txt_mask"], strict=True)])
    assert [dims.tolist() for dims in bags] == [np.flatnonzero(row).tolist() for row in oracle[f"bow_mask_{name}"]]
    norms = np.linalg.norm(expected, axis=1, keepdims=True)
    unit = own_tower(oracle, specials, normalise=True).pooled(inputs, padding)
    close(unit, expected / np.maximum(norms, 1e-12))


@pytest.mark.shared
@torch.inference_mode()
def test_scores_without_text_encoder(oracle):
    bags = torch.from_numpy(oracle["bow_mask_no_special"]).float()
    for normalise, name in ((False, "dot"), (True, "cos")):
        images = image_tower(oracle, normalise).pooled((torch.zeros(5),), None)
        queries = torch.nn.functional.normalize(bags, dim=1) if normalise else bags
        close(queries @ images.T, oracle[f"text_encoder_free_{name}"])


@pytest.mark.shared
def test_localisation_maps(oracle):
    """The class token is no cell; several tokens average (7 alone, 7 and 12)."""
    cells = place_on_grid(torch.from_numpy(oracle["logits_img"]))  # [5, 3, 3, 60]
    close(cells[..., 7].flatten(1), oracle["heat_single"], 1e-9, 1e-9)
    close(cells[..., [7, 12]].mean(-1).flatten(1), oracle["heat_two"], 1e-9, 1e-9)


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


def test_saved_and_loaded(folder, tokenizer, images, tmp_path):
    model, encoder = made(), load(folder)
    matrices = [tower.composition.head.matrix for tower in (encoder.query, encoder.document)]
    assert matrices[0].data_ptr() == matrices[1].data_ptr(), "the vocabulary is tied"
    assert sorted(path.name for path in folder.iterdir() if "token" not in path.name) == [
        "config.json",
        "model.safetensors",
    ]
    with torch.inference_mode():
        ids, attention = (torch.tensor(tokenizer("a photo of a dog")[k])[None] for k in ("input_ids", "attention_mask"))
        logits = model.text_head(model.text(ids, attention)) @ model.embeddings.T + model.text_head.bias
        text = log1p_relu(logits.amax(1))
        pixels = Pixels(24).normalise(torch.tensor(Pixels(24).crop(images[0]))[None])
        logits = model.image_head(model.image(pixels)) @ model.embeddings.T + model.image_head.bias
        image = log1p_relu(logits.amax(1))
    close(encoder.query.dense_weights(["a dog"]), text / text.norm())
    unprompted = load(folder, prompt="").query.dense_weights(["a photo of a dog"])
    close(unprompted, encoder.query.dense_weights(["a dog"]), 0, 0)
    close(encoder.document.dense_weights(images[:1]), image / image.norm())
    plain = load(folder, normalise=False)
    close(plain.query.dense_weights(["a dog"]), text)
    close(plain.document.weights(images[:1]).toarray(), image)
    save_stair(made(), tokenizer, tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
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


def test_text_encoder_free(folder, tokenizer):
    encoder = load(folder, text_encoder_free=True)
    assert isinstance(encoder.query, BagTower) and encoder.query.binary
    bag = encoder.query.weights(["a dog, a dog"])
    expected = sorted(tokenizer.convert_tokens_to_ids(["a", "dog", ","]))
    assert bag.indices.tolist() == expected and bag.data.tolist() == [1, 1, 1]
    specials = load(folder, text_encoder_free=True, mask_specials=True).query.weights([""])
    assert specials.indices.tolist() == sorted([tokenizer.cls_token_id, tokenizer.sep_token_id])


def test_masked_to_own_tokens(folder, tokenizer):
    own = load(folder, text_mask="own", prompt="", normalise=False).query.weights(["a dog"])
    whole = load(folder, prompt="", normalise=False).query.dense_weights(["a dog"])
    ids = sorted(tokenizer.convert_tokens_to_ids(["a", "dog"]))
    assert set(own.indices) <= set(ids)
    close(own.toarray()[0, ids], whole[0, ids])
    unit = load(folder, text_mask="own", prompt="").query.dense_weights(["a dog"])
    assert np.linalg.norm(unit) == pytest.approx(1)


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


def test_causal_states_do_not_see_what_follows():
    causal = made(replace(TINY, text=replace(TINY.text, causal=True)))
    both = made()
    ids, ones = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 9]]), torch.ones(2, 4, dtype=torch.long)
    with torch.no_grad():
        states, seeing = causal.text(ids, ones), both.text(ids, ones)
    close(states[0, :2], states[1, :2])
    assert (seeing[0, :2] - seeing[1, :2]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "image",
    [
        replace(TINY.image, class_token=False),
        replace(TINY.image, stem={"widths": [4, 8, 16], "blocks": [0, 0, 1]}),
        replace(TINY.image, width=16),
    ],
)
@pytest.mark.parametrize("bridge", [True, False])
def test_shapes(tokenizer, images, tmp_path, image, bridge):
    model = made(replace(TINY, image=image, bridge=bridge))
    save_stair(model, tokenizer, tmp_path)
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
