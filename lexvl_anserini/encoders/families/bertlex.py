"""BERTlex: a lexical head on a BERT without training for retrieval (VDR paper, appendix C: epoch 0)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.families.vdr import TOPK, UNTRAINED_MAX_LENGTH, load_vdr, vdr_sparsifier
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import load_language_model, position_limit, read_config
from lexvl_anserini.encoders.parts.pooling import log1p_relu, masked_max
from lexvl_anserini.encoders.parts.tokens import TextReader, columns_of_all, load_tokenizer
from lexvl_anserini.encoders.parts.towers import Composition, TextTower, with_topk


def load_bertlex(
    source: Source,
    head: Literal["vdr", "mlm"] = "vdr",
    topk: int = TOPK,
    query_topk: int | None = None,
    max_length: int | None = None,
) -> Encoder:
    """A plain BERT with VDR's head, or with its own masked-LM head.

    Args:
        head: vdr (LayerNorm and tied input embeddings, elu1p); mlm (the pretrained MLM head, log1p_relu).
        topk: dimensions kept per text; -1 all, 0 only the own tokens.
        query_topk: the same for queries; default `topk`.
        max_length: tokens read per text; default 256, or the number of positions of the model.
    """
    checkpoint = source.required("bertlex")
    if head == "vdr":
        return replace(load_vdr(source, topk=topk, query_topk=query_topk, max_length=max_length), name="bertlex")
    backbone, mlm_head, size = load_language_model(checkpoint.folder, source.device)
    tokenizer = load_tokenizer(source.tokenizer_folder(), size)
    columns = columns_of_all(tokenizer)
    limit = position_limit(read_config(checkpoint.folder))
    reader = TextReader(tokenizer, max_length or min(UNTRAINED_MAX_LENGTH, limit or UNTRAINED_MAX_LENGTH), limit=limit)

    def tower(k: int | None) -> TextTower:
        sparsifier = vdr_sparsifier(TOPK if k is None else k, lexical_union=False)
        composition = Composition(backbone, mlm_head, log1p_relu, masked_max, sparsifier)
        return TextTower(composition, reader, columns, source.device)

    query, document = with_topk((tower, tower), topk, query_topk)
    return Encoder("bertlex", "impact", query=query, document=document)
