"""V-SPLADE's two losses and `naming`: by hand, and against the equations written as loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lexvl_plugins.train.objectives.contrastive import caption_gated, naming, v_splade
from lexvl_plugins.train.objectives.encoded import Encoded


def test_contrast_by_hand():
    query, document = torch.eye(2), torch.cat([torch.eye(2), torch.zeros(1, 2)])
    assert v_splade(Encoded(query, document)).item() == pytest.approx(math.log(1 + 2 / math.e))
    # Scores of 1000 and -1000 count as 100 and -100, without a gradient.
    large = (1000 * torch.tensor([[-1.0, 1.0], [1.0, -1.0]])).requires_grad_()
    loss = v_splade(Encoded(query, large))
    loss.backward()
    assert loss.item() == 200 and large.grad is not None and large.grad.abs().max().item() == 0


def test_queries_of_own_words_and_bags_by_hand():
    """Own words leave weight 2 of term 0; a bag makes it 1: scores 2 and 0, or 1 and 0."""
    query, bag = torch.tensor([[2.0, 5.0], [5.0, 2.0]]), torch.eye(2, dtype=torch.bool)
    encoded = Encoded(query, torch.eye(2), query_bag=bag)
    assert v_splade(encoded, queries="own").item() == pytest.approx(math.log(1 + math.exp(-2)))
    assert v_splade(encoded, queries="bag").item() == pytest.approx(math.log(1 + math.exp(-1)))


def test_the_gate_by_hand():
    """Weights 3, 1, 0, 0 with mean 1; the caption has terms 0 and 2, so that the gate is (4, 0, 1, 0) / 5."""
    weights, caption = torch.tensor([[3.0, 1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    logits = torch.tensor([[2.0, 0.0, -1.0, 5.0]])
    encoded = Encoded(torch.ones(1, 4), weights, caption=caption, logits=logits)

    def log_sigmoid(x: float) -> float:
        return -math.log(1 + math.exp(-x))

    assert caption_gated(encoded).item() == pytest.approx(-(4 * log_sigmoid(2) + log_sigmoid(-1)) / 5)
    assert caption_gated(encoded, alpha=0.0).item() == pytest.approx(-log_sigmoid(2))
    assert caption_gated(encoded, target="logits").item() == pytest.approx(-(4 * 2 - 1) / 5)
    assert caption_gated(encoded, target="weights").item() == pytest.approx(-4 * 3 / 5)
    assert caption_gated(encoded, target="logits", focus=0.5).item() == pytest.approx(-(16 * 2 - 1) / 17)
    assert caption_gated(encoded, target="logits", focus=1e-3).item() == pytest.approx(-2)


def test_only_terms_of_the_caption_are_raised():
    logits = torch.zeros(2, 3, requires_grad=True)
    weights, caption = torch.rand(2, 3, requires_grad=True), torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    caption.requires_grad_()
    caption_gated(Encoded(torch.ones(2, 3), weights, caption=caption, logits=logits)).backward()
    assert logits.grad is not None and (logits.grad != 0).tolist() == [[False, True, False], [False] * 3]
    assert logits.grad[0, 1] < 0
    assert weights.grad is None and caption.grad is None


def test_gradients():
    generator = torch.Generator().manual_seed(5)
    weights, caption, logits = (torch.rand(2, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    logits.requires_grad_()

    def loss(value: torch.Tensor, target: str = "log_sigmoid") -> torch.Tensor:
        return caption_gated(Encoded(weights, weights, caption=caption, logits=value), target=target)  # type: ignore

    assert torch.autograd.gradcheck(loss, (logits,))
    query = torch.rand(2, 4, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, d: v_splade(Encoded(q, d)), (query, weights.requires_grad_()))


# ---- naming


def test_naming_by_hand() -> None:
    images, named = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.5, 0.0]])
    encoded = Encoded(images, images, named=named, frequency=torch.tensor([0.5, 0.25, 0.25]))
    # Shares 2/3 and 1/3; softmax of (1 + ln 1/2, ln 1/4, ln 1/4).
    whole = math.e / 2 + 0.5
    expected = -(2 * math.log(math.e / 2 / whole) + math.log(0.25 / whole)) / 3
    assert naming(encoded, temperature=2.0).item() == pytest.approx(expected)


def test_a_smaller_prior_asks_more_of_common_terms() -> None:
    """Two terms, both named; without a prior the common one must be as heavy as the rare one, with it lighter."""
    frequency = torch.tensor([0.5, 0.05])
    named = torch.tensor([[1.0, 1.0]])

    def gradient(prior: float) -> list[float]:
        weights = torch.zeros(1, 2, requires_grad=True)
        encoded = Encoded(torch.zeros(1, 2), weights, named=named, frequency=frequency)
        naming(encoded, temperature=1.0, prior=prior).backward()
        assert weights.grad is not None
        return weights.grad[0].tolist()

    assert gradient(0.0) == [0.0, 0.0]
    common, rare = gradient(1.0)  # softmax of (log .5, log .05) is 10/11 and 1/11, the target 1/2 each
    np.testing.assert_allclose([common, rare], [10 / 11 - 1 / 2, 1 / 11 - 1 / 2], rtol=1e-5)
