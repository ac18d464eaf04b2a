"""LexLIP: the losses of both phases (shared golden data), the queue, the bottleneck, and masked words by hand."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from declared import GOLDEN
from torch.nn.functional import normalize

from lexvl_anserini.encoders.parts.tokens import load_tokenizer, make_all_columns
from lexvl_plugins.train.images.material import MaskedWords
from lexvl_plugins.train.objectives import family_losses as losses
from lexvl_plugins.train.objectives import flops
from lexvl_plugins.train.objectives.contrastive import Encoded, Keys, Predicted
from tests.plugins.train.tiny_training import tensors

WEIGHT = 0.002


def with_flops(loss, query, document):
    """The published sum: the loss and FLOPS of unit vectors on both sides."""
    return (loss + WEIGHT * (flops(query, normalised=True) + flops(document, normalised=True))).item()


@pytest.mark.shared
def test_contrast_of_phase_1(shared):
    golden = json.loads((shared / "golden/lexlip/phase1_losses.json").read_text())
    arrays = tensors(shared / "golden/lexlip/phase1_outputs.npz")
    text, image = arrays["text_rep"][:3], arrays["image_rep"]
    found = with_flops(losses.lexlip(Encoded(text, image)), text, image)
    assert found == pytest.approx(golden["contrastive_loss"], rel=1e-5)


def masked_lm(weights, layers):
    """A BertForMaskedLM with its layers from the keys below `layers`; the decoder is not tied."""
    import transformers

    words, places = (len(weights[f"bert.embeddings.{kind}_embeddings.weight"]) for kind in ("word", "position"))
    sizes = {"vocab_size": words, "max_position_embeddings": places, "hidden_size": 16, "intermediate_size": 64}
    blocks = {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, **blocks, tie_word_embeddings=False)
    model = transformers.BertForMaskedLM(config).eval()
    inner = "bert.encoder.layer."
    own = {key: value for key, value in weights.items() if not key.startswith((inner, "decoder_heads."))}
    own |= {inner + key.removeprefix(layers): weights[key] for key in weights if key.startswith(layers)}
    assert model.load_state_dict(own, strict=False).missing_keys == []
    return model


@pytest.mark.shared
@torch.no_grad()
def test_masked_words_and_bottleneck_of_phase_1(shared):
    folder = shared / "golden/lexlip"
    golden = json.loads((folder / "phase1_losses.json").read_text())
    inputs, outputs = tensors(folder / "phase1_inputs.npz"), tensors(folder / "phase1_outputs.npz")
    state = torch.load(folder / "phase1_model.ckpt", weights_only=True)["state_dict"]
    prefix = "text_transformer."
    weights = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    encoder, decoder = masked_lm(weights, "bert.encoder.layer."), masked_lm(weights, "decoder_heads.")
    embeddings = encoder.bert.embeddings.word_embeddings.weight

    padding = inputs["attention_mask"] == 0
    logits = encoder(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    torch.testing.assert_close(losses.compute_bottleneck(logits, embeddings, padding), outputs["text_bottleneck"])

    attention = inputs["attention_mask"][:3]
    own = encoder(input_ids=inputs["encoder_text_ids_mlm"], attention_mask=attention).logits

    def decoded(first):
        states = decoder.bert.embeddings(inputs["decoder_text_ids_mlm"])
        states = torch.cat([first[:, None], states[:, 1:]], dim=1)
        hidden = (1 - attention[:, None, None].float()) * torch.finfo(torch.float32).min
        for layer in decoder.bert.encoder.layer:
            states = layer(states, hidden)
            states = states[0] if isinstance(states, tuple) else states
        return Predicted(decoder.cls(states), inputs["decoder_text_labels_mlm"])

    predicted = {
        "self_t_mlm_loss": Predicted(own, inputs["encoder_text_labels_mlm"]),
        "t2t_mlm_loss": decoded(losses.compute_bottleneck(own, embeddings, attention == 0)),
        "i2t_mlm_loss": decoded(outputs["image_bottleneck"]),
    }
    text, image = outputs["text_rep"][:3], outputs["image_rep"]
    for name, part in predicted.items():
        found = losses.masked_words(Encoded(text, image, predicted=(part,)))
        assert found.item() == pytest.approx(golden[name], rel=1e-5)
    whole = Encoded(text, image, predicted=tuple(predicted.values()))
    total = with_flops(losses.lexlip(whole) + losses.masked_words(whole), text, image)
    assert total == pytest.approx(golden["total_training_loss"], rel=1e-5)


def test_masked_words_by_hand():
    logits = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0], [9.0, 9.0]]])
    part = Predicted(logits, torch.tensor([[1, 0, losses.IGNORED]]))
    mean = (math.log(2) + math.log(4 / 3)) / 2
    one = Encoded(torch.eye(2), torch.eye(2), predicted=(part,))
    assert losses.masked_words(one).item() == pytest.approx(mean)
    assert losses.masked_words(one._replace(predicted=(part, part))).item() == pytest.approx(2 * mean)


def test_bottleneck_by_hand():
    logits = torch.tensor([[[0.0, math.log(3)], [-5.0, -5.0], [9.0, 0.0]]], requires_grad=True)
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 8.0]], requires_grad=True)
    found = losses.compute_bottleneck(logits, embeddings, torch.tensor([[False, False, True]]))
    assert found.tolist() == [pytest.approx([0.25, 6.0])]
    found.sum().backward()
    assert embeddings.grad is None and logits.grad is not None and logits.grad[0, 2].tolist() == [0, 0]


# ---- phase 2


@pytest.mark.shared
def test_momentum_of_phase_2(shared):
    """Five steps without an optimiser: the keys of the first from the momentum towers, the others from the queues."""
    folder = shared / "golden/lexlip"
    golden = json.loads((folder / "phase2_moco.json").read_text())
    queues, outputs = tensors(folder / "phase2_queue.npz"), tensors(folder / "phase2_outputs.npz")
    # What the momentum towers of the checkpoint give, by the reader of such checkpoints, which is gone.
    keys = tensors(Path(__file__).parents[2] / "golden/lexlip/momentum_keys.npz")
    first = [keys["text"], keys["image"]]

    text, image = outputs["text_rep"][:3], outputs["image_rep_224"]
    text_queue, image_queue, place = queues["text_queue0"].T, queues["image_queue0"].T, 0
    for number, step in enumerate(golden["steps"]):
        last = [queues[f"{side}_queue5"].T[place : place + 3] for side in ("text", "image")]
        keys = Keys(*(last if number else first), text_queue, image_queue)
        loss = losses.lexlip_momentum(Encoded(text, image, keys=keys), golden["T"])
        assert with_flops(loss, text, image) == pytest.approx(step["contrastive_loss"], rel=1e-5, abs=1e-6)
        text_queue, following = losses.enqueue(text_queue, place, keys.query)
        image_queue, place = losses.enqueue(image_queue, place, keys.document)
        assert following == place == step["text_ptr"]
    torch.testing.assert_close(text_queue.T, queues["text_queue5"])
    torch.testing.assert_close(image_queue.T, queues["image_queue5"])


def test_momentum_by_hand():
    text, image = torch.eye(2), 5 * torch.eye(2)
    keys = Keys(torch.eye(2), torch.eye(2), torch.zeros(3, 2), torch.zeros(1, 2))
    expected = (math.log(1 + 3 / math.e) + math.log(1 + 1 / math.e)) / 2
    assert losses.lexlip_momentum(Encoded(text, image, keys=keys), 1.0).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("size", "place", "factor", "rows", "following"),
    [(4, 0, 1, [1, 2, 3, 0], 3), (4, 3, 10, [20, 30, 0, 10], 2), (3, 0, 1, [1, 2, 3], 0)],
)
def test_a_queue_by_hand(size, place, factor, rows, following):
    queue, keys = torch.zeros(size, 1), factor * torch.tensor([[1.0], [2.0], [3.0]])
    found, after = losses.enqueue(queue, place, keys)
    assert found.flatten().tolist() == rows and after == following and queue.sum() == 0
    with pytest.raises(ValueError, match="3 keys for a queue of 2"):
        losses.enqueue(torch.zeros(2, 1), 0, keys)


def test_gradients():
    generator = torch.Generator().manual_seed(6)
    text, image, *others = (torch.rand(3, 5, dtype=torch.float64, generator=generator) for _ in range(6))
    keys = Keys(*(normalize(part, dim=1) for part in others))
    for function in (losses.lexlip, losses.lexlip_momentum):
        inputs = [side.clone().requires_grad_() for side in (text, image)]
        assert torch.autograd.gradcheck(lambda a, b, f=function: f(Encoded(a, b, keys=keys), 0.5), inputs)
    labels = torch.tensor([[0, losses.IGNORED, 4]])
    logits = torch.rand(1, 3, 5, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: losses.masked_words(Encoded(text, image, predicted=(Predicted(x, labels),))), (logits,)
    )


# ---- masks


def test_whole_words_are_masked():
    """Two texts: words of 2, 1 and 3 tokens, and one word of 2; special tokens and padding never change."""
    ids = torch.tensor([[101, 11, 12, 13, 14, 15, 16, 102], [101, 21, 22, 102, 0, 0, 0, 0], [101, 102] + [0] * 6])
    words = torch.tensor([[-1, 0, 0, 1, 2, 2, 2, -1], [-1, 0, 0, -1, -1, -1, -1, -1], [-1] * 8])
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        masked, labels = losses.mask_words(ids, words, losses.ENCODER_SHARE, 103, 200, generator)
        chosen = labels != losses.IGNORED
        assert (labels[chosen] == ids[chosen]).all() and (masked[~chosen] == ids[~chosen]).all()
        assert chosen[1].tolist() == [False, True, True] + [False] * 5  # at least one word of every text
        assert not chosen[2].any()  # a text without words
        for word in range(3):
            assert len(set(chosen[0][words[0] == word].tolist())) == 1
    seeded = [torch.Generator().manual_seed(1) for _ in range(2)]
    again = [losses.mask_words(ids, words, losses.ENCODER_SHARE, 103, 200, generator) for generator in seeded]
    assert torch.equal(again[0][0], again[1][0])


@pytest.mark.parametrize("share", [losses.ENCODER_SHARE, losses.DECODER_SHARE])
def test_shares_of_masked_words(share):
    ids = torch.arange(1000, 1100).repeat(50, 1)
    words = torch.arange(100).repeat(50, 1)
    masked, labels = losses.mask_words(ids, words, share, 3, 900, torch.Generator().manual_seed(0))
    chosen = labels != losses.IGNORED
    assert chosen.sum(dim=1).tolist() == [100 * share] * 50
    kept, dropped = (masked == ids)[chosen].float().mean().item(), (masked == 3)[chosen].float().mean().item()
    assert dropped == pytest.approx(0.8, abs=0.03) and kept == pytest.approx(0.1, abs=0.03)


@torch.no_grad()
def test_the_weak_decoder_is_two_layers_of_bert(tmp_path):
    """With the weights of BERT's layers it gives their states; a norm of another epsilon would not."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=8, **sizes)).eval()
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c"]))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    network = SimpleNamespace(bert=bert, tokenizer=tokenizer, columns=make_all_columns(tokenizer))
    ours = MaskedWords(network).decoder.eval()
    for layer, theirs in zip(ours.layers, bert.encoder.layer, strict=True):
        attention = theirs.attention.self
        parts = (attention.query, attention.key, attention.value)
        layer.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        for own, module in (
            (layer.self_attn.out_proj, theirs.attention.output.dense),
            (layer.norm1, theirs.attention.output.LayerNorm),
            (layer.linear1, theirs.intermediate.dense),
            (layer.linear2, theirs.output.dense),
            (layer.norm2, theirs.output.LayerNorm),
        ):
            own.load_state_dict(module.state_dict())
    # States of little variance, where the epsilon of a norm counts.
    states = 1e-3 * torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    expected = states
    for theirs in bert.encoder.layer:
        computed = theirs(expected, None)
        expected = computed[0] if isinstance(computed, tuple) else computed
    torch.testing.assert_close(ours(states), expected, rtol=1e-5, atol=1e-6)


# ---- from the checkout's own golden file


def test_the_loss_of_phase_1_in_a_plain_checkout():
    """With FLOPS; the pair itself is ours, as the authors publish no weights."""
    outputs = {key: torch.from_numpy(value) for key, value in np.load(GOLDEN / "families/lexlip.npz").items()}
    text, image = outputs["outputs/text_rep"], outputs["outputs/image_rep"]
    found = with_flops(losses.lexlip(Encoded(text, image)), text, image)
    assert found == pytest.approx(float(outputs["outputs/contrastive_loss"]), rel=1e-5)
