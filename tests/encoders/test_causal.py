"""Lexical heads over decoders: a tiny Qwen3 with random weights, against the logits of transformers' own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny_encoders import made_causal

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.backbones import load_language_model
from lexvl_anserini.encoders.parts.tokens import TextReader
from lexvl_anserini.encoders.parts.towers import log1p_relu, pool_last, pool_max
from lexvl_anserini.ground.errors import CheckpointError

TEXTS = ["a dog on a beach", "two people", ""]
REAL = [[101, 1037, 1500, 1040, 102], [1040, 1037]]


@pytest.fixture(scope="module", params=[True, False], ids=["causal", "both directions"])
def folder(request: pytest.FixtureRequest, golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With earlier tokens alone in sight; and with all, as SPLADE-Code's configuration has it."""
    return made_causal(golden, tmp_path_factory.mktemp("causal"), is_causal=request.param)


def own_logits(folder: Path, ids: list[int]) -> torch.Tensor:
    """The logits of a text alone, [L, V], by transformers."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids))).logits[0]
    return logits


@pytest.mark.parametrize("left", [False, True])
def test_padding_on_either_side_gives_the_same(folder: Path, left: bool) -> None:
    """log(1 + relu) of the logits at the last real position, and their maximum over all real positions."""
    backbone, head, size = load_language_model(folder, torch.device("cpu"))
    ids, attention = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
    for row, real in enumerate(REAL):
        place = slice(7 - len(real), 7) if left else slice(len(real))
        ids[row, place], attention[row, place] = torch.tensor(real), 1
    with torch.inference_mode():
        logits = head.transform(backbone(ids, attention)) @ head.matrix.T
    masked = (attention == 0).reshape(-1).nonzero()[:, 0]
    assert logits.shape[2] == size == 2000 and head.bias is None
    for pooling, of_one in ((pool_last, lambda rows: rows[-1]), (pool_max, lambda rows: rows.amax(dim=0))):
        expected = torch.stack([log1p_relu(of_one(own_logits(folder, real))) for real in REAL])
        torch.testing.assert_close(pooling(logits.clone(), masked, log1p_relu), expected, atol=2e-5, rtol=1e-4)


def test_the_configuration_says_which_tokens_see_each_other(folder: Path) -> None:
    first, other = (own_logits(folder, ids)[0] for ids in ([1037, 1500], [1037, 1040]))
    assert torch.equal(first, other) == json.loads((folder / "config.json").read_text()).get("is_causal", True)


@pytest.mark.parametrize("pooling", ["last", "max"])
def test_splade_over_a_decoder(folder: Path, tmp_path: Path, pooling: str) -> None:
    """A text without tokens has no weight; a saved folder gives equal vectors."""
    model: Any = load_encoder("splade", str(folder), device="cpu", pooling=pooling)
    found = model.document.weights([*TEXTS, "a dog " * 40]).toarray()
    for row, text in enumerate([*TEXTS, "a dog " * 40]):
        [ids] = model.document.reader([text])
        logits = own_logits(folder, ids)
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
