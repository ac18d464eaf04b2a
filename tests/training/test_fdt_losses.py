"""FDT: its loss and gradients (shared golden data), sparsemax, and the schedules of its temperatures."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from lexvl_anserini.encoders.families.fdt import sparsemax
from lexvl_anserini.training.objectives.contrastive import Encoded
from lexvl_anserini.training.objectives.fdt_losses import fdt, features, limited, new_codebook, relevance_temperature


@pytest.fixture
def golden(shared):
    folder = shared / "golden/fdt"
    about, arrays = json.loads((folder / "fdt-tiny.json").read_text()), np.load(folder / "fdt-tiny.npz")
    codebook = torch.load(folder / "checkpoints/ckpt_37800.pth.tar", weights_only=True)["model"]["module.space_dict"]
    return about, {name: torch.from_numpy(arrays[name]) for name in arrays.files}, codebook


@pytest.mark.shared
def test_features_logits_and_loss(golden):
    about, arrays, codebook = golden
    text, image = arrays["txt_att_Tckpt"], arrays["img_att_Tckpt"]
    for weights, side in ((text, "txt"), (image, "img")):
        expected = normalize(arrays[f"{side}_sd_Tckpt"], dim=1)
        torch.testing.assert_close(features(weights, codebook), expected, atol=1e-5, rtol=1e-5)
    encoded = Encoded(text, image, codebook=codebook)
    temperature = math.exp(-about["logit_scale_log"])
    scores = features(image, codebook) @ features(text, codebook).T
    torch.testing.assert_close(scores / temperature, arrays["logits_per_image"], atol=1e-4, rtol=1e-5)
    assert fdt(encoded, temperature).item() == pytest.approx(about["loss"], rel=1e-5)
    # A scale of e^6 is cut to 100.
    torch.testing.assert_close(scores * 100, arrays["logits_per_image_scale6"], atol=1e-3, rtol=1e-5)
    assert fdt(encoded, math.exp(-6)).item() == fdt(encoded, 0.01).item()


@pytest.mark.shared
def test_gradients_reach_the_scale_and_the_codebook(golden):
    about, arrays, codebook = golden
    degree, codebook = about["temperature_from_checkpoint"], codebook.clone().requires_grad_()
    log_scale = torch.tensor(about["logit_scale_log"], requires_grad=True)
    sides = []
    for side in ("txt", "img"):
        relevance = arrays[f"{side}_q"] @ codebook.T / codebook.shape[1] ** 0.5  # [B, L, K]
        if side == "txt":
            lengths = torch.tensor([len(ids) for ids in about["token_ids"]])
            relevance = relevance * (torch.arange(relevance.shape[1]) < lengths[:, None])[:, :, None]
        sides.append(sparsemax(relevance.amax(dim=1) / degree))
    loss = fdt(Encoded(*sides, codebook=codebook), (-log_scale).exp())
    loss.backward()
    assert loss.item() == pytest.approx(about["loss"], rel=1e-5)
    assert log_scale.grad.item() == pytest.approx(about["grad_logit_scale"], rel=1e-4)
    assert codebook.grad.norm().item() == pytest.approx(about["grad_norm_space_dict"], rel=1e-4)
    torch.testing.assert_close(codebook.grad[:8], arrays["grad_space_dict"], atol=1e-6, rtol=1e-4)


def test_loss_by_hand():
    codebook = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    weights = torch.eye(3)[:2]
    encoded = Encoded(weights, weights, codebook=codebook)  # features are the two axes
    assert fdt(encoded, 1.0).item() == pytest.approx(math.log(1 + 1 / math.e))
    assert features(torch.tensor([[0.0, 0.0, 5.0]]), codebook).tolist() == [pytest.approx([0.5**0.5] * 2)]
    with pytest.raises(ValueError, match="codebook"):
        fdt(Encoded(weights, weights))


def test_gradients():
    generator = torch.Generator().manual_seed(2)
    parts = [torch.rand(3, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda query, document, codebook, degree: fdt(Encoded(query, document, codebook=codebook.T), degree),
        (parts[0], parts[1], torch.rand(5, 4, dtype=torch.float64, generator=generator).requires_grad_(), temperature),
    )
    assert torch.autograd.gradcheck(sparsemax, (parts[2] * 3,))


def test_temperature_of_scores_stays_within_its_limits():
    found = limited(torch.tensor([-2.659, -4.0, -7.0]))
    assert found.tolist() == [-3, -4, -6]
    beyond = torch.tensor(0.005, requires_grad=True)
    weights = torch.eye(2)
    fdt(Encoded(weights, weights, codebook=weights), beyond).backward()
    assert beyond.grad.item() == 0


def test_temperature_of_relevances_by_hand():
    assert relevance_temperature(50_000) == 1000  # the published run does not decay
    found = [relevance_temperature(done, decay=0.5, every=10, least=200) for done in (0, 9, 10, 19, 20, 30, 99)]
    assert found == [1000, 1000, 500, 500, 250, 200, 200]
    assert relevance_temperature(5, decay=0.25, every=10, whole=False) == 500


@pytest.mark.shared
def test_temperature_of_the_evaluation(golden):
    about, _, _ = golden
    assert relevance_temperature(37_800, decay=0.75) == pytest.approx(about["temperature_from_checkpoint"])
    for decay, done, expected in about["temperature_examples"]:
        assert relevance_temperature(done, decay=decay, whole=False) == pytest.approx(expected)


def test_a_new_codebook():
    found = new_codebook(torch.Generator().manual_seed(0))
    assert found.shape == (16_384, 512)
    assert found.mean().item() == pytest.approx(0, abs=0.01) and found.std().item() == pytest.approx(1, abs=0.01)
