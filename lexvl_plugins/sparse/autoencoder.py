"""CSR: w_j = relu(<W_j, x - p> + b_j) of a dense vector x of a text, the k largest; terms sae00000, sae00001, ...

Wen et al., arXiv 2503.01776. Names of weights and the order of steps are those of sentence-transformers 6.2, whose
folder has a Transformer, Pooling, maybe Normalize, and SparseAutoEncoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.cards import name_readers
from lexvl_anserini.encoders.checkpoints.sentence_layout import (
    ABOUT_FILE,
    MODULES_FILE,
    ROUTER,
    SPARSE_MODULES,
    check_modules,
    read_about,
    read_modules,
)
from lexvl_anserini.encoders.checkpoints.weights import complain, read_weights
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import load_backbone, read_config, read_position_limit
from lexvl_anserini.encoders.parts.sparsify import keep_top
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, add_lower_casing, load_tokenizer
from lexvl_anserini.encoders.parts.towers import Composition, Head, TextTower, pool_max
from lexvl_anserini.ground.errors import CheckpointError
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.records import Vocabulary

# Tokens per text where a folder has no limit.
MAX_LENGTH = 512
# What the published code adds to a standard deviation and to a count of tokens before it divides.
EPSILON, LEAST_COUNT = 1e-5, 1e-9


def pool_states_mean(states: Tensor, attention: Tensor) -> Tensor:
    """The mean of states [B, L, D] over tokens, [B, D]."""
    mask = attention.unsqueeze(-1).to(states.dtype)
    return (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=LEAST_COUNT)


def pool_states_last(states: Tensor, attention: Tensor) -> Tensor:
    """The state of the last token, [B, D]."""
    last = (attention * attention.cumsum(dim=1)).argmax(dim=1)
    return states[torch.arange(len(states), device=states.device), last]


# The matrix by its other name, and how long ago each latent was above 0 in training.
TIED, COUNTS = "decoder.linear.weight", "stats_last_nonzero"
# By `pooling_mode`; padding is on the right.
POOLINGS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": pool_states_mean,
    "cls": lambda states, attention: states[:, 0],
    "lasttoken": pool_states_last,
}
# The keys of older folders: `pooling_mode_mean_tokens` is true.
OLDER_POOLINGS = {f"pooling_mode_{mode}_token{'s' * (mode == 'mean')}": mode for mode in ("mean", "cls")}
OLDER_POOLINGS["pooling_mode_lasttoken"] = "lasttoken"


@dataclass(frozen=True)
class AutoEncoder:
    """The stored part: bias p of the input [D], matrix W [H, D], bias b of the latents [H], k, and what x is first."""

    input_bias: Tensor
    matrix: Tensor
    bias: Tensor
    k: int
    standardises: bool  # x is its distance from its own mean, in standard deviations


class AutoEncoderTower(TextTower):
    """Texts to latents; the backbone has pooled already, so that a text has one position."""

    def pool_batch(self, inputs: tuple[Tensor, ...], masked: Tensor | None) -> Tensor:
        """Latents before the k largest are chosen, float32 [B, H]."""
        return super().pool_batch(inputs, None)


def name_latents(count: int) -> Vocabulary:
    """The terms of a number of latents."""
    return Vocabulary((f"sae{number:05d}" for number in range(count)), "the autoencoder")


def load_sae(
    source: Source, topk: int | None = None, query_topk: int | None = None, max_length: int | None = None
) -> Encoder:
    """CSR: w_j = relu(<W_j, x - p> + b_j) of a dense vector x, the k largest; terms sae00000, sae00001, ...

    A SparseEncoder folder of sentence-transformers with Transformer, Pooling, maybe Normalize, and SparseAutoEncoder.

    Args:
        source: the folder has modules.json.
        topk: latents kept per document; default the folder's own number.
        query_topk: the same for queries; `topk` does not change it.
        max_length: tokens read per text; default the folder's own, else 512.
    """
    checkpoint = source.required("sae")
    folder = checkpoint.folder
    chain = read_chain(folder)
    description, similarity, prompts = read_description(folder)
    if similarity != "dot":
        what = f"{folder / ABOUT_FILE}: similarity_fn_name {similarity!r:.80}, expected 'dot'"
        raise CheckpointError(f"{what}; load it with {name_readers('*', 'sae')}")
    model, size = load_backbone(replace(checkpoint, folder=chain["Transformer"]), source.device)
    pool = read_pooling(chain["Pooling"], prompts)
    coder = read_autoencoder(chain["SparseAutoEncoder"], source.device)
    unit = "Normalize" in chain

    def embed(ids: Tensor, attention: Tensor) -> Tensor:
        states = model(input_ids=ids, attention_mask=attention).last_hidden_state
        vectors = pool(states, attention)  # [B, D]
        vectors = nn.functional.normalize(vectors, dim=1) if unit else vectors
        if coder.standardises:
            vectors = vectors - vectors.mean(dim=1, keepdim=True)
            vectors = vectors / (vectors.std(dim=1, keepdim=True) + EPSILON)
        return (vectors - coder.input_bias).unsqueeze(1)  # [B, 1, D]

    reader = load_reader(source, chain["Transformer"], size, max_length)
    head = Head(nn.Identity(), coder.matrix, coder.bias)
    columns = TokenColumns(name_latents(len(coder.matrix)), np.full(size, -1, dtype=np.int64))
    usual = description.get("max_active_dims") or coder.k

    def build_tower(side: str, k: int | None) -> AutoEncoderTower:
        composition = Composition(embed, head, torch.relu, pool_max, keep_top(k or usual))
        return AutoEncoderTower(composition, replace(reader, prompt=prompts.get(side, "")), columns, source.device)

    return Encoder("sae", "impact", query=build_tower("query", query_topk), document=build_tower("document", topk))


def read_chain(folder: Path) -> dict[str, Path]:
    """The folders of the modules, by their classes' names."""
    if not (folder / MODULES_FILE).is_file():
        raise CheckpointError(f"{folder}: no {MODULES_FILE}, so no sparse autoencoder of sentence-transformers")
    _ = list(check_modules(folder))
    modules = read_modules(folder)
    names = [part.name for part in modules]
    if [name for name in names if name != "Normalize"] != ["Transformer", "Pooling", "SparseAutoEncoder"]:
        expected = "expected Transformer, Pooling, maybe Normalize, and SparseAutoEncoder"
        sparse = {*names} & {ROUTER, *SPARSE_MODULES}
        readers = name_readers(names[-1], "sae") if sparse else "--encoder sentence"
        raise CheckpointError(f"{folder}: modules {', '.join(names)}; {expected}; load it with {readers}")
    return {part.name: part.folder for part in modules}


def read_description(folder: Path) -> tuple[dict[str, Any], str, dict[str, str]]:
    """The description of a SparseEncoder, how it compares vectors, and the prompts of both sides."""
    description = read_about(folder)
    prompts = {side: (description.get("prompts") or {}).get(side) or "" for side in ("query", "document")}
    return description, description.get("similarity_fn_name") or "dot", prompts


def read_pooling(folder: Path, prompts: Mapping[str, str]) -> Callable[[Tensor, Tensor], Tensor]:
    """The pooling of the states of all tokens."""
    config = read_json(folder / "config.json", "pooling", CheckpointError)
    older = [mode for key, mode in OLDER_POOLINGS.items() if config.get(key) is True]
    others = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    mode = config.get("pooling_mode") or (older[0] if len(older) == len(others) == 1 else others)
    if not isinstance(mode, str) or mode not in POOLINGS:
        raise CheckpointError(f"{folder}: pooling {mode!r:.80}, expected one of {', '.join(POOLINGS)}")
    if config.get("include_prompt") is False and any(prompts.values()):
        remedy = f"which this encoder does not; load it with {name_readers('*', 'sae')}"
        raise CheckpointError(f"{folder}: include_prompt false leaves prompts out, {remedy}")
    return POOLINGS[mode]


def read_autoencoder(folder: Path, device: torch.device) -> AutoEncoder:
    """The weights and settings of a SparseAutoEncoder."""
    path = folder / "config.json"
    config = read_json(path, "autoencoder", CheckpointError)
    counts: dict[str, Any] = {
        key: config.get(key, usual) for key, usual in (("input_dim", None), ("hidden_dim", 512), ("k", 8))
    }
    for key, value in counts.items():
        if type(value) is not int or value < 1:
            raise CheckpointError(f"{path}: {key} {value!r:.80}, expected a positive number")
    wide, many = counts["input_dim"], counts["hidden_dim"]
    shapes = {"pre_bias": [wide], "encoder.weight": [many, wide], "latent_bias": [many]}
    weights = read_weights(folder)
    # The decoder is the same matrix, and safetensors store it once, by either name.
    weights = {"encoder.weight": weights.pop(TIED), **weights} if TIED in weights else weights
    complain(
        str(folder),
        shapes.keys() - weights.keys(),
        weights.keys() - shapes.keys() - {COUNTS},
        [
            f"{key} {list(weights[key].shape)}, expected {shape}"
            for key, shape in shapes.items()
            if key in weights and list(weights[key].shape) != shape
        ],
    )
    bias, matrix, latent = (weights[key].float().to(device) for key in shapes)
    return AutoEncoder(bias, matrix, latent, counts["k"], config.get("normalize") is True)


def load_reader(source: Source, folder: Path, size: int, max_length: int | None) -> TextReader:
    """The tokenizer of a folder, to its own limit or another."""
    tokenizer = load_tokenizer(folder if source.tokenizer is None else source.tokenizer_folder(), size)
    path = folder / "sentence_bert_config.json"
    limits = read_json(path, "limits", CheckpointError) if path.is_file() else {}
    tokenizer = add_lower_casing(tokenizer) if limits.get("do_lower_case") else tokenizer
    limit = read_position_limit(read_config(folder))
    length = max_length or limits.get("max_seq_length") or min(tokenizer.model_max_length, MAX_LENGTH)
    return TextReader(tokenizer, min(length, limit or length), limit=limit)
