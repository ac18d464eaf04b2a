"""DPR and SPLADE: the reference's losses (shared golden data), by hand, and a second derivation by loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from lexvl_plugins.train.objectives import OBJECTIVES, RANKING_LOSSES, anti_zero, flops, l1, sum_penalties
from lexvl_plugins.train.objectives import contrastive as losses


def batch_of(pos, neg, teacher_pos=None, teacher_neg=None, in_batch=None):
    """A batch whose scores are those given: unit queries, and documents that have the scores as dimensions."""
    count = len(pos)
    positives = torch.diag(pos.flatten()) if in_batch is None else in_batch.T
    document = torch.cat([positives, torch.diag(neg.flatten())])
    taught = None if teacher_pos is None else of_batch(torch.stack([teacher_pos, teacher_neg], dim=1))
    return losses.Encoded(torch.eye(count), document, taught=taught)


def of_batch(judged):
    """Scores of each query's own documents [N, 1 + K] among those of all documents of the batch, the others 0."""
    return torch.cat([torch.diag(judged[:, 0]), torch.block_diag(*judged[:, 1:].split(1))], dim=1)


def random_batch(count=3, negatives=2, width=5, kind=torch.float64):
    generator = torch.Generator().manual_seed(7)
    query = torch.rand(count, width, generator=generator, dtype=kind)
    document = torch.rand(count * (1 + negatives), width, generator=generator, dtype=kind)
    judged = torch.rand(count, 1 + negatives, generator=generator, dtype=kind)
    return losses.Encoded(query, document, taught=of_batch(judged))


@pytest.mark.shared
def test_losses_of_splade(shared):
    golden = json.loads((shared / "golden/splade/losses.json").read_text())
    arrays = {key: torch.from_numpy(array) for key, array in np.load(shared / "golden/splade/loss_inputs.npz").items()}
    pairs = batch_of(arrays["pos"], arrays["neg"], arrays["teacher_pos"], arrays["teacher_neg"])
    assert losses.splade_pairwise(pairs).item() == pytest.approx(golden["PairwiseNLL"], rel=1e-5)
    assert losses.splade_margin_mse(pairs).item() == pytest.approx(golden["DistilMarginMSE"], rel=1e-5)
    assert losses.splade_kl(pairs).item() == pytest.approx(golden["DistilKLLoss"], rel=1e-5)
    batch = batch_of(arrays["pos"], arrays["neg"], in_batch=arrays["inbatch66"])
    assert losses.splade_in_batch(batch).item() == pytest.approx(golden["InBatchPairwiseNLL_6x6"], rel=1e-5)
    rep = arrays["rep"]
    assert [l1(rep).item(), flops(rep).item()] == pytest.approx([golden["L1"], golden["FLOPS"]], rel=1e-5)


@pytest.mark.shared
def test_losses_of_the_later_trainer_of_splade(shared):
    golden = json.loads((shared / "golden/splade/losses.json").read_text())["HF_IRTrainer_compute_loss"]
    arrays = np.load(shared / "golden/splade/hf_loss_inputs.npz")
    queries, docs, judged = (torch.from_numpy(arrays[key]) for key in ("queries", "docs", "teacher_scores"))
    document = torch.cat([docs[:, 0], docs[:, 1:].flatten(0, 1)])
    encoded = losses.Encoded(queries[:, 0], document, taught=of_batch(judged))
    found = {
        "contrastive": losses.splade_shared_negatives(encoded).item(),
        "kldiv": losses.splade_kl(encoded).item(),
        "mse_margin": losses.splade_margin_mse(encoded, all_pairs=True).item(),
        "anti_zero": (anti_zero(encoded.query) + anti_zero(encoded.document)).item(),
        "flops_term": (0.005 * flops(encoded.document) + 0.004 * l1(encoded.query)).item(),
    }
    for name, expected in golden.items():
        parts = {part: found[part] for part in expected.keys() & found.keys()}
        assert parts == pytest.approx({part: expected[part] for part in parts}, rel=1e-5)
        weights = {"contrastive": 0.01, "mse_margin": 0.05, "kldiv": 0.99} if "with_weights" in name else {}
        total = sum(weights.get(part, 1) * value for part, value in parts.items())
        assert total == pytest.approx(expected["total"], rel=1e-4), name


@pytest.mark.shared
def test_the_published_trainer_counts_flops_twice(shared):
    """Its first step with FLOPS and L1 has the loss KL + 2 FLOPS + L1."""
    golden = json.loads((shared / "golden/splade/train_trajectory.json").read_text())["iterations"]
    alone, both = golden["FLOPS"]["1"], golden["FLOPS+L1"]["1"]
    kl = alone["batch_train_loss"] - alone["batch_FLOPS"]
    terms = [torch.tensor(both["batch_FLOPS"]), torch.tensor(both["batch_L1"])]
    assert kl + sum_penalties(terms, running=True).item() == pytest.approx(both["batch_train_loss"], rel=1e-5)
    assert kl + sum_penalties(terms).item() == pytest.approx(both["batch_train_loss"] - both["batch_FLOPS"], rel=1e-5)


def test_losses_equal_their_equations_written_as_loops():
    encoded = random_batch()
    q, d, taught = encoded.query.tolist(), encoded.document.tolist(), encoded.judged.tolist()
    count, negatives = 3, 2

    def score(i, j):
        return sum(a * b for a, b in zip(q[i], d[j], strict=True))

    def nll(i, right, others):
        return -math.log(math.exp(score(i, right)) / sum(math.exp(score(i, j)) for j in {right, *others}))

    own = [[count + negatives * i + k for k in range(negatives)] for i in range(count)]
    every = range(count + count * negatives)
    expected = {
        losses.dpr: sum(nll(i, i, every) for i in range(count)) / count,
        losses.splade_pairwise: sum(nll(i, i, own[i]) for i in range(count)) / count,
        losses.splade_in_batch: sum(nll(i, i, [*range(count), *own[i]]) for i in range(count)) / count,
        losses.splade_shared_negatives: sum(nll(i, i, every[count:]) for i in range(count)) / count,
    }
    errors = [
        (score(i, i) - score(i, own[i][k]) - taught[i][0] + taught[i][1 + k]) ** 2
        for i in range(count)
        for k in range(negatives)
    ]
    expected[losses.splade_margin_mse] = sum(errors) / len(errors)
    wrong = [[score(i, j) - taught[i][k] for k, j in enumerate((i, *own[i]))] for i in range(count)]
    pairs = [(a - b) ** 2 for row in wrong for a in row for b in row]
    assert losses.splade_margin_mse(encoded, all_pairs=True).item() == pytest.approx(sum(pairs) / len(pairs))
    divergence = 0.0
    for i in range(count):
        scores = [score(i, j) for j in (i, *own[i])]
        model, teacher = ([math.exp(s) / sum(map(math.exp, row)) for s in row] for row in (scores, taught[i]))
        divergence += sum(t * math.log(t / m) for t, m in zip(teacher, model, strict=True)) / count
    expected[losses.splade_kl] = divergence
    for function, value in expected.items():
        assert function(encoded).item() == pytest.approx(value), function.__name__
    # `sym_loss` of VDR's repository adds the positives over all queries, where hard negatives have no part.
    backward = 0.0
    for i in range(count):
        column = [math.exp(score(j, i)) for j in range(count)]
        backward -= math.log(column[i] / sum(column)) / count
    assert losses.dpr(encoded, symmetric=True).item() == pytest.approx(expected[losses.dpr] + backward)


@pytest.mark.parametrize("name", [*RANKING_LOSSES, "dpr"])
def test_gradients(name):
    encoded = random_batch()
    sides = (encoded.query.requires_grad_(), encoded.document.requires_grad_())
    function = OBJECTIVES[name].function
    assert torch.autograd.gradcheck(lambda q, d: function(encoded._replace(query=q, document=d), 0.5), sides)


def test_the_teacher_gets_no_gradient():
    encoded = random_batch()
    assert encoded.taught is not None
    taught = encoded.taught.requires_grad_()
    for function in (losses.splade_kl, losses.splade_margin_mse):
        function(encoded._replace(query=encoded.query.clone().requires_grad_(), taught=taught)).backward()
    assert taught.grad is None


@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_a_batch_without_hard_negatives_raises(name):
    with pytest.raises(ValueError, match="0 hard negatives of 2 queries"):
        RANKING_LOSSES[name].function(losses.Encoded(torch.eye(2), torch.eye(2), taught=torch.zeros(2, 2)))
    with pytest.raises(ValueError, match="1 hard negatives of 2 queries"):
        RANKING_LOSSES[name].function(losses.Encoded(torch.eye(2), torch.ones(3, 2), taught=torch.zeros(2, 3)))


def test_distil_by_hand() -> None:
    """Where the teacher knows nothing and scores are equal, the loss is ln 2 in each direction."""
    vectors = torch.eye(2)
    loss = losses.distil(losses.Encoded(vectors * 0, vectors, taught=torch.zeros(2, 2)))
    torch.testing.assert_close(loss, 2 * torch.tensor(2.0).log())
    certain = losses.distil(
        losses.Encoded(vectors, vectors, taught=vectors), model_temperature=0.01, teacher_temperature=0.01
    )
    assert certain.item() < 1e-6


def test_distil_of_bags_by_hand() -> None:
    """Bags that no document knows add ln 2 in each direction, times their weight."""
    vectors, cold = torch.eye(3)[:2], {"model_temperature": 0.01, "teacher_temperature": 0.01}
    encoded = losses.Encoded(
        vectors, vectors, query_bag=torch.tensor([[False, False, True]] * 2), taught=vectors @ vectors.T
    )
    assert losses.distil(encoded, **cold).item() < 1e-6
    loss = losses.distil(encoded, nonparametric=0.5, **cold)
    torch.testing.assert_close(loss, 0.5 * 2 * torch.tensor(2.0).log())
    known = encoded._replace(query_bag=torch.tensor([[True, False, True], [False, True, True]]))
    assert losses.distil(known, nonparametric=0.5, **cold).item() < 1e-6
    # Bags of unit length and their own temperature: scores [[1, 0], [0, 1]] / sqrt(2) / 0.5.
    warm = losses.distil(known, nonparametric=1.0, normalised=True, bag_temperature=0.5, **cold)
    torch.testing.assert_close(warm, 2 * (1 + torch.tensor(-(2**0.5)).exp()).log())
    with pytest.raises(ValueError, match="needs the own tokens"):
        losses.distil(losses.Encoded(vectors, vectors, taught=vectors @ vectors.T), nonparametric=0.5)
