"""BGE-M3 against the published package, by hand, and folders that it refuses."""

import json

import numpy as np
import pytest
import torch
from declared import GOLDEN
from PIL import Image

from lexvl_anserini.encoders.checkpoints.find import list_model_files
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from tests.plugins.models.model_folders import write_bge_m3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder that the reference read."""
    return write_bge_m3(tmp_path_factory.mktemp("bge-m3") / "model")


def load(folder, **options):
    return load_encoder("bge-m3", str(folder), device="cpu", **options)


def test_weights_are_those_of_the_published_package(folder):
    reference = np.load(GOLDEN / "families/bge-m3.npz")
    texts, expected = json.loads(reference["inputs/texts"].tobytes()), reference["outputs/weights"]
    model = load(folder, max_length=40, query_max_length=40)
    for tower in (model.query, model.document):
        np.testing.assert_allclose(tower.weights(texts).toarray(), expected, atol=1e-5)
    assert (expected > 0).sum(axis=1).tolist().count(0) == 1, "only the empty text has no weight"
    masked = model.vocabulary.dimension["<mask>"]
    assert expected[3, masked] > 0 and not expected[:, :4].any(), "of the special tokens only the mask has a weight"


def test_the_equation_by_hand(folder):
    """The weight of a token is the largest of its positions', each computed alone from the network's states."""
    from transformers import AutoModel, AutoTokenizer

    text, maps = "dog a dog dog", torch.load(folder / "sparse_linear.pt", weights_only=True)
    tokens = AutoTokenizer.from_pretrained(str(folder))([text], return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(str(folder))(**tokens).last_hidden_state[0]
    expected: dict[str, float] = {}
    for number, state in zip(tokens["input_ids"][0].tolist(), states, strict=True):
        weight = max(0.0, float(maps["weight"][0] @ state + maps["bias"][0]))
        if number > 3 and weight > 0:
            term = load(folder).vocabulary.terms[number]
            expected[term] = max(weight, expected.get(term, 0.0))
    model = load(folder)
    [found] = model.decode(model.encode_document([text]))
    assert dict(found) == pytest.approx(expected, abs=1e-5) and expected


def test_a_token_that_a_text_lacks_has_no_weight(folder):
    model = load(folder)
    assert {term for term, _ in model.decode(model.encode_query(["boat"]))[0]} <= {"\u2581boat"}


def test_the_map_is_part_of_the_digest_but_not_of_older_ones(folder, tmp_path):
    names = ["config.json", "pytorch_model.bin", "sparse_linear.pt", "colbert_linear.pt"]
    assert list_model_files(names) == names[:3] and list_model_files(names, older=True) == names[:2]
    other = write_bge_m3(tmp_path / "model")
    assert load(other).checkpoint_digest == load(folder).checkpoint_digest
    torch.save({"weight": torch.ones(1, 16), "bias": torch.zeros(1)}, other / "sparse_linear.pt")
    assert load(other).checkpoint_digest != load(folder).checkpoint_digest


def test_other_folders_are_refused_with_one_line(tmp_path):
    folder = write_bge_m3(tmp_path / "model")
    with pytest.raises(UsageError, match="an image, but this side of the encoder reads texts only"):
        load(folder).encode_document([Image.new("RGB", (8, 8))])
    torch.save({"weight": torch.ones(1, 15), "bias": torch.zeros(1)}, folder / "sparse_linear.pt")
    with pytest.raises(CheckpointError, match=r"mis-shaped: weight \[1, 15\], expected \[1, 16\]"):
        load(folder)
    (folder / "sparse_linear.pt").unlink()
    with pytest.raises(CheckpointError, match=r"no sparse_linear\.pt, the map of BGE-M3's .* expected the folder of"):
        load(folder)


def test_a_tokenizer_of_another_size_is_refused(folder, golden):
    with pytest.raises(CheckpointError, match="the tokenizer has 2000 tokens, the model 75"):
        load(folder, tokenizer=str(golden / "common/tokenizer_bert_tiny"))
