"""The systems of the suite encode on toy models: same vectors, costs counted, memory above the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from eval.efficiency import image_models, text_models
from eval.efficiency.encode import TOLERANCE
from lexvl_anserini.encoders.parts.texts.tokens import load_tokenizer

TOY_BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
TOY_VISION = {"width": 32, "layers": 1, "heads": 2, "patch_size": 112}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy-bert")
    text_models.write_model(folder, 0, **TOY_BERT)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy-vit")
    image_models.write_model(folder, 0, **TOY_VISION)
    return image_models.make(str(folder), "image", 3, 0, None, None, 0)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_texts_have_the_lengths_asked_for(model):
    made = text_models.make(str(model), "splade", 6, 20, None, None, 0)["cases"]
    assert text_models.token_lengths(str(model), made["20 tokens"]) == [20] * 6
    mixed = text_models.token_lengths(str(model), made["mixed lengths"])
    assert len(set(mixed)) > 1 and min(mixed) >= 3 and max(mixed) <= text_models.MOST_TOKENS


def test_texts_of_a_corpus(model):
    cases = text_models.make(str(model), "splade", 2, 20, "demo", None, 0)["cases"]
    assert len(cases["mixed lengths"]) == 2 and " " in cases["mixed lengths"][0]


def test_mixed_lengths_are_those_of_passages():
    lengths = text_models.mixed_lengths(np.random.default_rng(0), 4000)
    assert np.median(lengths) == pytest.approx(text_models.MEDIAN_TOKENS, rel=0.05)


def test_the_model_gives_about_as_many_terms_as_a_trained_one(model):
    [text] = text_models.synthetic_texts(load_tokenizer(model), [64], np.random.default_rng(0))
    positive = (text_models.load_ours("splade", str(model)).dense([text]) > 0).sum()
    assert abs(int(positive) - text_models.SPLADE_TERMS) < 5


@pytest.mark.parametrize(
    "shape,systems", [("splade", ["ours", "sentence-transformers", "naive"]), ("vdr", ["ours", "naive"])]
)
def test_systems_give_the_same_vectors(model, shape, systems):
    texts = ["a boat on the sea", "moon", "", "words and more words " * 10]
    found = text_models.compare(shape, str(model), texts, 2, 1, systems, 2)
    assert set(found["differences"]) == set(found["costs"]) == set(systems)
    assert max(found["differences"].values()) <= TOLERANCE
    assert all(len(rounds) == 2 and rounds[0]["cpu_s"] > 0 for rounds in found["costs"].values())
    # Texts of different lengths have no one product to compare with.
    assert "matrix_product_floor_cpu_s" not in found["figures"]


def test_vectors_of_the_naive_formula_keep_the_top_k(model):
    vectors = text_models.load_naive("vdr", str(model)).vectors(["a boat", "the moon"], 1)
    assert vectors.getnnz(axis=1).tolist() == [text_models.VDR_TERMS] * 2


def test_equal_lengths_are_compared_with_the_floor(model):
    texts = text_models.synthetic_texts(load_tokenizer(model), [12] * 3, np.random.default_rng(0))
    figures = text_models.compare("vdr", str(model), texts, 2, 1, ["ours"], 1)["figures"]
    assert figures["mean_tokens"] == 12.0
    assert figures["matrix_product_floor_cpu_s"] >= 0 and figures["ours_over_floor"] > 0


def test_products_of_bert_base():
    """Multiplications per token: 12 layers of 4 x 768^2 + 2 x 768 x 3072, the attention's, and the head's."""
    config = {
        "num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
        "vocab_size": 30_522,
    }  # fmt: skip
    batch, length = 2, 128
    multiplications = sum(
        count * int(np.prod(left)) * right[-1]
        for count, left, right in text_models.products(config, batch, length, "vdr")
    )
    per_token = 12 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 768 * length) + 768 * (30_522 - 999)
    assert multiplications == batch * length * per_token
    splade = text_models.products(config, batch, length, "splade")
    assert (1, (256, 768), (768, 768)) in splade and (1, (256, 768), (768, 30_522)) in splade


def test_the_last_batch_may_be_smaller(monkeypatch):
    asked = []
    monkeypatch.setattr(text_models, "products", lambda config, batch, length, shape: asked.append(batch) or [])
    assert text_models.matrix_product_seconds({}, 70, 8, 32, "vdr") == 0.0
    assert asked == [6, 32]


def test_naive_needs_more_memory(model):
    """Full logits of 8 texts of 200 tokens are 8 x 200 x 30,522 floats, 186 MiB."""
    texts = text_models.synthetic_texts(load_tokenizer(model), [200] * 8, np.random.default_rng(0))
    peaks = {name: text_models.peak("splade", str(model), texts, 8, 1, name) for name in ("ours", "naive")}
    assert peaks["naive"]["extra"] > 180 << 20
    assert peaks["ours"]["extra"] < peaks["naive"]["extra"] / 2


def test_images_give_the_same_vectors_and_tell_where_time_goes(pictures):
    paths = pictures["cases"]["pictures"]
    assert len(paths) == 3 and all(Path(path).is_file() for path in paths)
    found = image_models.compare("image", pictures["folder"], paths, 2, 1, ["ours", "naive"], 1)
    assert found["differences"]["naive"] <= TOLERANCE
    figures = found["figures"]
    assert figures["vocabulary"] == 27_623
    assert figures["forward_share"] + figures["pictures_share"] + figures["other_share"] == pytest.approx(1, abs=1e-3)
    assert min(figures.values()) > 0


def test_image_memory_is_counted_above_the_model(pictures):
    peaks = image_models.peak("image", pictures["folder"], pictures["cases"]["pictures"], 3, 1, "ours")
    assert peaks["before"] > 0 and peaks["extra"] >= 0
