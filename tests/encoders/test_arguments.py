"""Arguments of sentence-transformers in `encode_query` and `encode_document`: taken, or refused with what to do."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from lexvl_anserini.encoders.encoder import as_tensor
from lexvl_anserini.ground.errors import UsageError

TEXTS = ["a dog runs", "", "red"]


@pytest.fixture
def model(load):
    return load("bag-of-tokens", "splade/ckpt_bert")


def test_tensors_are_those_of_sentence_transformers(model):
    import torch

    for encode in (model.encode_query, model.encode_document):
        tensor, rows = encode(TEXTS, convert_to_tensor=True), encode(TEXTS, batch_size=1)
        assert tensor.layout == torch.sparse_coo and tensor.shape == rows.shape and tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.to_dense().numpy(), rows.toarray())
    dense = np.arange(3, dtype=np.float32)
    assert as_tensor(dense).tolist() == [0.0, 1.0, 2.0]


def test_progress_is_shown_on_request(model, caplog, monkeypatch):
    from lexvl_anserini.ground import progress

    monkeypatch.setattr(progress, "LOG_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO, "lexvl_anserini"):
        model.encode_query(TEXTS)
        model.encode_query(TEXTS, show_progress_bar=False)
        assert caplog.records == []
        model.encode_query(TEXTS, show_progress_bar=True)
    assert caplog.records[-1].getMessage().startswith("encode: 3 of 3 inputs")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("prompt", "put it before the texts"),
        ("device", r"load_encoder\(\.\.\., device=\.\.\.\)"),
        ("max_active_dims", "option topk"),
        ("normalize_embeddings", "own lengths"),
        ("batchsize", "it takes batch_size, show_progress_bar and convert_to_tensor"),
    ],
)
def test_other_arguments_are_refused(name, remedy, model):
    for encode in (model.encode_query, model.encode_document):
        with pytest.raises(UsageError, match=f"{name}: no argument of .*{remedy}"):
            encode("a dog", **{name: "x"})
