"""VDR, SVDR, InfoNCE and naming: by hand, and against the reference implementation's losses and gradients."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lexvl_anserini.training.objectives.caption_terms import naming
from lexvl_anserini.training.objectives.contrastive import (
    Encoded,
    contrastive,
    contrastive_mask,
    info_nce,
    masked,
    svdr,
    vdr,
)
from lexvl_anserini.training.objectives.ranking_losses import distil

GOLDEN = Path(__file__).parents[1] / "golden" / "vdr"

VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "vdr": (vdr, {}),
    "svdr": (svdr, {}),
    "svdr_cts": (svdr, {"mask_weight": 1.0}),
    "svdr_cts_norm": (svdr, {"mask_weight": 0.5, "mask_norm": True}),
    "svdr_asym": (svdr, {"symmetric": False}),
    "svdr_scaled": (svdr, {"scaled": True}),
}


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    """Fixed embeddings, bags, gradients and masks."""
    with np.load(GOLDEN / "loss.npz") as archive:
        return dict(archive)


def encoded_of(arrays: dict[str, np.ndarray]) -> Encoded:
    """The reference's gradients are with respect to the embeddings after scaling."""
    query, document = ((torch.from_numpy(arrays[name]) * 0.05).requires_grad_() for name in ("q_emb", "p_emb"))
    bags = (torch.from_numpy(arrays[name]) > 0 for name in ("q_bin", "p_bin"))
    return Encoded(query, document, *bags)


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradient_norms_equal_the_reference(variant: str, arrays: dict[str, np.ndarray]) -> None:
    expected = json.loads((GOLDEN / "loss.json").read_text())[variant]
    function, options = VARIANTS[variant]
    encoded = encoded_of(arrays)
    loss = function(encoded, **options)
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-5)
    for leaf, name in ((encoded.query, "grad_q_norm"), (encoded.document, "grad_p_norm")):
        assert leaf.grad is not None
        assert leaf.grad.norm().item() == pytest.approx(expected[name], rel=1e-5)


@pytest.mark.parametrize("variant", ["vdr", "svdr_cts"])
def test_gradients_equal_the_reference(variant: str, arrays: dict[str, np.ndarray]) -> None:
    function, options = VARIANTS[variant]
    encoded = encoded_of(arrays)
    function(encoded, **options).backward()
    for leaf, name in ((encoded.query, "q"), (encoded.document, "p")):
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, torch.from_numpy(arrays[f"{variant}_grad_{name}"]), atol=1e-6, rtol=1e-4)


def test_the_contrastive_mask_equals_the_reference(arrays: dict[str, np.ndarray]) -> None:
    for side in ("q", "p"):
        mask = contrastive_mask(torch.from_numpy(arrays[f"{side}_bin"]) > 0)
        assert (mask.numpy() == arrays[f"cts_mask_{side}"]).all()


def test_the_contrastive_mask_gives_each_absent_dimension_one_owner() -> None:
    bag = torch.tensor([[1, 0, 0, 0, 0], [0, 0, 1, 0, 0]], dtype=torch.bool)
    # Dimensions 1, 3 and 4 are absent; their owners are rows 1, 1 and 0.
    assert contrastive_mask(bag).int().tolist() == [[0, 0, 0, 0, 1], [0, 1, 0, 1, 0]]


def test_contrastive_by_hand() -> None:
    query, document = torch.eye(2), torch.eye(2)
    one = -math.log(math.e / (math.e + 1))
    assert contrastive(query, document).item() == pytest.approx(2 * one)
    assert contrastive(query, document, symmetric=False).item() == pytest.approx(one)
    assert contrastive(query, document, temperature=0.5).item() == pytest.approx(
        -2 * math.log(math.e**2 / (math.e**2 + 1))
    )
    assert info_nce(Encoded(query, document), temperature=1.0).item() == pytest.approx(one)


def test_hard_negatives_act_in_the_first_direction_only() -> None:
    query, positive = torch.eye(2), torch.eye(2)
    document = torch.cat([positive, torch.ones(1, 2)])
    difference = contrastive(query, document) - contrastive(query, positive)
    first = contrastive(query, document, symmetric=False) - contrastive(query, positive, symmetric=False)
    assert difference.item() == pytest.approx(first.item()) and first > 0


def test_a_masked_vector_keeps_its_largest_weights_and_its_own_tokens() -> None:
    weights, bag = torch.tensor([[0.4, 0.1, 0.3, 0.2]]), torch.tensor([[False, True, False, False]])
    assert masked(weights, None, 2).tolist() == [pytest.approx([0.4, 0, 0.3, 0])]
    assert masked(weights, bag, 1).tolist() == [pytest.approx([0.4, 0.1, 0, 0])]


def test_the_nonparametric_entry_pulls_an_image_to_the_words_of_its_captions() -> None:
    image = torch.full((2, 4), 0.5, requires_grad=True)
    text = torch.full((2, 4), 0.5)
    bag = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.bool)
    vdr(Encoded(text, image, bag), topk=4, normalised=True).backward()
    assert image.grad is not None
    assert image.grad[0, 0] < 0 < image.grad[0, 1] and image.grad[1, 1] < 0 < image.grad[1, 0]
    without = vdr(Encoded(text, image, bag), topk=4, nonparametric=0.0)
    assert without.item() == pytest.approx(2 * math.log(2))


def test_an_objective_without_own_tokens_raises() -> None:
    with pytest.raises(ValueError, match="own tokens"):
        svdr(Encoded(torch.eye(2), torch.eye(2)))


@pytest.mark.parametrize("function", [info_nce, naming, distil])
def test_gradients(function: Any) -> None:
    generator = torch.Generator().manual_seed(8)
    query, document, share, taught = (torch.rand(3, n, generator=generator, dtype=torch.float64) for n in (5, 5, 5, 3))
    batch = Encoded(query, document, named=share, frequency=share.mean(dim=0), taught=taught)
    sides = (query.requires_grad_(), document.requires_grad_())
    assert torch.autograd.gradcheck(lambda q, d: function(batch._replace(query=q, document=d)), sides)


def test_naming_by_hand() -> None:
    images, named = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.5, 0.0]])
    encoded = Encoded(images, images, named=named, frequency=torch.tensor([0.5, 0.25, 0.25]))
    # Shares 2/3 and 1/3; softmax of (1 + ln 1/2, ln 1/4, ln 1/4).
    whole = math.e / 2 + 0.5
    expected = -(2 * math.log(math.e / 2 / whole) + math.log(0.25 / whole)) / 3
    assert naming(encoded, temperature=2.0).item() == pytest.approx(expected)


def test_naming_is_least_where_weights_are_the_mutual_information_of_term_and_image() -> None:
    named = torch.tensor([[1.0, 0.5, 0.0, 0.5], [1.0, 0.0, 1.0, 0.25]])
    frequency = named.mean(dim=0)
    weights = torch.zeros(2, 4, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12)

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = naming(Encoded(weights, weights, named=named, frequency=frequency), temperature=1.0)
        value.backward()
        return value

    optimiser.step(loss)  # type: ignore[arg-type]
    information = (named / frequency).log()  # up to a constant per image
    there = named > 0
    for row, expected, held in zip(weights.detach(), information, there, strict=True):
        difference = (row - expected)[held]
        torch.testing.assert_close(difference, difference.mean().expand_as(difference), atol=1e-3, rtol=0)
        assert row[~held].max() < row[held].min()


def test_naming_needs_captions() -> None:
    with pytest.raises(ValueError, match="captions"):
        naming(Encoded(torch.eye(2), torch.eye(2)))


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
