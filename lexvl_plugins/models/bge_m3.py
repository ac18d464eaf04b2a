"""BGE-M3's lexical weights: a number per token, from a linear map beside an XLM-RoBERTa.

Chen et al., arXiv 2402.03216, section 3. The equation, the file of the map and the tokens without a weight are those of
the published code (FlagEmbedding 1.4.2). The dense vector and the vectors of all tokens of this model are not read.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import load_backbone, read_position_limit, take_hidden_states
from lexvl_anserini.encoders.parts.sparsify import keep_top
from lexvl_anserini.encoders.parts.tokens import TextReader, load_tokenizer, make_columns_without
from lexvl_anserini.encoders.parts.towers import Composition, Head, TextTower, pool_max
from lexvl_anserini.ground.errors import CheckpointError

SPARSE_LINEAR = "sparse_linear.pt"


class LargestTokenTower(TextTower):
    """The maximum, over the positions of each token of a text, of one weight per position."""

    def pool_batch(self, inputs: tuple[Tensor, ...], masked: Tensor | None) -> Tensor:
        """float32 [B, V] from token ids and attention, int64 [B, L]; padding is a token without a dimension."""
        composition, (ids, _) = self.composition, inputs
        head = composition.head
        assert head.bias is not None, "the map has a bias"
        hidden = composition.backbone(*inputs).to(head.matrix.dtype)  # [B, L, D]
        weight = composition.activation(linear(hidden, head.matrix[:1], head.bias[:1])).squeeze(-1).float()  # [B, L]
        columns = torch.from_numpy(self.columns.of_token).to(ids.device)[ids]
        pooled = torch.zeros(len(ids), len(self.vocabulary), device=ids.device)
        return pooled.scatter_reduce_(1, columns.clamp(min=0), weight * (columns >= 0), "amax")


def load_bge_m3(
    source: Source,
    topk: int | None = None,
    query_topk: int | None = None,
    max_length: int = 512,
    query_max_length: int = 512,
) -> Encoder:
    """BGE-M3: w_j = max_i relu(<w, h_i> + b) over the positions i of token j; tokens that a text lacks have no weight.

    Args:
        source: the folder of an XLM-RoBERTa with `sparse_linear.pt` beside its weights.
        topk: terms kept per document; default all positive ones.
        query_topk: the same for queries; `topk` does not change it.
        max_length: tokens per document, special tokens included; the published model reads 8,192.
        query_max_length: tokens per query.
    """
    checkpoint = source.required("bge-m3")
    folder = checkpoint.folder
    if not (path := folder / SPARSE_LINEAR).is_file():
        remedy = "expected the folder of BAAI/bge-m3; --encoder sentence reads dense vectors of other folders"
        raise CheckpointError(f"{folder}: no {SPARSE_LINEAR}, the map of BGE-M3's lexical weights; {remedy}")
    model, size = load_backbone(checkpoint, source.device)
    tokenizer = load_tokenizer(source.tokenizer_folder(), size)
    special = (tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    columns = make_columns_without(tokenizer, special)
    weight = nn.Linear(model.config.hidden_size, 1)
    load_strictly(weight, {key: value.float() for key, value in read_weights(path).items()}, str(path))
    # One row for all terms: what a text gives a term is decided by where the term is.
    matrix, bias = weight.weight.detach().expand(size, -1), weight.bias.detach().expand(size)
    head = Head(nn.Identity(), matrix.to(source.device), bias.to(source.device))
    limit = read_position_limit(model.config)

    def build_tower(k: int | None, length: int) -> LargestTokenTower:
        composition = Composition(take_hidden_states(model), head, torch.relu, pool_max, keep_top(k))
        reader = TextReader(tokenizer, min(length, limit or length), limit=limit)
        return LargestTokenTower(composition, reader, columns, source.device)

    query, document = build_tower(query_topk, query_max_length), build_tower(topk, max_length)
    return Encoder("bge-m3", "impact", query=query, document=document)
