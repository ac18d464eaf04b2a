"""Bag of tokens: w_j = 1 if token j occurs in the text. Both sides, no network; the lower bound for every model.

BM25, the baseline: texts are passed on as they are, and stock Anserini analyses and scores them.

BERTlex: a lexical head on a BERT without training for retrieval (VDR paper, appendix C: epoch 0).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from lexvl_anserini.encoders.encoder import Encoder, Kind, read_document, read_topic
from lexvl_anserini.encoders.families.vdr import TOPK, UNTRAINED_MAX_LENGTH, load_vdr, vdr_sparsifier
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import load_masked_lm, position_limit, read_config
from lexvl_anserini.encoders.parts.pooling import log1p_relu, masked_max
from lexvl_anserini.encoders.parts.sides import with_topk
from lexvl_anserini.encoders.parts.texts.bags import BagTower
from lexvl_anserini.encoders.parts.texts.tokens import (
    TextReader,
    columns_from,
    columns_of_all,
    first_word_id,
    load_tokenizer,
)
from lexvl_anserini.encoders.parts.towers import Composition, TextTower
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.records import Document, Topic


def load_bag_of_tokens(source: Source, max_length: int = 256, shift: int | None = None) -> Encoder:
    """The binary token vectors of SVDR's non-parametric sides (`bow` in the reference).

    Args:
        source: only its tokenizer is read; default that of `minilm`, whose vocabulary is bert-base-uncased's.
        max_length: tokens read per text, with special tokens.
        shift: token ids below it are not terms; default 999 in BERT's uncased layout (the id of "!"), else 0.
    """
    folder = source.tokenizer_folder(default=None if source.checkpoint else "minilm")
    tokenizer = load_tokenizer(folder)
    columns = columns_from(tokenizer, first_word_id(tokenizer) if shift is None else shift)
    tower = BagTower(TextReader(tokenizer, max_length), columns)
    return Encoder("bag-of-tokens", "impact", tower, tower)


class PlainTextTower:
    """Passes texts through to an engine that analyses them itself."""

    kind: ClassVar[Kind] = "text"

    def read(self, document: Document) -> str:
        """Title and text of a document joined by one blank."""
        return read_document(document)

    def read_topic(self, topic: Topic) -> str:
        """The text of a topic."""
        return read_topic(topic)


def load_bm25(source: Source) -> Encoder:
    """BM25, which needs neither checkpoint nor device.

    Raises:
        UsageError: a checkpoint is given.
    """
    if source.checkpoint is not None:
        raise UsageError("encoder 'bm25' has no model; leave --checkpoint out")
    tower = PlainTextTower()
    return Encoder("bm25", "text", tower, tower)


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
    backbone, mlm_head, size = load_masked_lm(checkpoint.folder, source.device)
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
