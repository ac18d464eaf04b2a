"""STAIR: against the shared oracle of the paper's equations, and by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from lexvl_anserini.training.objectives.contrastive import Encoded, stair
from lexvl_anserini.training.objectives.regularisers import flops


@pytest.mark.shared
def test_losses_of_the_oracle(shared):
    golden = json.loads((shared / "golden/stair/formula_oracle.json").read_text())
    arrays = np.load(shared / "golden/stair/formula_oracle.npz")
    text, image = torch.from_numpy(arrays["enc_txt"]), torch.from_numpy(arrays["enc_img"])
    bag = torch.from_numpy(arrays["bow_mask_incl_special"]) > 0
    masks = {
        "incl": torch.from_numpy(arrays["enc_txt_masked_incl_special"]),
        "no": torch.from_numpy(arrays["enc_txt_masked_no_special"]),
    }
    for name, temperature in (("T=1.0", 1.0), ("T=0.07", 0.07)):
        there, back = Encoded(text, image, bag), Encoded(image, text)
        expected = golden["contrastive"][name]
        assert stair(there, temperature).item() == pytest.approx(expected["mean"], rel=1e-9)
        assert stair(there, temperature, symmetric=False).item() == pytest.approx(expected["t2i"], rel=1e-9)
        assert stair(back, temperature, symmetric=False).item() == pytest.approx(expected["i2t"], rel=1e-9)
        # The oracle's first stage has one of the two masks.
        stage = golden["contrastive_stage1_masked"][name]
        found = {kind: stair(Encoded(vectors, image), temperature).item() for kind, vectors in masks.items()}
        assert stage["mean"] in [pytest.approx(value, rel=1e-9) for value in found.values()]
        assert stair(there, temperature, masked=True).item() == pytest.approx(found["incl"], rel=1e-9)
    total = stair(Encoded(text, image), 0.07) + 1e-3 * (flops(text) + flops(image))
    assert [flops(image).item(), flops(text).item()] == pytest.approx([golden["flops_img"], golden["flops_txt"]])
    assert total.item() == pytest.approx(golden["total_T0.07_mean"], rel=1e-9)


def test_cosines_by_hand():
    text, image = torch.tensor([[3.0, 0.0], [0.0, 7.0]]), torch.tensor([[5.0, 0.0], [0.0, 0.1]])
    assert stair(Encoded(text, image), 1.0).item() == pytest.approx(math.log(1 + 1 / math.e))


def test_a_masked_text_keeps_its_own_tokens_only():
    text, image = torch.tensor([[1.0, 5.0], [5.0, 1.0]]), torch.eye(2)
    bag = torch.eye(2, dtype=torch.bool)
    assert stair(Encoded(text, image, bag), 1.0, masked=True).item() == stair(Encoded(bag.float(), image), 1.0).item()
    with pytest.raises(ValueError, match="own tokens"):
        stair(Encoded(text, image), masked=True)


def test_gradients():
    generator = torch.Generator().manual_seed(4)
    text, image = (torch.rand(3, 5, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda a, b: stair(Encoded(a, b), 0.5), (text, image))


def test_an_empty_text_has_no_gradient_that_is_not_a_number():
    text = torch.zeros(2, 3, requires_grad=True)
    stair(Encoded(text, torch.rand(2, 3))).backward()
    assert text.grad is not None and torch.isfinite(text.grad).all()
