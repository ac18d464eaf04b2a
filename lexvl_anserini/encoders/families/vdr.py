"""VDR and its relatives over texts: SVDR, BERTlex and the bag of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.find import Checkpoint
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights, take_below
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import (
    build_bert,
    load_backbone,
    load_language_model,
    read_config,
    read_position_limit,
    take_hidden_states,
)
from lexvl_anserini.encoders.parts.batches import BagTower
from lexvl_anserini.encoders.parts.pretrained import (
    find_companions,
    load_pretrained_bert,
    load_states_head,
    load_vocabulary_rows,
)
from lexvl_anserini.encoders.parts.sparsify import Sparsifier, keep_own, keep_positive
from lexvl_anserini.encoders.parts.tokens import (
    TextReader,
    TokenColumns,
    find_first_word_id,
    load_tokenizer,
    make_all_columns,
    make_columns_from,
)
from lexvl_anserini.encoders.parts.towers import (
    Composition,
    Head,
    Pooling,
    TextTower,
    elu1p,
    log1p_relu,
    pool_max,
    pool_top_mean,
    with_topk,
)
from lexvl_anserini.ground.errors import CheckpointError, UsageError

# Paper, appendix A: 768 dimensions kept per text. Untrained models read as many tokens as the published ones.
TOPK = 768
UNTRAINED_MAX_LENGTH = 256
# PyTorch's default, which the published heads were trained with; BERT's own LayerNorms use 1e-12.
HEAD_EPS = 1e-5
# Joins title and text in `encode_corpus` of the published models; the tokenizer reads it as the special token.
PUBLISHED_JOINER = " [SEP] "

Mode = Literal["full", "alpha", "beta"]
Projection = Literal["tied", "own"]

# Names of fields in the config.yaml of checkpoints from 2023 (jzhoubu/*), and values of missing fields.
LEGACY_NAMES = {"alias": "type", "base_model_id": "model_id", "max_seq_len": "max_len"}
LEGACY_DEFAULTS = {"type": "vdr", "pooling": "max", "topk": TOPK}

# The key of config.json with the dimensions kept of a document, where a shared encoder keeps others of a query.
DOCUMENT_TOPK = "document_topk"
SIDES = ("encoder_q", "encoder_p")


def choose_sparsifier(topk: int, lexical_union: bool) -> Sparsifier:
    """-1 keeps every dimension, 0 the text's own tokens, k > 0 the k largest (united with the own tokens)."""
    if topk < -1:
        raise UsageError(f"topk {topk}: give -1 (all), 0 (own tokens only) or a number above 0")
    if topk == -1:
        return keep_positive()
    if topk == 0:
        return keep_own()
    return Sparsifier(topk, own=lexical_union)


def load_vdr(
    source: Source,
    mode: Mode = "full",
    topk: int | None = None,
    query_topk: int | None = None,
    lexical_union: bool = False,
    max_length: int | None = None,
    query_max_length: int | None = None,
    padding: Literal["none", "max_length"] | None = None,
    projection: Projection | None = None,
) -> Encoder:
    """VDR text: w_j = max_i elu1p(<ln(h_i), E_{j+999}>), top-k (Zhou et al., ICLR 2024, section 3).

    The head is a LayerNorm and the *input* embeddings, without bias. It loads a published layout (`encoder_q`,
    `encoder_p`; config.json, or config.yaml of 2023; one encoder for both sides, or two), or any plain BERT folder:
    there the LayerNorm is untrained, and the equation gives a usable model nevertheless.

    Args:
        source: `model_id` in published checkpoints names the backbone; `tokenizer` and `backbone_config` override it.
        mode: full; alpha (queries are binary bags of tokens); beta (documents are).
        topk: dimensions kept per text; -1 all, 0 only the own tokens; default the checkpoint's (768).
        query_topk: the same for queries; default `topk`.
        lexical_union: keep a text's own tokens besides the top k (the reference's `embed`; off as in `encode_corpus`).
        max_length: tokens per document; default the checkpoint's (untrained: 256).
        query_max_length: tokens per query; default the checkpoint's (untrained: `max_length`).
        padding: with `max_length` the maximum includes padding positions, as in training and evaluation of the
            published models; default `max_length` for published checkpoints, `none` for untrained ones.
        projection: tied (the input embeddings) or own (VDRproj: the documents' own matrix, `encoder_p.proj`); default
            own where the checkpoint has such a matrix.
    """
    checkpoint = source.required("vdr")
    if config := read_published_config(checkpoint):
        query, document = load_published_sides(source, checkpoint, config, projection)
    elif projection == "own":
        raise UsageError("encoder 'vdr': projection=own needs a checkpoint that has one (encoder_p.proj)")
    else:
        query = document = load_untrained_side(source, checkpoint)
        query_max_length = query_max_length or max_length
    document = document.replace_options(topk, lexical_union, max_length, padding)
    query = query.replace_options(topk if query_topk is None else query_topk, lexical_union, query_max_length, padding)
    return Encoder(
        "vdr",
        "impact",
        query=query.bag() if mode == "alpha" else query.tower(),
        document=document.bag() if mode == "beta" else document.tower(),
    )


@dataclass(frozen=True)
class Side:
    """One side of a VDR text model, from which `tower` or `bag` is made."""

    backbone: Any
    norm: nn.Module
    embeddings: Tensor  # [V, D], the input embeddings of the vocabulary's tokens, or rows that both sides share
    columns: TokenColumns
    reader: TextReader
    device: torch.device
    bias: Tensor | None = None  # [V]
    topk: int = TOPK
    lexical_union: bool = False
    pooling: Pooling = pool_max
    normalise: bool = False
    unit_terms: int | None = None
    joiner: str = " "

    def replace_options(
        self, topk: int | None, lexical_union: bool, max_length: int | None, padding: str | None
    ) -> Side:
        """The same side with the options of the user; None keeps the checkpoint's own value."""
        reader = self.reader.with_max_length(max_length)
        return replace(
            self,
            topk=self.topk if topk is None else topk,
            lexical_union=lexical_union,
            reader=reader if padding is None else replace(reader, padding=padding),
        )

    def tower(self) -> TextTower:
        """The parametric side."""
        composition = Composition(
            backbone=take_hidden_states(self.backbone),
            head=Head(self.norm, self.embeddings, self.bias),
            activation=elu1p,
            pooling=self.pooling,
            sparsifier=replace(choose_sparsifier(self.topk, self.lexical_union), first=self.unit_terms),
            normalise=self.normalise,
            unit_terms=self.unit_terms,
        )
        return TextTower(composition, self.reader, self.columns, self.device, self.joiner)

    def bag(self) -> BagTower:
        """The non-parametric side: same tokenizer, limit and vocabulary, no network."""
        reader = replace(self.reader, padding="none")
        return BagTower(reader, self.columns, joiner=self.joiner, normalise=self.normalise)


def load_untrained_side(source: Source, checkpoint: Checkpoint) -> Side:
    """A new LayerNorm over any BERT-like backbone, tied to its input embeddings."""
    backbone, size = load_backbone(checkpoint, source.device)
    tokenizer = load_tokenizer(source.tokenizer_folder(), size)
    shift = find_first_word_id(tokenizer)
    limit = read_position_limit(backbone.config)
    embeddings = backbone.get_input_embeddings().weight.detach()[shift:]
    if embeddings.shape[1] != backbone.config.hidden_size:
        widths = f"{embeddings.shape[1]} columns, hidden states {backbone.config.hidden_size}"
        raise CheckpointError(f"{checkpoint.folder}: input embeddings have {widths}; the tied head needs one width")
    return Side(
        backbone,
        nn.LayerNorm(embeddings.shape[1], eps=HEAD_EPS).to(source.device),
        embeddings,
        make_columns_from(tokenizer, shift),
        TextReader(tokenizer, min(UNTRAINED_MAX_LENGTH, limit or UNTRAINED_MAX_LENGTH), limit=limit),
        source.device,
    )


def read_published_config(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """config.json, or a config.yaml of 2023 with today's names; None if the folder is not in a published layout."""
    config = checkpoint.config()
    if "encoder_q" not in config:
        inner = [v for v in config.values() if isinstance(v, Mapping) and "encoder_q" in v]
        if not inner:
            return None
        config = {**config, **inner[0]}
    if (checkpoint.folder / "config.json").is_file():
        return config
    for side in SIDES:
        entry = {LEGACY_NAMES.get(key, key): value for key, value in (config.get(side) or {}).items()}
        config[side] = {**LEGACY_DEFAULTS, **{key: value for key, value in entry.items() if value is not None}}
    return config


def load_published_sides(
    source: Source, checkpoint: Checkpoint, config: Mapping[str, Any], projection: str | None
) -> tuple[Side, Side]:
    """Query and document sides of a checkpoint in a published layout."""
    weights = read_weights(checkpoint.path)
    if stray := sorted(key for key in weights if key.partition(".")[0] not in SIDES):
        raise CheckpointError(f"{checkpoint.path}: unexpected weights {', '.join(stray[:10])}")
    if not config.get("shared_encoder"):
        query, document = (
            load_published_side(source, checkpoint, config, s, take_below(weights, s + "."), projection) for s in SIDES
        )
        return query, document
    own = join_shared_weights(checkpoint, weights)
    side = load_published_side(source, checkpoint, config, "encoder_q", own, projection)
    # In the reference both sides are one object, which reads as many tokens as the longer of the two.
    other = (config.get("encoder_p") or {}).get("max_len") or 0
    shared = replace(side, reader=side.reader.with_max_length(max(side.reader.max_length, other)))
    topk = config.get(DOCUMENT_TOPK)
    if topk is not None and (type(topk) is not int or topk < 1):
        raise CheckpointError(f"{checkpoint.path}: {DOCUMENT_TOPK} {topk!r:.80}, expected a number of dimensions")
    return shared, shared if topk is None else replace(shared, topk=topk)


def join_shared_weights(checkpoint: Checkpoint, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the shared encoder, which a file may have under the name of either side or of both."""
    query, document = (take_below(weights, f"{side}.") for side in SIDES)
    if query and document:
        differing = query.keys() ^ document.keys()
        differing |= {key for key in query.keys() & document.keys() if not query[key].equal(document[key])}
        if differing:
            what = f"encoder_q and encoder_p differ in {', '.join(sorted(differing)[:3])}"
            raise CheckpointError(f"{checkpoint.path}: shared_encoder is true, but {what}")
    return query or document


def load_published_side(
    source: Source,
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    prefix: str,
    side_weights: Mapping[str, Tensor],
    projection: str | None,
) -> Side:
    """One side from its weights `bert_model.*`, `ln.*` and, if it has its own projection, `proj`."""
    where = f"{checkpoint.folder}: {prefix}"
    entry = config.get(prefix) or {}
    if entry.get("type") != "vdr":
        expected = "this encoder loads VDR text models (type 'vdr')"
        raise CheckpointError(f"{where} is of type {entry.get('type')!r}; {expected}")
    if "shift_vocab_num" not in entry:
        raise CheckpointError(f"{checkpoint.folder}: the configuration of {prefix} lacks shift_vocab_num")
    columns_of = partial(make_columns_from, shift=entry["shift_vocab_num"])
    # VDRproj (paper, appendix C) unties only the projection of documents.
    head = {key: side_weights[key] for key in ("proj", "proj.weight") if key in side_weights and prefix == "encoder_p"}
    rest = {f"{prefix}.{key}": value for key, value in side_weights.items() if key not in head}
    side = load_bert_side(source, checkpoint, entry, prefix, rest, columns_of)
    if projection == "own" and prefix == "encoder_p" and not head:
        raise CheckpointError(f"{where} has no projection of its own (proj); leave projection=own out")
    if head and projection != "tied":
        (matrix,) = head.values()
        if matrix.shape != side.embeddings.shape:
            shapes = f"{list(matrix.shape)}, expected {list(side.embeddings.shape)}"
            raise CheckpointError(f"{where}.proj has shape {shapes}")
        side = replace(side, embeddings=matrix.float().to(source.device))
    return replace(side, pooling=read_published_pooling(where, entry), normalise=bool(entry.get("norm")))


def load_bert_side(
    source: Source,
    checkpoint: Checkpoint,
    entry: Mapping[str, Any],
    prefix: str,
    weights: Mapping[str, Tensor],
    columns_of: Callable[[Any], TokenColumns],
) -> Side:
    """A BERT with VDR's head; `columns_of` chooses the tokens that are dimensions."""
    where = f"{checkpoint.folder}: {prefix}"
    if missing := [key for key in ("model_id", "max_len") if key not in entry]:
        raise CheckpointError(f"{checkpoint.folder}: the configuration of {prefix} lacks {', '.join(missing)}")
    backbone_config, tokenizer_folder = find_companions(source, checkpoint, entry["model_id"])
    side_weights = take_below(weights, prefix + ".")
    of_bert, width = take_below(side_weights, "bert_model."), backbone_config.hidden_size
    if "backbone" in entry:
        of_bert = load_pretrained_bert(checkpoint, entry, of_bert)
    # A pair over networks has a head between the states and its vocabulary.
    has_head = any(key.startswith("head.") for key in side_weights)
    bert = build_bert(backbone_config, of_bert, f"{where}.bert_model", source.device)
    tokenizer = load_tokenizer(tokenizer_folder, backbone_config.vocab_size)
    columns = columns_of(tokenizer)
    known = ("bert_model.", "head.", "bias") if has_head else ("bert_model.", "ln.")
    if stray := [key for key in side_weights if not key.startswith(known)]:
        raise CheckpointError(f"{where}: unexpected weights {', '.join(sorted(stray)[:10])}")
    norm: nn.Module
    if has_head:
        norm, size = load_states_head(side_weights, width, where, source.device), len(columns.vocabulary)
        folder = str(checkpoint.folder)
        embeddings, bias = load_vocabulary_rows(weights, prefix, size, norm.width, folder, source.device)
    else:
        norm, bias = nn.LayerNorm(width, eps=HEAD_EPS).to(source.device), None
        load_strictly(norm, take_below(side_weights, "ln."), f"{where}.ln")
        embeddings = bert.get_input_embeddings().weight.detach()[columns.tokens]
    padding = entry.get("padding") or "max_length"
    return Side(
        bert,
        norm,
        embeddings,
        columns,
        TextReader(tokenizer, entry["max_len"], padding=padding, limit=read_position_limit(backbone_config)),
        source.device,
        bias=bias,
        topk=TOPK if entry.get("topk") is None else entry["topk"],
        joiner=PUBLISHED_JOINER,
    )


def read_published_pooling(where: str, entry: Mapping[str, Any]) -> Pooling:
    """`pooling: max`, or `mean` of the `pooling_topk` largest."""
    pooling, n = entry.get("pooling") or "max", entry.get("pooling_topk")
    if pooling == "max":
        return pool_max
    if pooling == "mean" and n:
        return partial(pool_top_mean, n=n)
    known = "expected max, or mean with a number"
    raise CheckpointError(f"{where}: pooling {pooling!r} with pooling_topk {n!r} is not known; {known}")


def load_svdr(
    source: Source,
    mode: Mode = "beta",
    topk: int | None = None,
    query_topk: int | None = None,
    lexical_union: bool = False,
    max_length: int | None = None,
    query_max_length: int | None = None,
    padding: Literal["none", "max_length"] | None = None,
) -> Encoder:
    """SVDR: VDR trained so that either side may be a binary bag of tokens (arXiv 2405.01924; later named SiDR).

    The architecture is VDR's. Its default mode is beta: documents are indexed as bags of tokens, without a network;
    `python -m lexvl_anserini.rerank` re-ranks its results by full parametric scores.

    Args:
        source: as for `vdr`.
        mode: beta (documents are binary bags of tokens); alpha (queries are); full.
        topk: dimensions kept per text; -1 all, 0 only the own tokens; default the checkpoint's (768).
        query_topk: the same for queries; default `topk`.
        lexical_union: keep a text's own tokens besides the top k.
        max_length: tokens per document; default the checkpoint's (untrained: 256).
        query_max_length: tokens per query; default the checkpoint's (untrained: `max_length`).
        padding: with `max_length` the maximum includes padding positions, as published; with `none` it does not.
    """
    encoder = load_vdr(source, mode, topk, query_topk, lexical_union, max_length, query_max_length, padding)
    return replace(encoder, name="svdr")


def load_bertlex(
    source: Source,
    head: Literal["vdr", "mlm"] = "vdr",
    topk: int = TOPK,
    query_topk: int | None = None,
    max_length: int | None = None,
) -> Encoder:
    """BERTlex: a lexical head on a BERT without training for retrieval (VDR paper, appendix C: epoch 0).

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
    columns = make_all_columns(tokenizer)
    limit = read_position_limit(read_config(checkpoint.folder))
    reader = TextReader(tokenizer, max_length or min(UNTRAINED_MAX_LENGTH, limit or UNTRAINED_MAX_LENGTH), limit=limit)

    def tower(k: int | None) -> TextTower:
        sparsifier = choose_sparsifier(TOPK if k is None else k, lexical_union=False)
        composition = Composition(backbone, mlm_head, log1p_relu, pool_max, sparsifier)
        return TextTower(composition, reader, columns, source.device)

    query, document = with_topk((tower, tower), topk, query_topk)
    return Encoder("bertlex", "impact", query=query, document=document)


def load_bag_of_tokens(source: Source, max_length: int = 256, shift: int | None = None) -> Encoder:
    """Bag of tokens: w_j = 1 if token j occurs in the text. Both sides, no network; the lower bound for every model.

    Args:
        source: only its tokenizer is read; default that of `minilm`, whose vocabulary is bert-base-uncased's.
        max_length: tokens read per text, with special tokens.
        shift: token ids below it are not terms; default 999 in BERT's uncased layout (the id of "!"), else 0.
    """
    folder = source.tokenizer_folder(default=None if source.checkpoint else "minilm")
    tokenizer = load_tokenizer(folder)
    columns = make_columns_from(tokenizer, find_first_word_id(tokenizer) if shift is None else shift)
    tower = BagTower(TextReader(tokenizer, max_length), columns)
    return Encoder("bag-of-tokens", "impact", tower, tower)
