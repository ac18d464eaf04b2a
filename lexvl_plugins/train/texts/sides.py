"""Sides of a pair that read texts: trainable networks, fresh or from a checkpoint of any family of text encoders.

A side has the equation of its encoder (`lexvl_anserini.encoders`) before the sparsifier. Padding is masked, or all
texts have one length, so a vector does not depend on the other texts of its batch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from lexvl_anserini.encoders.encoder import read_document
from lexvl_anserini.encoders.families import vdr
from lexvl_anserini.encoders.families.dpr import CONTEXT, QUESTION, read_network
from lexvl_anserini.encoders.families.sentence import load_sentence
from lexvl_anserini.encoders.families.splade import fits, load_table_reader
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts import backbones
from lexvl_anserini.encoders.parts import tokens as token_columns
from lexvl_anserini.encoders.parts.batches import PassageReader, read_passage, sort_by_length
from lexvl_anserini.encoders.parts.towers import Head, elu1p, log1p_relu, pool_max
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.records import Document
from lexvl_plugins.train.common.tower_pair import TextBatch, Tokenised, add_types, compute_logits
from lexvl_plugins.train.model_settings import TableSettings

log = logging.getLogger(__name__)


class TrainableText(nn.Module):
    """A network that reads texts; `columns` of a dense side decide the own tokens of a text alone.

    The joiner is between the title and the text of a document.
    """

    def __init__(self, reader: token_columns.TextReader, columns: token_columns.TokenColumns, joiner: str = " "):
        super().__init__()
        self.reader, self.columns, self.joiner = reader, columns, joiner

    def read_queries(self, queries: Sequence[str]) -> list[Tokenised]:
        """Token ids and types of queries."""
        return add_types(self.reader(queries))

    def read_passages(self, passages: Sequence[Document]) -> list[Tokenised]:
        """Token ids and types of documents."""
        return self.read_queries([read_document(passage, self.joiner) for passage in passages])

    def forward(self, batch: TextBatch) -> Tensor:
        """Vectors [B, V] or [B, D]. On a CPU, texts of similar length pass the network together: less padding."""
        lengths = batch.attention.sum(dim=1).tolist()
        on_cpu, vectors = batch.ids.device.type == "cpu", []
        pieces = [torch.from_numpy(piece) for piece in sort_by_length(lengths, len(lengths), on_cpu)]
        for piece in pieces:
            place, longest = piece.to(batch.ids.device), max(1, max(lengths[row] for row in piece.tolist()))
            ids, attention = (part[place, :longest] for part in (batch.ids, batch.attention))
            types = torch.zeros_like(ids) if batch.types is None else batch.types[place, :longest]
            vectors.append(self.compute_vectors(ids, attention, types))
        return torch.cat(vectors)[torch.argsort(torch.cat(pieces)).to(batch.ids.device)]

    def compute_vectors(self, ids: Tensor, attention: Tensor, types: Tensor) -> Tensor:
        """Vectors before the sparsifier, from token ids, attention and token types, all int64 [B, L]."""
        raise NotImplementedError


class TrainableVdr(TrainableText):
    """w = elu1p(max_i <ln(h_i), E_v>); E are the input embeddings, or a matrix of its own (VDRproj's documents)."""

    bert_model: Any
    tokens: Tensor

    def __init__(self, side: vdr.Side, max_length: int | None):
        reader = token_columns.TextReader(side.reader.tokenizer, side.reader.max_length, limit=side.reader.limit)
        super().__init__(reader.with_max_length(max_length), side.columns, vdr.PUBLISHED_JOINER)
        if side.backbone.config.model_type != "bert":
            raise UsageError(f"kind vdr trains a BERT; the checkpoint is a {side.backbone.config.model_type} model")
        if side.pooling is not pool_max:
            raise UsageError("kind vdr trains pooling max; the checkpoint has another")
        self.bert_model, self.ln, self.normalise = side.backbone, side.norm, side.normalise
        self.register_buffer("tokens", torch.from_numpy(side.columns.tokens), persistent=False)
        untied = not torch.equal(side.embeddings, self.tied.detach())
        self.proj = nn.Parameter(side.embeddings.clone()) if untied else None

    def untie(self) -> None:
        """Gives the side a matrix of terms of its own, random as BERT's new weights are; one that is trained stays."""
        if self.proj is None:
            self.proj = nn.Parameter(torch.randn_like(self.tied) * self.bert_model.config.initializer_range)

    @property
    def tied(self) -> Tensor:
        """The input embeddings of the tokens that are dimensions, [V, D]."""
        embeddings: Tensor = self.bert_model.get_input_embeddings().weight[self.tokens]
        return embeddings

    def compute_vectors(self, ids: Tensor, attention: Tensor, types: Tensor) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        whole = self.reader.padding == "max_length"
        if whole:
            more = (0, self.reader.max_length - ids.shape[1])
            ids, attention = pad(ids, more, value=self.reader.pad_id), pad(attention, more)
        states = self.bert_model(input_ids=ids, attention_mask=attention).last_hidden_state
        head = Head(self.ln, self.tied if self.proj is None else self.proj)
        weights = elu1p(compute_logits(head, states, None if whole else attention == 0))
        return normalize(weights, dim=1) if self.normalise else weights


def load_vdr_sides(source: Source, max_length: int | None) -> tuple[TrainableVdr, TrainableVdr]:
    """The sides of a VDR checkpoint, of which one object may be both, or a new head over a BERT for both."""
    checkpoint = source.required("vdr")
    if config := vdr.read_published_config(checkpoint):
        query, document = vdr.load_published_sides(source, checkpoint, config, None)
    else:
        query = document = vdr.load_untrained_side(source, checkpoint)
    first = TrainableVdr(query, max_length)
    return first, first if document.backbone is query.backbone else TrainableVdr(document, max_length)


class TrainableSplade(TrainableText):
    """w = log(1 + relu(max_i MLM logit_i)) over all tokens."""

    model: Any

    def __init__(self, model: Any, reader: token_columns.TextReader, columns: token_columns.TokenColumns):
        super().__init__(reader, columns)
        # The decoder is apart, so that the model never computes logits [B, L, V].
        decoder = model.get_output_embeddings()
        model.set_output_embeddings(backbones.PassThrough())
        self.model = model
        self.decoders = (decoder,)  # in a tuple: weights that it shares with the model are the model's
        shared = {id(parameter) for parameter in model.parameters()}
        for name, parameter in decoder.named_parameters():
            if id(parameter) not in shared:
                self.register_parameter(f"decoder_{name}", parameter)

    @property
    def decoder(self) -> Any:
        """The matrix [V, D] and the bias [V] of the head."""
        return self.decoders[0]

    def compute_vectors(self, ids: Tensor, attention: Tensor, types: Tensor) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        states = self.model(input_ids=ids, attention_mask=attention).logits
        bias, count = self.decoder.bias, len(self.columns.vocabulary)  # rows without a token are not dimensions
        head = Head(nn.Identity(), self.decoder.weight[:count], None if bias is None else bias[:count])
        return log1p_relu(compute_logits(head, states, attention == 0))


def load_splade_sides(source: Source, max_length: int | None) -> tuple[TrainableSplade, TrainableSplade]:
    """One side for both from a masked or causal LM; a BERT without such a head gets a new one."""
    folder = source.required("splade").folder
    model: Any
    model, info = backbones.from_pretrained(backbones.build_language_model(folder), folder)
    head = [key for key in info["missing_keys"] if key.startswith("cls.")]
    missing = [key for key in info["missing_keys"] if key not in head]
    backbones.complain_of_report(str(folder), info, missing, backbones.BESIDE_HEAD)
    if head:
        reset_head(model, folder)
    tokenizer = token_columns.load_tokenizer(source.tokenizer_folder())
    rows = len(model.get_output_embeddings().weight)
    if not fits(rows, tokenizer):
        raise CheckpointError(f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model {rows}")
    reader = token_columns.TextReader(tokenizer, max_length or 256, limit=backbones.read_position_limit(model.config))
    side = TrainableSplade(model.float(), reader, token_columns.make_all_columns(tokenizer))
    return side, side


@torch.no_grad()
def reset_head(model: Any, folder: Path) -> None:
    """Gives a BERT a masked-LM head whose transform begins as the identity before its GELU and LayerNorm."""
    log.info("%s: has no masked-LM head; a new one over its input embeddings is trained", folder)
    predictions = model.cls.predictions
    nn.init.eye_(predictions.transform.dense.weight)
    nn.init.zeros_(predictions.transform.dense.bias)
    nn.init.ones_(predictions.transform.LayerNorm.weight)
    nn.init.zeros_(predictions.transform.LayerNorm.bias)
    nn.init.zeros_(model.get_output_embeddings().bias)


class TrainableTable(TrainableText):
    """w_j = n_j table_j over the own tokens of a text, as `BagTower` has it; every token is a dimension."""

    def __init__(self, tokenizer: Any, table: nn.Module, adds: bool):
        super().__init__(load_table_reader(tokenizer), token_columns.make_columns_without(tokenizer, []))
        self.table, self.adds = table, adds

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights [B, V]."""
        table: Tensor = self.table()
        counts = torch.zeros(len(batch.ids), len(table), device=table.device)
        counts.scatter_add_(1, batch.ids, batch.attention.to(counts.dtype))
        return (counts if self.adds else (counts > 0)) * table


class LiLsr(nn.Module):
    """table_t = log1p_relu(<w, E_t + A_t B> + b), over the input embeddings E [T, D] of a network, which stay.

    Its activation is log(1 + relu). Li-LSR (Nardini et al., SIGIR 2025) has no A B (`rank` 0).
    """

    def __init__(self, embeddings: Tensor, rank: int = 0):
        super().__init__()
        tokens, width = embeddings.shape
        self.embeddings = nn.Module()
        self.embeddings.register_buffer("weight", embeddings.detach().clone())
        self.lora_A = nn.Parameter(torch.randn(tokens, rank) * 0.01) if rank else None
        self.lora_B = nn.Parameter(torch.zeros(rank, width)) if rank else None
        self.projection = nn.Linear(width, 1)

    def forward(self) -> Tensor:
        """The table, [T]."""
        logit: Tensor = self.projection(self.embeddings.get_buffer("weight"))[:, 0]
        if self.lora_A is not None and self.lora_B is not None:
            logit = logit + self.lora_A @ (self.lora_B @ self.projection.weight[0])
        return log1p_relu(logit)


class Constant(nn.Module):
    """A table [T] that does not change."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self) -> Tensor:
        """The table, [T]."""
        return self.get_buffer("weight")


def idf(texts: Sequence[np.ndarray], tokens: int) -> Tensor:
    """BM25's log(1 + (N - n_t + 1/2) / (n_t + 1/2)), float32 [tokens]; n_t of the N texts have token t."""
    frequency = np.bincount(np.concatenate([np.empty(0, np.int64), *texts]), minlength=tokens)
    return torch.from_numpy(np.log1p((len(texts) - frequency + 0.5) / (frequency + 0.5)).astype(np.float32))


def make_table_side(settings: TableSettings, document: TrainableSplade, passages: Sequence[Document]) -> TrainableTable:
    """Queries that look their tokens up, beside a network of documents; Li-LSR begins with ones."""
    tokenizer, count = document.reader.tokenizer, len(document.columns.vocabulary)
    if settings.table == "li_lsr":
        table = LiLsr(document.model.get_input_embeddings().weight[:count], settings.rank)
        nn.init.zeros_(table.projection.weight)
        nn.init.constant_(table.projection.bias, math.e - 1)
        return TrainableTable(tokenizer, table, settings.adds)
    weight = torch.ones(count)
    if settings.table == "idf":
        weight = idf(document.columns.own([ids for ids, _ in document.read_passages(passages)]), count)
    return TrainableTable(tokenizer, Constant(weight), settings.adds)


class TrainableDpr(TrainableText):
    """v = the [CLS] state of a BERT, neither projected (unless the checkpoint is) nor normalised."""

    def __init__(self, bert: Any, projection: nn.Module, reader: token_columns.TextReader):
        super().__init__(reader, token_columns.make_all_columns(reader.tokenizer))
        if bert.config.model_type not in ("bert", "dpr"):
            raise UsageError(f"kind dpr trains a BERT; the checkpoint is a {bert.config.model_type} model")
        self.bert_model, self.projection = bert, projection

    def read_passages(self, passages: Sequence[Document]) -> list[Tokenised]:
        """Pairs of title and text, with token types 0 and 1."""
        pairs = PassageReader(self.reader)
        return [pairs.tokens(read_passage(passage)) for passage in passages]

    def compute_vectors(self, ids: Tensor, attention: Tensor, types: Tensor) -> Tensor:
        """Vectors [B, D]."""
        states = self.bert_model(input_ids=ids, attention_mask=attention, token_type_ids=types).last_hidden_state
        vectors: Tensor = self.projection(states[:, 0])
        return vectors


def load_dpr_sides(source: Source, max_length: int | None) -> tuple[TrainableDpr, TrainableDpr]:
    """One side for both, from a folder of DPR or any BERT."""
    checkpoint = source.required("dpr")
    config = backbones.read_config(checkpoint.folder)
    if config.model_type == "dpr":
        bert, projection, size = *read_network(checkpoint, (QUESTION, CONTEXT), source.device), config.vocab_size
    else:
        (bert, size), projection = backbones.load_backbone(checkpoint, source.device), nn.Identity()
    limit = backbones.read_position_limit(config)
    length = max_length or min(256, limit or 256)
    tokenizer = token_columns.load_tokenizer(source.tokenizer_folder(), size)
    side = TrainableDpr(bert, projection, token_columns.TextReader(tokenizer, length, limit=limit))
    return side, side


class TrainableSentence(TrainableText):
    """v = what the modules of a sentence-transformers model give; of unit length where it compares by cosine."""

    def __init__(self, model: Any, cosine: bool, max_length: int | None):
        if model.tokenizer is None or not hasattr(model[0], "auto_model"):
            raise UsageError("kind sentence trains models whose first module is a network of transformers")
        if max_length is not None:
            model.max_seq_length = max_length
        length = model.max_seq_length or backbones.read_position_limit(model[0].auto_model.config) or 512
        reader = token_columns.TextReader(model.tokenizer, length)
        super().__init__(reader, token_columns.make_all_columns(model.tokenizer))
        self.model, self.cosine = model, cosine
        prompts = getattr(model, "prompts", None) or {}
        self.prompts = [prompts.get(side) or "" for side in ("query", "document")]

    def read_queries(self, queries: Sequence[str]) -> list[Tokenised]:
        """Token ids of queries after their prompt."""
        return add_types(replace(self.reader, prompt=self.prompts[0])(queries))

    def read_passages(self, passages: Sequence[Document]) -> list[Tokenised]:
        """Token ids of documents after their prompt."""
        texts = [passage.contents for passage in passages]
        return add_types(replace(self.reader, prompt=self.prompts[1])(texts))

    def compute_vectors(self, ids: Tensor, attention: Tensor, types: Tensor) -> Tensor:
        """Vectors [B, D]."""
        vectors: Tensor = self.model({"input_ids": ids, "attention_mask": attention})["sentence_embedding"]
        return normalize(vectors, dim=1) if self.cosine else vectors


def load_sentence_sides(source: Source, max_length: int | None) -> tuple[TrainableSentence, TrainableSentence]:
    """One side for both, from a folder of sentence-transformers, or any backbone with the mean of its states."""
    folder = source.required("sentence").folder
    if (folder / "modules.json").is_file():
        tower: Any = load_sentence(source).query
        side = TrainableSentence(tower.model, tower.normalise, max_length)
        return side, side
    from sentence_transformers import SentenceTransformer

    # 6.x has the modules in another place than 5.x.
    modules: Any
    try:
        modules = import_module("sentence_transformers.sentence_transformer.modules")
    except ImportError:
        modules = import_module("sentence_transformers.models")

    # Raises the errors of a folder that is no backbone, which the library would not.
    width = backbones.load_backbone(source.required("sentence"), source.device)[0].config.hidden_size
    with backbones.quietly():
        backbone = modules.Transformer(str(folder), max_seq_length=max_length)
        pooling = modules.Pooling(width, "mean")
        model = SentenceTransformer(modules=[backbone, pooling, modules.Normalize()], device=str(source.device))
    side = TrainableSentence(model, True, max_length)
    return side, side
