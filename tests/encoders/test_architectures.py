"""Any language model that transformers knows, masked or causal: the split before its head gives its own logits."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_encoders import made_causal

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.backbones import load_language_model, read_position_limit
from lexvl_anserini.encoders.parts.tokens import TextReader
from lexvl_anserini.encoders.parts.towers import log1p_relu, pool_last, pool_max
from lexvl_anserini.ground.errors import CheckpointError

SMALL = {
    "vocab_size": 2000,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
}
ARCHITECTURES = {
    "bert": SMALL,
    "distilbert": {"vocab_size": 2000, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "pad_token_id": 0},
    "roberta": {**SMALL, "pad_token_id": 1},
    "xlm-roberta": {**SMALL, "pad_token_id": 1},
    "mpnet": {**SMALL, "pad_token_id": 1},
    "electra": {**SMALL, "embedding_size": 16},
    "albert": {**SMALL, "embedding_size": 8},
    "deberta-v2": SMALL,
    "modernbert": {**SMALL, "bos_token_id": 101, "eos_token_id": 102, "cls_token_id": 101, "sep_token_id": 102},
}
TEXTS = ["a dog on a beach", "two people", ""]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request, golden, tmp_path_factory):
    """A random model of the architecture with the tiny tokenizer."""
    target = tmp_path_factory.mktemp("model") / request.param
    shutil.copytree(golden / "common/tokenizer_bert_tiny", target)
    config = transformers.AutoConfig.for_model(request.param, **ARCHITECTURES[request.param])
    torch.manual_seed(3)
    model = transformers.AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.5)
    model.save_pretrained(target)
    return target


def own_logits(folder, input_ids, attention_mask, auto=transformers.AutoModelForMaskedLM):
    model = auto.from_pretrained(str(folder), local_files_only=True).eval()
    with torch.inference_mode():
        return model(input_ids=input_ids, attention_mask=attention_mask).logits


def test_split_equals_the_models_own_logits(folder):
    backbone, head, size = load_language_model(folder, torch.device("cpu"))
    input_ids = torch.tensor([[101, 1037, 1500, 102], [101, 1040, 102, 0]])
    attention = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    with torch.inference_mode():
        found = head.transform(backbone(input_ids, attention)) @ head.matrix.T
        found = found if head.bias is None else found + head.bias
    assert size == found.shape[2] == 2000
    expected = own_logits(folder, input_ids, attention)
    torch.testing.assert_close(found[attention == 1], expected[attention == 1], atol=1e-5, rtol=1e-5)


def test_untrained_vdr_over_it_reads_the_same_backbone(folder):
    """The tied head works wherever hidden states and input embeddings have one width."""
    config = transformers.AutoConfig.from_pretrained(str(folder))
    if config.model_type == "albert":
        with pytest.raises(CheckpointError, match="8 columns, hidden states 16"):
            load_encoder("vdr", str(folder), device="cpu")
        return
    model = load_encoder("vdr", str(folder), topk=10, device="cpu")
    assert np.diff(model.document.weights(TEXTS).indptr).tolist() == [10] * 3


def test_as_many_tokens_as_there_are_positions(folder):
    """The longest text the limit allows runs; one token more would have no position."""
    config = transformers.AutoConfig.from_pretrained(str(folder))
    limit = read_position_limit(config)
    offset = 2 if config.model_type in ("roberta", "xlm-roberta", "mpnet") else 0
    assert limit == config.max_position_embeddings - offset
    model = load_encoder("splade", str(folder), device="cpu", max_length=limit)
    assert model.document.weights(["dog " * 1000]).shape == (1, 2000)


def test_limits_without_positions():
    assert read_position_limit(transformers.BertConfig(max_position_embeddings=-1)) is None


# ---- decoders: a tiny Qwen3 with random weights

REAL = [[101, 1037, 1500, 1040, 102], [1040, 1037]]


@pytest.fixture(scope="module", params=[True, False], ids=["causal", "both directions"])
def decoder(request: pytest.FixtureRequest, golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With earlier tokens alone in sight; and with all, as SPLADE-Code's configuration has it."""
    return made_causal(golden, tmp_path_factory.mktemp("causal"), is_causal=request.param)


def causal_logits(decoder: Path, ids: list[int]) -> torch.Tensor:
    """The logits of a text alone, [L, V], by transformers."""
    return own_logits(decoder, torch.tensor([ids]), torch.ones(1, len(ids)), transformers.AutoModelForCausalLM)[0]


@pytest.mark.parametrize("left", [False, True])
def test_padding_on_either_side_gives_the_same(decoder: Path, left: bool) -> None:
    """log(1 + relu) of the logits at the last real position, and their maximum over all real positions."""
    backbone, head, size = load_language_model(decoder, torch.device("cpu"))
    ids, attention = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
    for row, real in enumerate(REAL):
        place = slice(7 - len(real), 7) if left else slice(len(real))
        ids[row, place], attention[row, place] = torch.tensor(real), 1
    with torch.inference_mode():
        logits = head.transform(backbone(ids, attention)) @ head.matrix.T
    masked = (attention == 0).reshape(-1).nonzero()[:, 0]
    assert logits.shape[2] == size == 2000 and head.bias is None
    for pooling, of_one in ((pool_last, lambda rows: rows[-1]), (pool_max, lambda rows: rows.amax(dim=0))):
        expected = torch.stack([log1p_relu(of_one(causal_logits(decoder, real))) for real in REAL])
        torch.testing.assert_close(pooling(logits.clone(), masked, log1p_relu), expected, atol=2e-5, rtol=1e-4)


def test_the_configuration_says_which_tokens_see_each_other(decoder: Path) -> None:
    first, other = (causal_logits(decoder, ids)[0] for ids in ([1037, 1500], [1037, 1040]))
    assert torch.equal(first, other) == json.loads((decoder / "config.json").read_text()).get("is_causal", True)


@pytest.mark.parametrize("pooling", ["last", "max"])
def test_splade_over_a_decoder(decoder: Path, tmp_path: Path, pooling: str) -> None:
    """A text without tokens has no weight; a saved folder gives equal vectors."""
    model: Any = load_encoder("splade", str(decoder), device="cpu", pooling=pooling)
    found = model.document.weights([*TEXTS, "a dog " * 40]).toarray()
    for row, text in enumerate([*TEXTS, "a dog " * 40]):
        [ids] = model.document.reader([text])
        logits = causal_logits(decoder, ids)
        expected = log1p_relu(logits[-1] if pooling == "last" else logits.amax(dim=0)).numpy()
        np.testing.assert_allclose(found[row], expected, atol=2e-5, rtol=1e-4)
    model.document.reader = TextReader(model.document.reader.tokenizer, 8, specials=False)
    assert (np.diff(model.document.weights(["", "a dog"]).indptr) > 0).tolist() == [False, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen3Model"]}, "a qwen3 model, which has no masked-LM head"),
        ({"model_type": "distilbert", "architectures": ["NoForCausalLM"]}, "a distilbert model, which has no language"),
        ({"final_logit_softcapping": 30.0}, "a qwen3 model, which caps its logits"),
    ],
)
def test_what_is_no_linear_head_of_a_decoder_is_refused(
    golden: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = made_causal(golden, tmp_path) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=message):
        load_encoder("splade", str(path.parent), device="cpu")
