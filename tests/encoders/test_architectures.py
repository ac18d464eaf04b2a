"""Any masked LM that transformers knows: the split before its decoder equals the model's own logits."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
import transformers

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.backbones import load_language_model, read_position_limit
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


def own_logits(folder, input_ids, attention_mask):
    model = transformers.AutoModelForMaskedLM.from_pretrained(str(folder), local_files_only=True).eval()
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
