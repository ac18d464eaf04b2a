"""VDR, SVDR, InfoNCE, STAIR, FDT, DPR, SPLADE: by hand, and against losses and gradients of references and oracle."""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from lexvl_anserini.encoders.families.fdt import sparsemax
from lexvl_plugins.train.images.sides import Codebook
from lexvl_plugins.train.model_settings import CodebookSettings
from lexvl_plugins.train.objectives import OBJECTIVES, RANKING_LOSSES, anti_zero, flops, l1, sum_penalties
from lexvl_plugins.train.objectives import contrastive as losses

GOLDEN = Path(__file__).parents[2] / "golden" / "vdr"

VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "vdr": (losses.vdr, {}),
    "svdr": (losses.svdr, {}),
    "svdr_cts": (losses.svdr, {"mask_weight": 1.0}),
    "svdr_cts_norm": (losses.svdr, {"mask_weight": 0.5, "mask_norm": True}),
    "svdr_asym": (losses.svdr, {"symmetric": False}),
    "svdr_scaled": (losses.svdr, {"scaled": True}),
}


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    """Fixed embeddings, bags, gradients and masks."""
    with np.load(GOLDEN / "loss.npz") as archive:
        return dict(archive)


def encoded_of(arrays: dict[str, np.ndarray]) -> losses.Encoded:
    """The reference's gradients are with respect to the embeddings after scaling."""
    query, document = ((torch.from_numpy(arrays[name]) * 0.05).requires_grad_() for name in ("q_emb", "p_emb"))
    bags = (torch.from_numpy(arrays[name]) > 0 for name in ("q_bin", "p_bin"))
    return losses.Encoded(query, document, *bags)


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_equal_the_reference(variant: str, arrays: dict[str, np.ndarray]) -> None:
    expected = json.loads((GOLDEN / "loss.json").read_text())[variant]
    function, options = VARIANTS[variant]
    encoded = encoded_of(arrays)
    loss = function(encoded, **options)
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-5)
    for leaf, name in ((encoded.query, "grad_q_norm"), (encoded.document, "grad_p_norm")):
        assert leaf.grad is not None
        assert leaf.grad.norm().item() == pytest.approx(expected[name], rel=1e-5)
        if (whole := arrays.get(f"{variant}_{name.removesuffix('_norm')}")) is not None:
            torch.testing.assert_close(leaf.grad, torch.from_numpy(whole), atol=1e-6, rtol=1e-4)


def test_the_contrastive_mask_equals_the_reference(arrays: dict[str, np.ndarray]) -> None:
    for side in ("q", "p"):
        mask = losses.make_contrastive_mask(torch.from_numpy(arrays[f"{side}_bin"]) > 0)
        assert (mask.numpy() == arrays[f"cts_mask_{side}"]).all()


@pytest.mark.parametrize(
    ("options", "factor", "scale"), [({}, 2, 1), ({"symmetric": False}, 1, 1), ({"temperature": 0.5}, 2, 2)]
)
def test_contrastive_by_hand(options: dict[str, Any], factor: int, scale: int) -> None:
    expected = math.log(1 + math.exp(-scale))
    assert losses.contrast(torch.eye(2), torch.eye(2), **options).item() == pytest.approx(factor * expected)
    found = losses.info_nce(losses.Encoded(torch.eye(2), torch.eye(2)), temperature=1 / scale)
    assert found.item() == pytest.approx(expected)


def test_hard_negatives_act_in_the_first_direction_only() -> None:
    query, positive = torch.eye(2), torch.eye(2)
    document = torch.cat([positive, torch.ones(1, 2)])
    difference = losses.contrast(query, document) - losses.contrast(query, positive)
    first = losses.contrast(query, document, symmetric=False) - losses.contrast(query, positive, symmetric=False)
    assert difference.item() == pytest.approx(first.item()) and first > 0


def test_a_masked_vector_keeps_its_largest_weights_and_its_own_tokens() -> None:
    weights, bag = torch.tensor([[0.4, 0.1, 0.3, 0.2]]), torch.tensor([[False, True, False, False]])
    assert losses.keep_heaviest(weights, None, 2).tolist() == [pytest.approx([0.4, 0, 0.3, 0])]
    assert losses.keep_heaviest(weights, bag, 1).tolist() == [pytest.approx([0.4, 0.1, 0, 0])]


def test_the_nonparametric_entry_pulls_an_image_to_the_words_of_its_captions() -> None:
    image, text = torch.full((2, 4), 0.5, requires_grad=True), torch.full((2, 4), 0.5)
    batch = losses.Encoded(text, image, torch.eye(4)[:2].bool())
    losses.vdr(batch, topk=4, normalised=True).backward()
    assert image.grad is not None
    assert image.grad[0, 0] < 0 < image.grad[0, 1] and image.grad[1, 1] < 0 < image.grad[1, 0]
    assert losses.vdr(batch, topk=4, nonparametric=0.0).item() == pytest.approx(2 * math.log(2))


@pytest.mark.parametrize("function", [losses.info_nce, losses.naming, losses.distil, losses.stair])
def test_gradients(function: Any) -> None:
    generator = torch.Generator().manual_seed(8)
    query, document, share, taught = (torch.rand(3, n, generator=generator, dtype=torch.float64) for n in (5, 5, 5, 3))
    batch = losses.Encoded(query, document, named=share, frequency=share.mean(dim=0), taught=taught)
    sides = (query.requires_grad_(), document.requires_grad_())
    assert torch.autograd.gradcheck(lambda q, d: function(batch._replace(query=q, document=d)), sides)


# ---- STAIR


@pytest.mark.shared
def test_stair_of_the_oracle(shared):
    golden = json.loads((shared / "golden/stair/formula_oracle.json").read_text())
    arrays = np.load(shared / "golden/stair/formula_oracle.npz")
    text, image = torch.from_numpy(arrays["enc_txt"]), torch.from_numpy(arrays["enc_img"])
    bag = torch.from_numpy(arrays["bow_mask_incl_special"]) > 0
    kinds = {"incl": "incl_special", "no": "no_special"}
    masks = {name: torch.from_numpy(arrays[f"enc_txt_masked_{kind}"]) for name, kind in kinds.items()}
    for name, temperature in (("T=1.0", 1.0), ("T=0.07", 0.07)):
        there, back = losses.Encoded(text, image, bag), losses.Encoded(image, text)
        expected = golden["contrastive"][name]
        assert losses.stair(there, temperature).item() == pytest.approx(expected["mean"], rel=1e-9)
        assert losses.stair(there, temperature, symmetric=False).item() == pytest.approx(expected["t2i"], rel=1e-9)
        assert losses.stair(back, temperature, symmetric=False).item() == pytest.approx(expected["i2t"], rel=1e-9)
        # The oracle's first stage has one of the two masks.
        stage = golden["contrastive_stage1_masked"][name]
        found = {kind: losses.stair(losses.Encoded(own, image), temperature).item() for kind, own in masks.items()}
        assert stage["mean"] in [pytest.approx(value, rel=1e-9) for value in found.values()]
        assert losses.stair(there, temperature, masked=True).item() == pytest.approx(found["incl"], rel=1e-9)
    total = losses.stair(losses.Encoded(text, image), 0.07) + 1e-3 * (flops(text) + flops(image))
    assert [flops(image).item(), flops(text).item()] == pytest.approx([golden["flops_img"], golden["flops_txt"]])
    assert total.item() == pytest.approx(golden["total_T0.07_mean"], rel=1e-9)


def test_cosines_by_hand():
    text, image = torch.tensor([[3.0, 0.0], [0.0, 7.0]]), torch.tensor([[5.0, 0.0], [0.0, 0.1]])
    assert losses.stair(losses.Encoded(text, image), 1.0).item() == pytest.approx(math.log(1 + 1 / math.e))


def test_masked_and_empty_texts():
    """A masked text keeps its own tokens only; a text without any has no gradient that is not a number."""
    text, bag = torch.tensor([[1.0, 5.0], [5.0, 1.0]]), torch.eye(2, dtype=torch.bool)
    masked = losses.stair(losses.Encoded(text, torch.eye(2), bag), 1.0, masked=True)
    assert masked.item() == losses.stair(losses.Encoded(bag.float(), torch.eye(2)), 1.0).item()
    empty = torch.zeros(2, 3, requires_grad=True)
    losses.stair(losses.Encoded(empty, torch.rand(2, 3))).backward()
    assert empty.grad is not None and torch.isfinite(empty.grad).all()


# ---- FDT


@pytest.fixture
def fdt_golden(shared):
    folder = shared / "golden/fdt"
    about, arrays = json.loads((folder / "fdt-tiny.json").read_text()), np.load(folder / "fdt-tiny.npz")
    codebook = torch.load(folder / "checkpoints/ckpt_37800.pth.tar", weights_only=True)["model"]["module.space_dict"]
    return about, {name: torch.from_numpy(arrays[name]) for name in arrays.files}, codebook


@pytest.mark.shared
def test_features_logits_and_loss(fdt_golden):
    about, arrays, codebook = fdt_golden
    text, image = arrays["txt_att_Tckpt"], arrays["img_att_Tckpt"]
    for weights, side in ((text, "txt"), (image, "img")):
        expected = normalize(arrays[f"{side}_sd_Tckpt"], dim=1)
        torch.testing.assert_close(losses.compute_features(weights, codebook), expected, atol=1e-5, rtol=1e-5)
    encoded = losses.Encoded(text, image, codebook=codebook)
    temperature = math.exp(-about["logit_scale_log"])
    scores = losses.compute_features(image, codebook) @ losses.compute_features(text, codebook).T
    torch.testing.assert_close(scores / temperature, arrays["logits_per_image"], atol=1e-4, rtol=1e-5)
    assert losses.fdt(encoded, temperature).item() == pytest.approx(about["loss"], rel=1e-5)
    # A scale of e^6 is cut to 100.
    torch.testing.assert_close(scores * 100, arrays["logits_per_image_scale6"], atol=1e-3, rtol=1e-5)
    assert losses.fdt(encoded, math.exp(-6)).item() == losses.fdt(encoded, 0.01).item()


@pytest.mark.shared
def test_gradients_reach_the_scale_and_the_codebook(fdt_golden):
    about, arrays, codebook = fdt_golden
    degree, codebook = about["temperature_from_checkpoint"], codebook.clone().requires_grad_()
    log_scale = torch.tensor(about["logit_scale_log"], requires_grad=True)
    sides = []
    for side in ("txt", "img"):
        relevance = arrays[f"{side}_q"] @ codebook.T / codebook.shape[1] ** 0.5  # [B, L, K]
        if side == "txt":
            lengths = torch.tensor([len(ids) for ids in about["token_ids"]])
            relevance = relevance * (torch.arange(relevance.shape[1]) < lengths[:, None])[:, :, None]
        sides.append(sparsemax(relevance.amax(dim=1) / degree))
    loss = losses.fdt(losses.Encoded(*sides, codebook=codebook), (-log_scale).exp())
    loss.backward()
    assert loss.item() == pytest.approx(about["loss"], rel=1e-5)
    assert log_scale.grad.item() == pytest.approx(about["grad_logit_scale"], rel=1e-4)
    assert codebook.grad.norm().item() == pytest.approx(about["grad_norm_space_dict"], rel=1e-4)
    torch.testing.assert_close(codebook.grad[:8], arrays["grad_space_dict"], atol=1e-6, rtol=1e-4)


def test_fdt_by_hand():
    codebook = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    weights = torch.eye(3)[:2]
    encoded = losses.Encoded(weights, weights, codebook=codebook)  # features are the two axes
    assert losses.fdt(encoded, 1.0).item() == pytest.approx(math.log(1 + 1 / math.e))
    features = losses.compute_features(torch.tensor([[0.0, 0.0, 5.0]]), codebook)
    assert features.tolist() == [pytest.approx([0.5**0.5] * 2)]


def test_a_temperature_below_the_least_one_gets_no_gradient():
    beyond, weights = torch.tensor(0.005, requires_grad=True), torch.eye(2)
    losses.fdt(losses.Encoded(weights, weights, codebook=weights), beyond).backward()
    assert beyond.grad.item() == 0


def relevance_temperature(done: int, **settings: float) -> float:
    codebook = Codebook(CodebookSettings(terms=2, width=2, **settings))
    codebook.done.fill_(done)
    return codebook.temperature


def test_temperature_of_relevances_by_hand():
    assert relevance_temperature(50_000) == 1000  # the published run does not decay
    found = [relevance_temperature(done, decay=0.5, every=10, least=200) for done in (0, 9, 10, 19, 20, 30, 99)]
    assert found == [1000, 1000, 500, 500, 250, 200, 200]


@pytest.mark.shared
def test_temperature_of_the_evaluation(fdt_golden):
    about, _, _ = fdt_golden
    assert relevance_temperature(37_800, decay=0.75) == pytest.approx(about["temperature_from_checkpoint"])


def test_contrast_by_hand():
    query, document = torch.eye(2), torch.cat([torch.eye(2), torch.zeros(1, 2)])
    assert losses.v_splade(losses.Encoded(query, document)).item() == pytest.approx(math.log(1 + 2 / math.e))
    # Scores of 1000 and -1000 count as 100 and -100, without a gradient.
    large = (1000 * torch.tensor([[-1.0, 1.0], [1.0, -1.0]])).requires_grad_()
    loss = losses.v_splade(losses.Encoded(query, large))
    loss.backward()
    assert loss.item() == 200 and large.grad is not None and large.grad.abs().max().item() == 0


def test_queries_of_own_words_and_bags_by_hand():
    """Own words leave weight 2 of term 0; a bag makes it 1: scores 2 and 0, or 1 and 0."""
    query, bag = torch.tensor([[2.0, 5.0], [5.0, 2.0]]), torch.eye(2, dtype=torch.bool)
    encoded = losses.Encoded(query, torch.eye(2), query_bag=bag)
    assert losses.v_splade(encoded, queries="own").item() == pytest.approx(math.log(1 + math.exp(-2)))
    assert losses.v_splade(encoded, queries="bag").item() == pytest.approx(math.log(1 + math.exp(-1)))


def test_the_gate_by_hand():
    """Weights 3, 1, 0, 0 with mean 1; the caption has terms 0 and 2, so that the gate is (4, 0, 1, 0) / 5."""
    weights, caption = torch.tensor([[3.0, 1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    logits = torch.tensor([[2.0, 0.0, -1.0, 5.0]])
    encoded = losses.Encoded(torch.ones(1, 4), weights, caption=caption, logits=logits)

    def log_sigmoid(x: float) -> float:
        return -math.log(1 + math.exp(-x))

    assert losses.caption_gated(encoded).item() == pytest.approx(-(4 * log_sigmoid(2) + log_sigmoid(-1)) / 5)
    assert losses.caption_gated(encoded, alpha=0.0).item() == pytest.approx(-log_sigmoid(2))
    assert losses.caption_gated(encoded, target="logits").item() == pytest.approx(-(4 * 2 - 1) / 5)
    assert losses.caption_gated(encoded, target="weights").item() == pytest.approx(-4 * 3 / 5)
    assert losses.caption_gated(encoded, target="logits", focus=0.5).item() == pytest.approx(-(16 * 2 - 1) / 17)
    assert losses.caption_gated(encoded, target="logits", focus=1e-3).item() == pytest.approx(-2)


def test_only_terms_of_the_caption_are_raised():
    logits = torch.zeros(2, 3, requires_grad=True)
    weights, caption = torch.rand(2, 3, requires_grad=True), torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    caption.requires_grad_()
    losses.caption_gated(losses.Encoded(torch.ones(2, 3), weights, caption=caption, logits=logits)).backward()
    assert logits.grad is not None and (logits.grad != 0).tolist() == [[False, True, False], [False] * 3]
    assert logits.grad[0, 1] < 0
    assert weights.grad is None and caption.grad is None


def test_gradients_of_gates_and_bags():
    generator = torch.Generator().manual_seed(5)
    weights, caption, logits = (torch.rand(2, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    logits.requires_grad_()

    def loss(value: torch.Tensor, target: str = "log_sigmoid") -> torch.Tensor:
        return losses.caption_gated(losses.Encoded(weights, weights, caption=caption, logits=value), target=target)  # type: ignore

    assert torch.autograd.gradcheck(loss, (logits,))
    query = torch.rand(2, 4, dtype=torch.float64, generator=generator).requires_grad_()
    sides = query, weights.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, d: losses.v_splade(losses.Encoded(q, d)), sides)


# ---- naming


def test_naming_by_hand() -> None:
    images, named = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.5, 0.0]])
    encoded = losses.Encoded(images, images, named=named, frequency=torch.tensor([0.5, 0.25, 0.25]))
    # Shares 2/3 and 1/3; softmax of (1 + ln 1/2, ln 1/4, ln 1/4).
    whole = math.e / 2 + 0.5
    expected = -(2 * math.log(math.e / 2 / whole) + math.log(0.25 / whole)) / 3
    assert losses.naming(encoded, temperature=2.0).item() == pytest.approx(expected)


def test_a_smaller_prior_asks_more_of_common_terms() -> None:
    """Two terms, both named; without a prior the common one must be as heavy as the rare one, with it lighter."""
    frequency, named = torch.tensor([0.5, 0.05]), torch.tensor([[1.0, 1.0]])
    # softmax of (log .5, log .05) is 10/11 and 1/11, the target 1/2 each
    for prior, expected in ((0.0, [0.0, 0.0]), (1.0, [10 / 11 - 1 / 2, 1 / 11 - 1 / 2])):
        weights = torch.zeros(1, 2, requires_grad=True)
        encoded = losses.Encoded(torch.zeros(1, 2), weights, named=named, frequency=frequency)
        losses.naming(encoded, temperature=1.0, prior=prior).backward()
        np.testing.assert_allclose(weights.grad[0], expected, rtol=1e-5)


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
    every_own = product(range(count), range(negatives))
    errors = [(score(i, i) - score(i, own[i][k]) - taught[i][0] + taught[i][1 + k]) ** 2 for i, k in every_own]
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
def test_gradients_over_hard_negatives(name):
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
    cold = {"model_temperature": 0.01, "teacher_temperature": 0.01}
    assert losses.distil(losses.Encoded(vectors, vectors, taught=vectors), **cold).item() < 1e-6


def test_distil_of_bags_by_hand() -> None:
    """Bags that no document knows add ln 2 in each direction, times their weight."""
    vectors, cold = torch.eye(3)[:2], {"model_temperature": 0.01, "teacher_temperature": 0.01}
    bag = torch.tensor([[False, False, True]] * 2)
    encoded = losses.Encoded(vectors, vectors, query_bag=bag, taught=vectors @ vectors.T)
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
