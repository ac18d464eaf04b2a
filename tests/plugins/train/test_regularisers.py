"""Regularisers and how their weights grow: by hand, and against the reference implementations."""

from __future__ import annotations

import json
import types

import pytest
import torch

from lexvl_plugins.train.objectives import REGULARISERS
from lexvl_plugins.train.objectives.regularisers import RAMPS, anti_zero, flops, l1, ramp

WEIGHTS = torch.tensor([[1.0, 0.0], [3.0, 2.0]])


def test_regularisers_by_hand():
    assert l1(WEIGHTS).item() == 3.0  # (1 + 5) / 2
    assert flops(WEIGHTS).item() == 5.0  # 2^2 + 1^2
    assert anti_zero(WEIGHTS).item() == pytest.approx(1 / 36)
    # The first vector has one active term and counts as empty, but in the mean: 1.5^2 + 1^2.
    assert flops(WEIGHTS, threshold=1).item() == 3.25
    assert flops(WEIGHTS, threshold=2).item() == 0
    unit = torch.tensor([[3.0, 4.0], [0.6, 0.8]])
    assert flops(unit, normalised=True).item() == pytest.approx(0.6**2 + 0.8**2)
    assert flops(torch.zeros(2, 3), normalised=True).item() == 0


def test_vectors_below_the_threshold_get_no_gradient():
    weights = WEIGHTS.clone().requires_grad_()
    flops(weights, threshold=1).backward()
    assert weights.grad is not None and weights.grad[0].tolist() == [0, 0] and (weights.grad[1] > 0).all()


@pytest.mark.parametrize("name", REGULARISERS)
def test_gradients_of_regularisers(name):
    weights = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(REGULARISERS[name].function, (weights,))


def test_thresholded_flops_equals_sentence_transformers():
    from sentence_transformers.sparse_encoder.losses import FlopsLoss

    weights = torch.relu(torch.randn(6, 9, generator=torch.Generator().manual_seed(3)))
    for threshold in (0, 3, 4, 5):
        expected = FlopsLoss(None, threshold=threshold).compute_loss_from_embeddings(weights)
        assert flops(weights, threshold).item() == pytest.approx(expected.item(), rel=1e-6)


def test_ramps_by_hand():
    assert [ramp(step, 4) for step in (0, 2, 4, 9)] == [0, 0.25, 1, 1]
    first = {name: [grow(done, 2) for done in range(4)] for name, grow in RAMPS.items()}
    assert first == {
        "n-1": [0, 0.25, 1, 1],
        "n": [0.25, 1, 1, 1],
        "n/(T+1)": pytest.approx([1 / 9, 4 / 9, 1, 1]),
        "callback": [0, 0.25, 1, 1],
    }
    assert RAMPS["n/(T+1)"](0, 0) == 1


@pytest.mark.shared
def test_ramps_equal_those_of_splade(shared):
    golden = json.loads((shared / "golden/splade/losses.json").read_text())
    for name, key, weight, steps, part in (
        ("n", "RegWeightScheduler_lambda0.5_T5", 0.5, 5, None),
        ("n/(T+1)", "HF_IRTrainer_compute_lambdas_ld0.005_lq0.004_Td4_Tq0", 0.005, 4, 0),
        ("n/(T+1)", "HF_IRTrainer_compute_lambdas_ld0.005_lq0.004_Td4_Tq0", 0.004, 0, 1),
    ):
        expected = [row if part is None else row[part] for row in golden[key]]
        assert [weight * RAMPS[name](done, steps) for done in range(len(expected))] == pytest.approx(expected)


@pytest.mark.shared
def test_the_ramp_of_stair_is_that_of_the_oracle(shared):
    expected = json.loads((shared / "golden/stair/formula_oracle.json").read_text())["quadratic_schedule_lambda1e-3_T6"]
    assert [1e-3 * RAMPS["n-1"](done, 6) for done in range(len(expected))] == pytest.approx(expected)


def test_the_callback_of_sentence_transformers():
    from sentence_transformers.sparse_encoder.callbacks.splade_callbacks import (
        SpladeRegularizerWeightSchedulerCallback as Callback,
    )
    from sentence_transformers.sparse_encoder.losses import SpladeLoss

    loss = SpladeLoss.__new__(SpladeLoss)
    torch.nn.Module.__init__(loss)
    loss.document_regularizer_weight, loss.query_regularizer_weight = 0.5, 0.25
    callback, state = Callback(loss), types.SimpleNamespace(max_steps=12, global_step=0)
    callback.on_train_begin(None, state, None)
    for done in range(12):
        state.global_step = done
        callback.on_step_begin(None, state, None)
        share = RAMPS["callback"](done, 12 // 3)
        assert [loss.document_regularizer_weight, loss.query_regularizer_weight] == [0.5 * share, 0.25 * share]
