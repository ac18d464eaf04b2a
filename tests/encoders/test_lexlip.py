"""LexLIP against the reference's outputs (shared golden data), its position bias by hand, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.images.beit import pair_index, position_bias, stretched, window_of
from lexvl_anserini.encoders.parts.images.grounding import localise
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.records import Document, Topic

GOLDEN = Path(__file__).parents[1] / "golden"
TABLE = "encoder.layer.0.attention.attention.relative_position_bias.relative_position_bias_table"


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "golden" / "lexlip"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return json.loads((GOLDEN / "common" / "texts.json").read_text())


@pytest.fixture(scope="module")
def tokenizer(golden) -> Path:
    return golden / "common" / "tokenizer_bert_tiny"


@pytest.fixture(scope="module")
def load(tokenizer) -> Callable[..., Any]:
    return lambda path, **options: load_encoder("lexlip", str(path), str(tokenizer), device="cpu", **options)


def pictures(arrays: np.ndarray) -> list[Image.Image]:
    """PIL images of uint8 [n, 3, R, R]."""
    return [Image.fromarray(array.transpose(1, 2, 0)) for array in arrays]


def close(found: np.ndarray, expected: np.ndarray, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, atol=atol, rtol=1e-5)


# ---- the reference's outputs


@pytest.mark.shared
@pytest.mark.parametrize("phase", ["phase1", "phase2"])
def test_texts(load, folder, texts, phase):
    inputs, expected = np.load(folder / f"{phase}_inputs.npz"), np.load(folder / f"{phase}_outputs.npz")
    tower = load(folder / f"{phase}_model.ckpt", normalise=False).query
    for row, ids, attention in zip(tower.reader(texts), inputs["input_ids"], inputs["attention_mask"], strict=True):
        assert row == ids[attention == 1].tolist()
    close(tower.dense_weights(texts, batch_size=4), expected["text_rep"])
    close(tower.weights(texts).toarray(), expected["text_rep"])


@pytest.mark.shared
@pytest.mark.parametrize(
    "phase,resolution,name",
    [
        ("phase1", 224, "image_rep"),
        ("phase2", 224, "image_rep_224"),
        ("phase2", 112, "image_rep_112_sliced_bias"),
        ("phase2", 384, "image_rep_384_interpolated"),
    ],
)
def test_images(load, folder, phase, resolution, name):
    inputs, expected = np.load(folder / f"{phase}_inputs.npz"), np.load(folder / f"{phase}_outputs.npz")
    tower = load(folder / f"{phase}_model.ckpt", normalise=False, resolution=resolution).document
    images = pictures(inputs[f"images_uint8_{resolution}"])
    close(tower.dense_weights(images, batch_size=2), expected[name])


@pytest.mark.shared
def test_position_bias_of_the_first_layer(load, folder):
    expected = np.load(folder / "phase2_outputs.npz")
    tower = load(folder / "phase2_model.ckpt").document
    table = tower.composition.backbone.beit.get_parameter(TABLE).detach()
    assert table.shape == (732, 2) and window_of(table, "") == 14
    close(position_bias(table, pair_index(14, 729))[:, :3].numpy(), expected["layer0_bias_224_rows012"], atol=1e-6)
    larger = stretched(table, 24)
    close(larger.numpy(), expected["layer0_bias_table_384"], atol=1e-4)
    bias = position_bias(larger, pair_index(24, 729)).numpy()
    close(bias[:, :3], expected["layer0_bias_384_rows012"], atol=1e-4)
    close(bias[:, :, 0], expected["layer0_bias_384_col0"], atol=1e-4)


@pytest.mark.shared
def test_vectors_are_normalised_for_scoring(load, folder, texts):
    inputs, expected = np.load(folder / "phase2_inputs.npz"), np.load(folder / "phase2_outputs.npz")
    model = load(folder / "phase2_model.ckpt")
    images = pictures(inputs["images_uint8_224"])
    text, image = expected["text_rep"], expected["image_rep_224"]
    cosine = (text @ image.T) / np.linalg.norm(text, axis=1)[:, None] / np.linalg.norm(image, axis=1)
    close((model.query.weights(texts) @ model.document.weights(images).T).toarray(), cosine)


@pytest.mark.shared
def test_captions_are_lower_cased_and_cut(load, folder):
    model = load(folder / "phase1_model.ckpt")
    close(model.query.dense_weights(["A DOG On A Beach"]), model.query.dense_weights(["a dog on a beach"]), atol=0)
    assert len(model.query.reader(["dog " * 100])[0]) == 40
    assert len(load(folder / "phase1_model.ckpt", text_max_length=12).query.reader(["dog " * 100])[0]) == 12


@pytest.mark.shared
def test_directions_and_topk(load, folder):
    checkpoint = folder / "phase1_model.ckpt"
    image = Image.new("RGB", (70, 50), (200, 30, 30))
    there, back = load(checkpoint, topk=7, query_topk=3), load(checkpoint, direction="image-to-text", topk=7)
    assert there.query.read_topic(Topic("q", text="a")) == "a" and there.document.read(Document("d", image="x")) == "x"
    assert back.query.read_topic(Topic("q", image="x")) == "x" and back.document.read(Document("d", text="a")) == "a"
    assert there.query.weights(["a dog"]).nnz == 3 and there.document.weights([image]).nnz == 7
    assert back.query.weights([image]).nnz == 7 and back.document.weights(["a dog"]).nnz == 7
    captions = load(checkpoint, direction="text-to-text")
    close(captions.query.dense_weights(["a dog"]), captions.document.dense_weights(["a dog"]), atol=0)
    with pytest.raises(UsageError, match="topk 0"):
        load(checkpoint, topk=0)


@pytest.mark.shared
def test_localise(folder, load):
    """A map has a cell per patch; the class token, which the vector has beside them, has none."""
    images = pictures(np.load(folder / "phase1_inputs.npz")["images_uint8_224"])
    model = load(folder / "phase1_model.ckpt", normalise=False)
    maps = localise(model, images, "Dog", "activation")
    assert maps.shape == (3, 14, 14)
    dog = model.document.vocabulary.dimension["dog"]
    assert (maps.max(axis=(1, 2)) <= model.document.dense_weights(images)[:, dog] + 1e-5).all()


# ---- position bias by hand


def test_pairs_of_a_grid_of_two():
    """Patches 0 1 / 2 3; the entry of (i, j) is (dy + 1) * 3 + dx + 1 with d the way from j to i."""
    class_row = [9, 9, 9, 9]
    expected = [
        [11, *class_row],
        [10, 4, 3, 1, 0],
        [10, 5, 4, 2, 1],
        [10, 7, 6, 4, 3],
        [10, 8, 7, 5, 4],
    ]
    assert pair_index(2, 9).tolist() == expected


@given(grid=st.integers(1, 6))
def test_pairs_of_equal_distance_share_an_entry(grid):
    index = pair_index(grid, (2 * grid - 1) ** 2).numpy()
    places = [divmod(i, grid) for i in range(grid * grid)]
    seen: dict[tuple[int, int], int] = {}
    for i, (y, x) in enumerate(places):
        for j, (v, u) in enumerate(places):
            assert seen.setdefault((y - v, x - u), index[1 + i, 1 + j]) == index[1 + i, 1 + j]
    assert sorted([*seen.values(), index[0, 1], index[1, 0], index[0, 0]]) == list(range((2 * grid - 1) ** 2 + 3))


def test_table_of_no_square_grid():
    assert window_of(torch.zeros(12, 1), "") == 2
    for entries in (0, 3, 7, 11, 13):
        with pytest.raises(CheckpointError, match=f"here: a table of {entries} entries"):
            window_of(torch.zeros(entries, 1), "here")


def test_a_stretched_constant_stays_constant():
    larger = stretched(torch.full((12, 3), 2.5), 5)
    assert larger.shape == (84, 3)
    assert torch.allclose(larger, torch.tensor(2.5))


# ---- a checkpoint of one's own


@pytest.fixture()
def parts() -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint of width 8, one layer, grid 2 of 4-pixel patches, over the tiny vocabulary."""
    generator = torch.Generator().manual_seed(7)

    def layer(names: dict[str, tuple[int, ...]], prefix: str) -> dict[str, torch.Tensor]:
        return {prefix + name: torch.randn(shape, generator=generator) for name, shape in names.items()}

    linear = {"weight": (8, 8), "bias": (8,)}
    norm = {"weight": (8,), "bias": (8,)}
    text = {
        "embeddings.word_embeddings.weight": (2000, 8),
        "embeddings.position_embeddings.weight": (48, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
        **{f"embeddings.LayerNorm.{k}": v for k, v in norm.items()},
    }
    for place in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
        text |= {f"encoder.layer.0.{place}.{k}": v for k, v in linear.items()}
    for place in ("attention.output.LayerNorm", "output.LayerNorm"):
        text |= {f"encoder.layer.0.{place}.{k}": v for k, v in norm.items()}
    mlp = {
        "intermediate.dense.weight": (16, 8),
        "intermediate.dense.bias": (16,),
        "output.dense.weight": (8, 16),
        "output.dense.bias": (8,),
    }
    text |= {f"encoder.layer.0.{k}": v for k, v in mlp.items()}
    image = {
        "embeddings.cls_token": (1, 1, 8),
        "embeddings.patch_embeddings.projection.weight": (8, 3, 4, 4),
        "embeddings.patch_embeddings.projection.bias": (8,),
        "encoder.layer.0.lambda_1": (8,),
        "encoder.layer.0.lambda_2": (8,),
        "encoder.layer.0.attention.attention.key.weight": (8, 8),
        TABLE: (12, 2),
    }
    for place in ("attention.attention.query", "attention.attention.value", "attention.output.dense"):
        image |= {f"encoder.layer.0.{place}.{k}": v for k, v in linear.items()}
    for place in ("layernorm_before", "layernorm_after"):
        image |= {f"encoder.layer.0.{place}.{k}": v for k, v in norm.items()}
    image |= {f"encoder.layer.0.{k}": v for k, v in mlp.items()}
    head = {
        **{f"transform.dense.{k}": v for k, v in linear.items()},
        **{f"transform.LayerNorm.{k}": v for k, v in norm.items()},
        "decoder.weight": (2000, 8),
        "decoder.bias": (2000,),
    }
    weights = {
        **layer(text, "text_transformer.bert."),
        **layer(head, "text_transformer.cls.predictions."),
        **layer(image, "image_transformer.beit."),
        **layer(norm, "image_transformer.layernorm."),
        **layer(head, "mlm_head_for_image.predictions."),
    }
    for prefix in ("text_transformer.cls.predictions.", "mlm_head_for_image.predictions."):
        weights[f"{prefix}bias"] = weights[f"{prefix}decoder.bias"]
    return weights


def saved(parts: dict[str, torch.Tensor], path: Path, image_size: int = 8) -> Path:
    torch.save({"state_dict": parts, "hyper_parameters": {"config": {"image_size": image_size}}}, path)
    return path


def test_resolution_is_what_the_checkpoint_was_trained_with(load, parts, tmp_path):
    image = Image.fromarray(np.arange(12 * 12 * 3, dtype=np.uint8).reshape(12, 12, 3))
    tuned = load(saved(parts, tmp_path / "tuned.ckpt", 12))
    assert tuned.document.pixels.resolution == 12
    asked = load(saved(parts, tmp_path / "before.ckpt"), resolution=12)
    close(tuned.document.dense_weights([image]), asked.document.dense_weights([image]), atol=0)
    with pytest.raises(UsageError, match="resolution 10: expected a multiple of the patches' 4 pixels"):
        load(tmp_path / "before.ckpt", resolution=10)


def test_folder_with_its_own_tokenizer(tokenizer, load, parts, tmp_path):
    alone = load(saved(parts, tmp_path / "model.ckpt"))
    shutil.copytree(tokenizer, tmp_path / "folder")
    saved(parts, tmp_path / "folder" / "model.ckpt")
    whole = load_encoder("lexlip", str(tmp_path / "folder"), device="cpu")
    close(whole.query.dense_weights(["a dog"]), alone.query.dense_weights(["a dog"]), atol=0)


def test_tokenizer_that_cannot_be_had(parts, tmp_path):
    with pytest.raises(CheckpointError, match="bert-base-uncased.*--tokenizer"):
        load_encoder("lexlip", str(saved(parts, tmp_path / "model.ckpt")), device="cpu")


def test_a_named_configuration_says_the_heads(load, parts, tmp_path):
    import transformers

    checkpoint = saved(parts, tmp_path / "model.ckpt")
    for heads in (2, 4):
        transformers.BertConfig(
            vocab_size=2000,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=heads,
            intermediate_size=16,
            max_position_embeddings=48,
        ).save_pretrained(tmp_path / str(heads))
    plain = load(checkpoint).query.dense_weights(["a dog"])
    two, four = (load(checkpoint, backbone_config=str(tmp_path / h)).query.dense_weights(["a dog"]) for h in "24")
    assert (plain == two).all() and np.abs(two - four).max() > 1e-4


def test_training_only_weights_are_left_out(load, parts, tmp_path):
    plain = load(saved(parts, tmp_path / "model.ckpt")).query.dense_weights(["a dog"])
    extra = {
        "moco_text_transformer.bert.x": torch.zeros(1),
        "image_queue": torch.zeros(3, 2),
        "text_queue_ptr": torch.zeros(1),
        "text_transformer.decoder_heads.0.output.dense.bias": torch.zeros(8),
        f"image_transformer.beit.{TABLE.removesuffix('bias_table')}index": torch.zeros(5, 5),
    }
    close(load(saved({**parts, **extra}, tmp_path / "more.ckpt")).query.dense_weights(["a dog"]), plain, atol=0)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"image_transformer.layernorm.bias": None}, "missing: layernorm.bias"),
        ({"text_transformer.bert.embeddings.LayerNorm.bias": None}, "missing: embeddings.LayerNorm.bias"),
        ({"text_transformer.cls.predictions.decoder.weight": None}, "decoder.weight is missing"),
        ({"mlm_head_for_image.predictions.transform.dense.bias": None}, "missing: transform.dense.bias"),
        ({f"image_transformer.beit.{TABLE}": None}, "missing: beit.encoder.layer.0.*bias_table"),
        ({f"image_transformer.beit.{TABLE}": torch.zeros(13, 2)}, "bias_table: a table of 13 entries"),
        ({"image_transformer.extra": torch.zeros(1)}, "unexpected: extra"),
        ({"projection.weight": torch.zeros(1)}, "unexpected: projection.weight"),
        ({"image_transformer.beit.encoder.layer.0.lambda_1": torch.zeros(9)}, r"mis-shaped: .*lambda_1 \[9\]"),
        ({"text_transformer.cls.predictions.bias": torch.ones(2000)}, "bias differs from .*decoder.bias"),
    ],
)
def test_weights_that_do_not_fit(load, parts, tmp_path, change, message):
    parts |= change
    checkpoint = saved({k: v for k, v in parts.items() if v is not None}, tmp_path / "model.ckpt")
    with pytest.raises(CheckpointError, match=message) as caught:
        load(checkpoint)
    assert str(checkpoint) in str(caught.value)


def test_another_models_checkpoint(load, tmp_path):
    torch.save({"bert.embeddings.LayerNorm.bias": torch.zeros(8)}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"missing: image_transformer\.\*.*unexpected: bert\.embeddings"):
        load(tmp_path / "model.pt")


def test_vocabulary_of_another_size(load, parts, tmp_path):
    for prefix in ("text_transformer.cls.predictions.", "mlm_head_for_image.predictions."):
        for name in ("bias", "decoder.bias", "decoder.weight"):
            parts[prefix + name] = parts[prefix + name][:1500]
    with pytest.raises(CheckpointError, match="the head has 1500 dimensions, the vocabulary 2000 terms"):
        load(saved(parts, tmp_path / "model.ckpt"))


def test_a_vector_depends_on_its_own_picture_only(load, parts, tmp_path):
    model = load(saved(parts, tmp_path / "model.ckpt"))
    rng = np.random.default_rng(1)
    images = [Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for h, w in ((9, 20), (30, 8), (1, 1))]
    alone = np.concatenate([model.document.dense_weights([image]) for image in images])
    close(model.document.dense_weights(images[::-1], batch_size=2)[::-1], alone)
    captions = ["a dog", "", "a man riding a horse on a beach", "🐶 一只狗 </s> [SEP]"]
    alone = np.concatenate([model.query.dense_weights([text]) for text in captions])
    close(model.query.dense_weights(captions[::-1], batch_size=3)[::-1], alone)
