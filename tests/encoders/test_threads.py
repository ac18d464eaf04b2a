"""Encoders shared by threads: every vector is that of one thread, to the last bit."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import BERT, Tiny, made_dense

from lexvl_anserini.encoders.encoder import Encoder, encode_inputs
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.tokens import TextReader, load_tokenizer

THREADS = 8

WORDS = ["a", "dog", "runs", "on", "the", "sandy", "beach", "and", "two", "children", "watch", "it", "red", "boat"]

# One tower of each way to make vectors: logits through a buffer, own tokens, token ids alone, dense vectors.
SHARED = {
    "splade": Tiny("splade", BERT),
    "vdr": Tiny("vdr", BERT, {"topk": 32}),
    "bag-of-tokens": Tiny("bag-of-tokens", BERT),
    "sentence": Tiny("sentence", made_dense),
}


def texts(number: int, seed: int) -> list[str]:
    """Texts of 1 to 30 words."""
    draws = random.Random(seed)
    return [" ".join(draws.choices(WORDS, k=draws.randint(1, 30))) for _ in range(number)]


def same(first: Any, second: Any) -> bool:
    """True for equal matrices, CSR or dense, to the last bit."""
    if hasattr(first, "indptr"):
        parts = ((getattr(first, part), getattr(second, part)) for part in ("indptr", "indices", "data"))
        return all((a == b).all() if a.shape == b.shape else False for a, b in parts)
    return bool((first == second).all())


def pool_of_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,))


@pytest.fixture(params=SHARED)
def shared_model(request: pytest.FixtureRequest, golden: Path, tmp_path: Path) -> Encoder:
    tiny = SHARED[request.param]
    checkpoint = tiny.checkpoint(golden, tmp_path) if callable(tiny.checkpoint) else golden / str(tiny.checkpoint)
    return load_encoder(tiny.encoder, str(checkpoint), device="cpu", **tiny.options)


def test_threads_encode_what_one_thread_encodes(shared_model: Encoder) -> None:
    """Both sides at once, which share a model and a tokenizer and read texts of different lengths."""
    jobs = [(side, [text]) for text in texts(30, 1) for side in (shared_model.query, shared_model.document)]
    alone = [encode_inputs(side, piece) for side, piece in jobs]
    with pool_of_threads() as pool:
        together = list(pool.map(lambda job: encode_inputs(*job), jobs * 3))
    different = sum(not same(a, b) for a, b in zip(alone * 3, together, strict=True))
    assert different == 0, f"{different} of {len(together)} vectors differ"


def test_readers_of_different_lengths_share_a_tokenizer(golden: Path) -> None:
    """Truncation is a state of the library's tokenizers, which would be that of the last reader."""
    tokenizer = load_tokenizer(golden / BERT)
    jobs = [(TextReader(tokenizer, length), texts(30, seed)) for seed in range(40) for length in (4, 40)]
    alone = [reader(piece) for reader, piece in jobs]
    with pool_of_threads() as pool:
        assert list(pool.map(lambda job: job[0](job[1]), jobs)) == alone


def test_models_load_in_threads(golden: Path) -> None:
    """transformers' settings of the process are as before, whatever thread ends first."""
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    try:
        with pool_of_threads() as pool:
            jobs = [pool.submit(load_encoder, "splade", str(golden / BERT), device="cpu") for _ in range(8)]
            found = [encode_inputs(job.result().query, ["a dog"]) for job in jobs]
        assert all(same(found[0], other) for other in found)
        assert logging.get_verbosity() == before[0] and logging.is_progress_bar_enabled()
    finally:
        if not before[1]:
            logging.disable_progress_bar()
