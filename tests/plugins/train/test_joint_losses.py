"""D2S and Joint against the reference (shared golden data), and by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import normalize

from lexvl_anserini.encoders.families.dense_heads import D2SHead, JointHead
from lexvl_anserini.encoders.parts.tokens import load_tokenizer
from lexvl_plugins.train.images.captioned import Expansion
from lexvl_plugins.train.objectives import REGULARISERS, l1, ramp
from lexvl_plugins.train.objectives import family_losses as losses
from lexvl_plugins.train.objectives.contrastive import Dense, Encoded
from tests.plugins.train.tiny_training import tensors


def regulariser_weight(weight, done, warm_up):
    return weight * ramp(done, warm_up)


def d2s_regulariser(texts, images, text_weight, image_weight):
    """The L1 norms of both sides times their weights at this step, halved."""
    return (text_weight * l1(texts) + image_weight * l1(images)) / 2


def batch(texts, images, dense_texts, dense_images, **more):
    return Encoded(texts, images, dense=Dense(dense_texts, dense_images), **more)


# ---- by hand


def test_d2s_by_hand():
    """Equal scores and a certain teacher give log 2; they are best if its temperature is infinite."""
    same, dense = torch.ones(2, 2), torch.eye(2)
    assert losses.d2s(batch(same, same, dense, dense)).item() == pytest.approx(math.log(2))
    sharp = 20 * torch.eye(2)
    assert losses.d2s(batch(sharp, sharp, dense, dense)).item() == pytest.approx(0, abs=1e-6)
    assert losses.d2s(batch(torch.eye(2), torch.eye(2), same, same)).item() == pytest.approx(math.log(1 + math.e) - 0.5)


def test_the_teacher_gets_no_gradient():
    inputs = [torch.rand(3, 4, requires_grad=True) for _ in range(4)]
    losses.d2s(batch(*inputs)).backward()
    assert [tensor.grad is not None for tensor in inputs] == [True, True, False, False]


def test_masked_texts_keep_their_own_tokens_and_published_expanded_texts_are_images():
    texts, images, dense = torch.rand(2, 3), torch.rand(2, 3), torch.eye(2)
    bag = torch.tensor([[True, False, True], [False, True, False]])
    masked = batch(texts, images, dense, dense, query_bag=bag, expanded=False)
    assert losses.d2s(masked).item() == losses.d2s(batch(texts * bag, images, dense, dense)).item()
    assert losses.d2s(masked, published=True).item() == losses.d2s(masked).item()
    expanded = batch(texts, images, dense, dense, query_bag=bag)
    assert losses.d2s(expanded, published=True).item() == losses.d2s(batch(images, images, dense, dense)).item()
    assert losses.d2s(expanded).item() == losses.d2s(batch(texts, images, dense, dense)).item()
    with pytest.raises(ValueError, match="own tokens"):
        losses.d2s(batch(texts, images, dense, dense, expanded=False))


def test_joint_takes_a_published_mix_or_four_numbers_and_limits_the_temperature():
    inputs = [normalize(torch.rand(3, 4), dim=1) for _ in range(4)]
    encoded = batch(*inputs)
    assert losses.joint(encoded, 0.07, [0.1, 0.1, 0.9, 0.3]).item() == losses.joint(encoded, 0.07, "blip-coco").item()
    halves = losses.compute_halves(encoded, 0.5, losses.MIXES["blip-coco"])
    assert losses.joint(encoded, 7.0).item() == halves.total.item()
    with pytest.raises(ValueError, match="expected one of albef-coco"):
        losses.find_mix("blip")
    with pytest.raises(ValueError, match="four numbers"):
        losses.find_mix([1.0, 2.0])


def written_again(encoded, temperature, mix, inter=1.0, distillation="both", transposed=False, paper=False):
    """The loss of the ablation's rows as loops over floats."""
    query = encoded.query if encoded.expanded else encoded.query * encoded.query_bag
    texts, images = query.tolist(), encoded.document.tolist()
    sides = encoded.dense.document.tolist(), encoded.dense.query.tolist()
    every = range(len(texts))

    def dot(a, b):
        return sum(x * float(y) for x, y in zip(a, b, strict=True))

    def soft(row):
        return [math.exp(x) / sum(map(math.exp, row)) for x in row]

    def turned(scores):
        return [[scores[i][t] for i in every] for t in every]

    def entropy(teacher, scores):
        rows = [zip(teacher[i], soft(scores[i]), strict=True) for i in every]
        return -sum(p * math.log(q) for row in rows for p, q in row) / len(rows)

    dense = [[dot(i, t) / temperature for t in sides[1]] for i in sides[0]]
    lexical = [[dot(i, t) for t in texts] for i in images]
    mixed = [[mix[0] * dense[i][t] + mix[1] * lexical[i][t] for t in every] for i in every]
    labels = [[float(i == t) for t in every] for i in every]

    def nce_of(scores):
        return (entropy(labels, scores) + entropy(labels, turned(scores))) / 2

    source = dense if distillation == "one-way" else mixed
    teacher = [soft(row) for row in source]
    other = [soft(row) for row in turned(source)] if transposed or paper else teacher

    def taught(scores):
        return (entropy(teacher, scores) + entropy(other, turned(scores))) / 2

    labelled = mix[2] * nce_of(dense) + mix[3] * nce_of(lexical) + inter * nce_of(mixed)
    weights = (1, 1) if paper else mix[2:]
    from_teacher = {
        "both": weights[0] * taught(dense) + weights[1] * taught(lexical),
        "one-way": weights[1] * taught(lexical),
        "none": 0,
    }[distillation]
    return labelled + from_teacher / 2 if paper else (labelled + from_teacher) / 4


ROWS = [
    *({}, {"transposed": True}, {"inter": 0.4}, {"paper": True}),
    *({"distillation": "one-way", **more} for more in ({}, {"transposed": True}, {"paper": True})),
    *({"distillation": "none", **more} for more in ({}, {"inter": 0.0}, {"paper": True})),
]


@pytest.mark.parametrize("expanded", [True, False])
@pytest.mark.parametrize("options", ROWS, ids=str)
def test_joint_and_the_rows_of_its_ablation_equal_their_equations(options, expanded):
    """Without expansion, texts have their own tokens alone, as D2S' have."""
    draw = torch.Generator().manual_seed(3)
    lexical = [torch.rand(3, 6, generator=draw, dtype=torch.float64) for _ in range(2)]
    dense = [normalize(torch.randn(3, 4, generator=draw, dtype=torch.float64), dim=1) for _ in range(2)]
    bag = torch.tensor([[True, False] * 3, [False, True] * 3, [True] * 3 + [False] * 3])
    mix = (0.2, 0.5, 0.9, 0.3)
    encoded = batch(*lexical, *dense, query_bag=bag, expanded=expanded)
    expected = written_again(encoded, 0.3, mix, **options)
    assert losses.joint(encoded, 0.3, mix, **options).item() == pytest.approx(expected)


def test_one_way_distillation_teaches_the_lexical_scores_alone():
    inputs = [normalize(torch.rand(4, 6), dim=1).requires_grad_() for _ in range(4)]
    loss = losses.compute_halves(batch(*inputs), 0.1, losses.Mix(0.2, 0.5, 0.9, 0.3), distillation="one-way").distilled
    texts, images, *dense = torch.autograd.grad(loss, inputs, allow_unused=True)
    assert texts.abs().max() > 0 and images.abs().max() > 0 and dense == [None, None]


@pytest.mark.parametrize("option", ["transposed", "stop_gradient"])
def test_options_of_joint_without_meaning_are_refused(option):
    with pytest.raises(ValueError, match="distillation none has no teacher"):
        losses.joint(batch(*torch.rand(4, 2, 3)), 0.07, "blip-coco", distillation="none", **{option: True})


def test_mask_probability():
    assert losses.compute_mask_probability(1, 200) == 1 and losses.compute_mask_probability(200, 200) == 0
    assert losses.compute_mask_probability(96, 100) == 0
    assert losses.compute_mask_probability(95, 100) == pytest.approx(1 / 95)
    assert [losses.compute_mask_probability(epoch, 10, 0.5) for epoch in (1, 2, 5, 6, 10)] == pytest.approx(
        [1, 0.8, 0.2, 0, 0]
    )
    stage = Expansion("controlled", seed=0, first=7, per_epoch=2000, epochs=10)
    assert not any(stage(step) for step in range(7, 27)) and all(stage(20_007 + step) for step in range(20))
    draws = sum(not stage(7 + 4 * 2000 + step) for step in range(2000))
    assert abs(draws / 2000 - losses.compute_mask_probability(5, 10)) < 0.05
    early = replace(stage, end=0.5)
    assert all(early(7 + 5 * 2000 + step) for step in range(2000))  # from epoch 6 of 10 on


def test_weights_of_the_scores_instead_of_those_of_the_mix():
    encoded = batch(*torch.rand(2, 3, 6), *normalize(torch.randn(2, 3, 4), dim=2))
    changed = losses.joint(encoded, 0.1, "albef-coco", w1=0.7).item()
    assert changed == losses.joint(encoded, 0.1, [0.7, 0.5, 0.9, 0.3]).item() != losses.joint(encoded, 0.1).item()
    both = losses.joint(encoded, 0.1, "albef-coco", w1=0.0, w2=2.0)
    assert both.item() == losses.joint(encoded, 0.1, [0.0, 2.0, 0.9, 0.3]).item()


def test_stop_gradient_changes_gradients_only():
    inputs = [normalize(torch.rand(4, 6), dim=1).requires_grad_() for _ in range(4)]
    totals = {}
    for stop in (False, True):
        texts, images, sparse_texts, sparse_images = inputs
        encoded = batch(sparse_texts, sparse_images, texts, images)
        total = losses.joint(encoded, 0.1, [0.2, 0.5, 0.9, 0.3], stop_gradient=stop)
        totals[stop] = (total.item(), torch.autograd.grad(total, inputs[0])[0])
    assert totals[True][0] == pytest.approx(totals[False][0])
    assert (totals[True][1] - totals[False][1]).abs().max() > 1e-4


# ---- golden: D2S


@pytest.mark.shared
def test_loss_regulariser_and_gradients_of_d2s(shared):
    golden = json.loads((shared / "golden/d2s/loss_and_schedules.json").read_text())
    arrays = tensors(shared / "golden/d2s/loss_grads.npz")
    about, inputs = golden["bice"], ("sparse_texts", "sparse_imgs", "dense_texts", "dense_imgs")
    texts, images, dense_texts, dense_images = (arrays[name] for name in inputs)
    texts.requires_grad_(), images.requires_grad_()
    for call in about["calls"]:
        weights = [regulariser_weight(about[key], call["call"], about["T"]) for key in ("q_reg", "d_reg")]
        assert weights == pytest.approx([call["q_weight_used"], call["d_weight_used"]])
        loss = losses.d2s(batch(texts, images, dense_texts, dense_images), about["temp"])
        reg = d2s_regulariser(texts, images, *weights)
        assert loss.item() == pytest.approx(call["loss"], rel=1e-5)
        assert reg.item() == pytest.approx(call["reg"], rel=1e-5)
    (loss + reg).backward()
    for found, name in ((texts.grad, "grad_sparse_texts"), (images.grad, "grad_sparse_imgs")):
        np.testing.assert_allclose(found.numpy(), arrays[name].numpy(), rtol=1e-4, atol=1e-6)
    first = golden["bice_defaults_first_call"]
    assert losses.d2s(batch(texts, images, dense_texts, dense_images)).item() == pytest.approx(first["loss"], rel=1e-5)


@pytest.mark.shared
def test_schedules_of_d2s(shared):
    golden = json.loads((shared / "golden/d2s/loss_and_schedules.json").read_text())
    images = tensors(shared / "golden/d2s/head.npz")["img_full"]
    for name, about in golden["regularizer_schedule"].items():
        weights = [regulariser_weight(about["weight"], n, about["T"]) for n in range(len(about["weight_before_step"]))]
        assert weights == pytest.approx(about["weight_before_step"])
        value = REGULARISERS[name.partition("_")[0].lower()].function(images).item()
        assert [weight * value for weight in weights] == pytest.approx(about["value_on_img_full"], rel=1e-5)
    for epochs, about in golden["pec_mask_ratio"].items():
        found = [losses.compute_mask_probability(epoch, int(epochs)) for epoch in range(1, int(epochs) + 2)]
        # The reference subtracts in float32, step by step.
        assert found == pytest.approx([*about["mask_ratio_per_epoch"], about["after_last"]], abs=2e-5)


def linear(optimiser, warm_up, steps):
    """The rate grows linearly from 0, then falls linearly to 0."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda n: n / max(1, warm_up) if n < warm_up else max(0.0, (steps - n) / max(1, steps - warm_up))
    )


def batches(about, size):
    """Positions of texts and images of each batch, in order."""
    texts, images = ({name: i for i, name in enumerate(about[f"{kind}_ids"])} for kind in ("text", "image"))
    for start in range(0, len(about["pairs"]), size):
        piece = about["pairs"][start : start + size]
        yield [texts[text] for text, _ in piece], [images[image] for _, image in piece]


@pytest.mark.shared
@pytest.mark.parametrize("variant", ["fixed", "as_is"])
def test_a_training_of_d2s(shared, variant):
    """Twelve steps end at the reference's weights. `as_is` repeats its error: expanded texts are images."""
    folder = shared / "golden/d2s"
    about, golden = (json.loads((folder / name).read_text()) for name in ("train_data.json", "train_and_eval.json"))
    golden, arrays = golden[variant], tensors(folder / "train_data.npz")
    settings = json.loads((folder / "loss_and_schedules.json").read_text())["bice"]
    start = load_file(folder / "ckpt/model.safetensors")
    head = D2SHead(start["proj.weight"].shape[1], start["proj.weight"].shape[0], len(start["vocab_projector.weight"]))
    head.load_state_dict(start)
    new = list(head.proj.parameters())
    old = [*head.vocab_layer_norm.parameters(), *head.vocab_projector.parameters()]
    optimiser = torch.optim.AdamW([{"params": old, "lr": 5e-5}, {"params": new, "lr": 1e-3}], eps=1e-8, weight_decay=0)
    schedule = linear(optimiser, golden["num_warm_up"], golden["num_training_steps"])
    own = _own_tokens(shared, about["texts"], len(start["vocab_projector.weight"]))
    rounds = [piece for _ in range(4) for piece in batches(about, 4)]
    for n, ((texts, images), draw) in enumerate(zip(rounds, golden["train_mask_draws"], strict=True)):
        dense_texts, dense_images = arrays["txt_embs"][texts], arrays["img_embs"][images]
        assert draw["p"] == pytest.approx(losses.compute_mask_probability(n // 3 + 1, 4), abs=1e-6)
        sparse_images = encode(head, dense_images)
        known = {"query_bag": own[texts] > 0, "expanded": not draw["draw"]}
        encoded = batch(encode(head, dense_texts), sparse_images, dense_texts, dense_images, **known)
        weights = [regulariser_weight(settings[key], n, golden["num_warm_up"]) for key in ("q_reg", "d_reg")]
        loss = losses.d2s(encoded, settings["temp"], published=variant == "as_is")
        reg = d2s_regulariser(losses.choose_texts(encoded, variant == "as_is"), sparse_images, *weights)
        expected = golden["steps"][n]
        assert [group["lr"] for group in optimiser.param_groups] == pytest.approx(expected["lr"])
        assert loss.item() == pytest.approx(expected["rel_loss"], rel=1e-3)
        assert reg.item() == pytest.approx(expected["reg"], rel=1e-3)
        optimiser.zero_grad()
        (loss + reg).backward()
        optimiser.step()
        schedule.step()
    final = tensors(folder / f"train_final_{variant}.npz")
    for name, weight in head.state_dict().items():
        np.testing.assert_allclose(weight.numpy(), final[name].numpy(), atol=1e-4)


def _own_tokens(shared, texts, size):
    """Bool [n, V]: the tokens of each text, [CLS] and [SEP] among them."""
    tokenizer = load_tokenizer(shared / "golden/common/tokenizer_bert_tiny")
    own = torch.zeros(len(texts), size)
    for row, ids in enumerate(tokenizer(list(texts))["input_ids"]):
        own[row, ids] = 1
    return own


def encode(head, dense):
    return torch.log1p(torch.relu(head.vocab_projector(head(dense))))


# ---- golden: Joint


@pytest.mark.shared
@pytest.mark.parametrize("name", losses.MIXES)
def test_loss_and_gradients_of_joint(shared, name):
    golden = json.loads((shared / "golden/joint/loss.json").read_text())["per_config"][name]
    arrays, grads = (tensors(shared / f"golden/joint/{file}.npz") for file in ("loss_inputs", "loss_grads"))
    keys = ("dense_texts", "dense_imgs", "sparse_texts", "sparse_imgs")
    inputs = [arrays[key].requires_grad_() for key in keys]
    temperature = torch.tensor(golden["temp"], requires_grad=True)
    assert losses.MIXES[name] == losses.Mix(*(golden[key] for key in losses.Mix._fields))
    encoded = batch(inputs[2], inputs[3], inputs[0], inputs[1])
    for n, call in enumerate(golden["calls"]):
        found = losses.compute_halves(encoded, losses.clamp_temperature(temperature), losses.find_mix(name))
        assert losses.joint(encoded, temperature, name).item() == found.total.item()
        weights = [regulariser_weight(golden[key], n, golden["T"]) for key in ("q_reg", "d_reg")]
        reg = d2s_regulariser(inputs[2], inputs[3], *weights)
        assert weights == pytest.approx([call["q_weight_used"], call["d_weight_used"]])
        assert found.labelled.item() == pytest.approx(call["L"], rel=1e-5)
        assert found.distilled.item() == pytest.approx(call["Lp"], rel=1e-5)
        assert found.total.item() == pytest.approx(call["loss"], rel=1e-5)
        assert reg.item() == pytest.approx(call["reg"], rel=1e-5)
    (found.total + reg).backward()
    assert temperature.grad.item() == pytest.approx(golden["grad_temp"], rel=1e-4)
    for tensor, key in zip(inputs, keys, strict=True):
        np.testing.assert_allclose(tensor.grad.numpy(), grads[f"{name}/{key}"].numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.shared
def test_components_and_the_transposed_teacher(shared):
    golden = json.loads((shared / "golden/joint/loss.json").read_text())
    arrays = tensors(shared / "golden/joint/loss_inputs.npz")
    temperature, parts = golden["per_config"]["albef-coco"]["temp"], golden["components_albef_coco"]
    dense = arrays["dense_imgs"] @ arrays["dense_texts"].T / temperature
    lexical = arrays["sparse_imgs"] @ arrays["sparse_texts"].T
    mix = losses.MIXES["albef-coco"]
    mixed = mix.w1 * dense + mix.w2 * lexical
    encoded = batch(*(arrays[key] for key in ("sparse_texts", "sparse_imgs", "dense_texts", "dense_imgs")))
    for name, transposed in (("as_is", False), ("transposed_teacher", True)):
        loss, expected = losses.compute_halves(encoded, temperature, mix, transposed), parts[name]
        teacher = mixed.softmax(dim=1)
        other = mixed.T.softmax(dim=1) if transposed else teacher
        assert losses.soft_nce(dense, teacher, other).item() == pytest.approx(expected["Ld_dense"], rel=1e-5)
        assert losses.soft_nce(lexical, teacher, other).item() == pytest.approx(expected["Ld_lex"], rel=1e-5)
        assert loss.distilled.item() == pytest.approx(expected["Lp"], rel=1e-5)
        assert loss.total.item() == pytest.approx(expected["loss"], rel=1e-5)
    assert losses.nce(lexical).item() == pytest.approx(golden["other_modes"]["sparse_only"]["loss"], rel=1e-5)
    # Joint's baseline is the loss of D2S with another temperature of the teacher.
    assert losses.d2s(encoded, 0.05).item() == pytest.approx(golden["other_modes"]["BaselineLoss"][0]["loss"], rel=1e-5)


@pytest.mark.shared
def test_a_training_of_joint(shared):
    """Twenty steps with the published recipe end at the reference's weights."""
    folder = shared / "golden/joint"
    about, golden = (json.loads((folder / name).read_text()) for name in ("train_data.json", "train_and_eval.json"))
    arrays, start, final = (tensors(folder / f"{name}.npz") for name in ("train_data", "train_init", "train_final"))
    weights = {key.removeprefix("model."): value for key, value in start.items() if key.startswith("model.")}
    projection, single = weights["text_proj.weight"], weights["single_proj.weight"]
    words = len(weights["single_vocab_projector.weight"])
    head = JointHead(projection.shape[1], len(projection), len(single), words, untied=False)
    head.load_state_dict(weights)
    temperature = torch.nn.Parameter(start["temp"])
    parameters = [temperature, *head.parameters()]
    optimiser = torch.optim.AdamW(parameters, golden["overrides"]["lr"], eps=1e-8, weight_decay=0.05)
    steps = golden["steps"]
    schedule = linear(optimiser, len(steps) // 5, len(steps))
    rounds = [piece for _ in range(golden["overrides"]["epochs"]) for piece in batches(about, 4)]
    for n, ((texts, images), expected) in enumerate(zip(rounds, steps, strict=True)):
        assert temperature.item() == pytest.approx(expected["temp"], rel=1e-4)
        dense = (head.dense_text(arrays["text_cls"][texts]), head.dense_image(arrays["img_cls"][images]))
        sparse = [torch.log1p(torch.relu(head.single_vocab_projector(head(side)))) for side in dense]
        limited = losses.clamp_temperature(temperature)
        loss = losses.compute_halves(batch(*sparse, *dense), limited, losses.MIXES["albef-coco"])
        reg_weights = [regulariser_weight(golden["overrides"][key], n, golden["T"]) for key in ("q_reg", "d_reg")]
        reg = d2s_regulariser(*sparse, *reg_weights)
        assert loss.labelled.item() == pytest.approx(expected["sup_loss"], rel=1e-3)
        assert loss.distilled.item() == pytest.approx(expected["distill_loss"], rel=1e-3)
        assert (loss.total + reg).item() == pytest.approx(expected["loss"], rel=1e-3)
        optimiser.zero_grad()
        (loss.total + reg).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
    assert temperature.item() == pytest.approx(final["temp"].item(), abs=3e-4)
    for name, weight in head.state_dict().items():
        np.testing.assert_allclose(weight.numpy(), final[f"model.{name}"].numpy(), atol=3e-4)
