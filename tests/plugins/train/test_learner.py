"""The loss of a stage: the penalties of a step, and which objectives a recipe may name."""

import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.train.common import tower_pair as projection
from lexvl_plugins.train.common.learner import compute_objective, compute_penalty, group_parameters, make_learning_rate
from lexvl_plugins.train.common.tower_pair import Temperatures, project_max
from lexvl_plugins.train.objectives import OBJECTIVES, RAMPS, REGULARISERS, anti_zero, flops, l1, ramp
from lexvl_plugins.train.objectives import contrastive as losses
from lexvl_plugins.train.objectives.family_losses import d2s, lexlip_momentum, masked_words
from lexvl_plugins.train.recipe import Optimisation, Recipe, read_recipe

RECIPE = Path(__file__).parents[3] / "runs" / "recipes" / "demo-vdr.yaml"


def recipe_of(*regularisers: dict[str, Any], **changes: Any) -> Recipe:
    return read_recipe(RECIPE, {"regularisers": list(regularisers), **changes})


def penalty_of(recipe: Recipe, encoded: losses.Encoded, step: int = 0) -> float:
    return compute_penalty(recipe.stages[0], [encoded, encoded], step).total.item()


# One query of weights 1 and 2; its positive has 3 and 0, its hard negative 0 and 1.
BATCH = losses.Encoded(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]]))


def test_penalties_by_hand() -> None:
    l1, flops = {"name": "l1", "side": "query", "weight": 0.5}, {"name": "flops", "side": "document", "weight": 2.0}
    late = {**l1, "ramp_steps": 4}
    for regularisers, steps, expected in (
        ([], [0], [0]),
        ([{**l1, "ramp": "n"}], [0], [1.5]),
        ([{**flops, "ramp": "n"}], [0], [2 * (1.5**2 + 0.5**2)]),
        ([late], [0, 2, 4], [0, 0.375, 1.5]),
        ([{**late, "ramp": "n"}], [0, 1, 3], [0.09375, 0.375, 1.5]),
        ([{**flops, "ramp": "n", "options": {"threshold": 1}}], [0], [0]),
    ):
        assert [penalty_of(recipe_of(*regularisers), BATCH, step) for step in steps] == expected


@pytest.mark.parametrize(
    "expanded, masked, expected", [(True, False, 3.0), (False, False, 2.0), (True, True, 2.0), (False, True, 2.0)]
)
def test_a_regulariser_sees_the_texts_that_the_objective_scores(expanded: bool, masked: bool, expected: float) -> None:
    """The query has weights 1 and 2, and only its second token is its own; documents are as they are."""
    own = BATCH._replace(query_bag=torch.tensor([[False, True]]), expanded=expanded)
    stair_of = {"objective": {"name": "stair", "options": {"masked": masked}}}
    for side, value in (("query", expected), ("positives", 3.0)):
        recipe = recipe_of({"name": "l1", "side": side, "weight": 1.0, "ramp": "n"}, **stair_of)
        assert penalty_of(recipe, own) == value


def test_the_regulariser_of_splade_is_that_of_positives_and_of_negatives() -> None:
    half = [{"name": "flops", "side": side, "weight": 0.5, "ramp": "n"} for side in ("positives", "negatives")]
    assert penalty_of(recipe_of(*half), BATCH) == (9 + 1) / 2
    with pytest.raises(UsageError, match="regulariser flops of negatives: 0 hard negatives of 1 queries"):
        penalty_of(recipe_of(*half), losses.Encoded(BATCH.query, BATCH.positives))


def test_a_running_penalty_counts_the_first_twice() -> None:
    flops, l1 = ({"name": name, "side": "query", "weight": 1.0, "ramp": "n"} for name in ("flops", "l1"))
    assert penalty_of(recipe_of(flops, l1), BATCH) == 5 + 3
    assert penalty_of(recipe_of(flops, l1, running_penalty=True), BATCH) == 5 + 5 + 3
    sides = [{**flops, "side": "positives"}, flops, l1]
    assert penalty_of(recipe_of(*sides, running_penalty=True), BATCH) == 2 * (9 + 5) + 3


@pytest.mark.parametrize("name", [name for name, o in OBJECTIVES.items() if not o.needs and o.documents != "texts"])
def test_recipes_may_name_every_objective_whose_batch_exists(name: str) -> None:
    changes: dict[str, Any] = {"objective": {"name": name, "temperature": 0.5}, "auxiliaries": []}
    recipe = recipe_of(**changes)
    generator = torch.Generator().manual_seed(1)
    rows = 6 if name.startswith("splade") else 3
    query, document = (torch.rand(size, 4, generator=generator).requires_grad_() for size in (3, rows))
    encoded = losses.Encoded(query, document, torch.rand(3, 4, generator=generator) > 0.5)
    loss = compute_objective(recipe.stages[0], recipe.model, [encoded], Temperatures(torch.tensor(0.5))).total
    loss.backward()
    assert query.grad is not None and document.grad is not None and torch.isfinite(loss)


PAIRS = losses.Encoded(torch.eye(2), torch.eye(2))


@pytest.mark.parametrize(
    ("function", "batch", "options", "message"),
    [
        (losses.svdr, PAIRS, {}, "own tokens"),
        (losses.stair, PAIRS, {"masked": True}, "own tokens"),
        (losses.v_splade, PAIRS, {"queries": "bag"}, "needs the own tokens"),
        (losses.fdt, PAIRS, {}, "codebook"),
        (d2s, PAIRS, {}, "dense vectors"),
        (lexlip_momentum, PAIRS, {}, "keys"),
        (masked_words, PAIRS, {}, "predictions"),
        (losses.naming, PAIRS, {}, "captions"),
        (losses.caption_gated, PAIRS, {}, "captions"),
        (losses.caption_gated, PAIRS._replace(caption=torch.eye(2)), {"target": "logits"}, "'logits' needs the logits"),
        (losses.distil, PAIRS, {}, "needs the scores of a teacher"),
    ],
)
def test_what_a_batch_lacks_is_named(function: Any, batch: losses.Encoded, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(batch, **options)


def test_what_decays_and_how_the_rate_grows() -> None:
    """A matrix and a bias; four steps of warm-up, whose first is 1/4 of the peak, or nothing."""
    pair = torch.nn.Linear(2, 3)
    for decayed, counts in (("matrices", {0.1: 1, 0.0: 1}), ("all", {0.1: 2})):
        plan = Optimisation(steps=8, warmup_steps=4, weight_decay=0.1, decay="linear", decayed=decayed)
        groups = group_parameters(pair, plan)
        assert {group["weight_decay"]: len(group["params"]) for group in groups if group["params"]} == counts
    for warmup, shares in (("n", [0.25, 0.5, 0.75, 1, 1, 0.75]), ("n-1", [0, 0.25, 0.5, 0.75, 1, 0.75])):
        shape = make_learning_rate(Optimisation(steps=8, warmup_steps=4, decay="linear", warmup=warmup))
        assert [shape(step) for step in range(6)] == shares
    for last, decay, shares in ((0.0, "cosine", [0.5, 1, 1, 0.5, 0]), (0.5, "linear", [0.5, 1, 1, 0.75, 0.5])):
        plan = Optimisation(steps=12, warmup_steps=2, decay=decay, last_learning_rate=last)
        assert [round(make_learning_rate(plan)(step), 3) for step in (0, 1, 2, 7, 12)] == shares


@pytest.mark.parametrize("slice_floats", [1, 40, 1 << 20])
@pytest.mark.parametrize("with_mask", [False, True])
def test_it_equals_the_plain_formula(slice_floats: int, with_mask: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "SLICE_FLOATS", slice_floats)
    torch.manual_seed(0)
    features = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    matrix = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    masked = torch.tensor([[False] * 5, [False, False, True, True, True]]) if with_mask else None
    logits = features @ matrix.T  # [B, L, V]
    if masked is not None:
        logits = logits.masked_fill(masked[:, :, None], -torch.inf)
    expected = logits.amax(dim=1)
    pull = torch.randn(2, 7, dtype=torch.float64)
    wanted = torch.autograd.grad((expected * pull).sum(), (features, matrix))
    found = project_max(features, matrix, masked)
    gradients = torch.autograd.grad((found * pull).sum(), (features, matrix))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients, wanted)


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
    assert first.pop("n/(T+1)") == pytest.approx([1 / 9, 4 / 9, 1, 1])
    assert first == {"n-1": [0, 0.25, 1, 1], "n": [0.25, 1, 1, 1], "callback": [0, 0.25, 1, 1]}
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
