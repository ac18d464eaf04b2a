"""LAMB against timm's over fifty steps, with the trainer's clipping; its equation by hand; a run that resumes."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from lexvl_plugins.train.common.learner import choose_optimiser
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.recipe import Optimisation
from tests.plugins.train.tiny_training import same_weights, tensors, tiny_recipe

GOLDEN = Path(__file__).parents[2] / "golden/lamb/timm.npz"
DECAYS = {"matrix": 0.01, "bias": 0.0, "zeros": 0.01}


def make_lamb(groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
    return choose_optimiser(groups, Optimisation(steps=1, optimiser="lamb", learning_rate=rate, betas=(0.9, 0.98)))


@pytest.mark.parametrize(("kind", "limit"), [("free", 1e-12), ("clipped", 2e-6)])
def test_fifty_steps_end_at_the_weights_of_timm(kind: str, limit: float) -> None:
    """timm clips inside; here torch clips before, whose divisor is the norm + 1e-6."""
    golden = tensors(GOLDEN)
    weights = {name: torch.nn.Parameter(golden[f"start/{name}"]) for name in DECAYS}
    optimiser = make_lamb([{"params": [weights[name]], "weight_decay": decay} for name, decay in DECAYS.items()], 1.0)
    for step, rate in enumerate(golden["rates"].tolist()):
        for group in optimiser.param_groups:
            group["lr"] = rate
        for name, parameter in weights.items():
            parameter.grad = golden[f"gradients/{name}"][step].clone()
        if kind == "clipped":
            clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        for name, parameter in weights.items():
            assert (parameter.detach() - golden[f"{kind}/{name}"][step]).abs().max() < limit, (step, name)
    assert {"exp_avg", "exp_avg_sq"} == optimiser.state[weights["bias"]].keys()


def test_two_steps_by_hand() -> None:
    """|x| = 5: with betas of 0.5 and 0 and eps far below, Adam's first move is the sign, (1, 1) of length sqrt(2)."""
    weight = torch.nn.Parameter(torch.tensor([[3.0, -4.0]], dtype=torch.float64))
    plan = Optimisation(steps=1, optimiser="lamb", learning_rate=0.1, betas=(0.5, 0.0))
    optimiser = choose_optimiser([{"params": [weight], "weight_decay": 1.0}], plan)
    weight.grad = torch.tensor([[2.0, 8.0]], dtype=torch.float64)
    optimiser.step()
    # r = (1, 1) + (3, -4) = (4, -3), as long as x: x - 0.1 r
    np.testing.assert_allclose(weight.detach().numpy(), [[2.6, -3.7]], atol=1e-6)
    weight.grad = torch.zeros(1, 2, dtype=torch.float64)
    optimiser.param_groups[0]["weight_decay"] = 0.0
    optimiser.state[weight]["exp_avg"].zero_()
    optimiser.step()  # no gradient, no mean, no decay
    np.testing.assert_allclose(weight.detach().numpy(), [[2.6, -3.7]], atol=1e-6)


def test_a_state_of_timm_goes_on() -> None:
    """Its group counts the steps in a tensor."""
    golden = tensors(GOLDEN)
    whole, resumed = (torch.nn.Parameter(golden["start/matrix"].clone()) for _ in range(2))
    first = make_lamb([{"params": [whole], "weight_decay": 0.01}], 0.1)
    for step in range(3):
        if step == 2:
            state = deepcopy(first.state_dict())
            state["param_groups"][0]["step"] = torch.tensor(2.0)
            second = make_lamb([{"params": [resumed], "weight_decay": 0.01}], 0.1)
            second.load_state_dict(state)
            resumed.data.copy_(whole.data)
        whole.grad = golden["gradients/matrix"][step].clone()
        first.step()
    resumed.grad = golden["gradients/matrix"][2].clone()
    second.step()
    assert torch.equal(whole, resumed)


def test_a_resumed_run_ends_with_the_same_weights(texts: str, tmp_path: Path) -> None:
    side = {"words": 200, "width": 16, "layers": 1, "heads": 2, "max_length": 16, "dropout": 0.1}
    plan = {"steps": 4, "batch_size": 3, "warmup_steps": 1, "optimiser": "lamb", "learning_rate": 0.01, "clip": 1.0}
    model = {"kind": "vdr", "query": side, "document": side}
    objective = {"name": "vdr", "options": {"topk": 8}}
    recipe = tiny_recipe(texts, model, objective=objective, optimisation={**plan, "weight_decay": 0.01})
    whole = train(recipe, tmp_path / "whole", device="cpu")
    assert train(recipe, tmp_path / "stopped", device="cpu", stop_after=2).name == "state"
    assert same_weights(train(recipe, tmp_path / "stopped", device="cpu"), whole)
