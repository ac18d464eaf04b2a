"""DPR: two BERTs, one of questions and one of passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights, take_below
from lexvl_anserini.encoders.encoder import Encoder, ReadsTexts
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import build_bert, read_config, read_position_limit
from lexvl_anserini.encoders.parts.batches import PassageReader, read_passage
from lexvl_anserini.encoders.parts.tokens import TextReader, load_tokenizer
from lexvl_anserini.encoders.parts.towers import Batch, DenseTower, Items
from lexvl_anserini.ground.errors import FAIL, CheckpointError, OnError, UsageError
from lexvl_anserini.ground.records import Document

# Tokens per passage and per question, as in the papers (VDR, appendix A).
MAX_LENGTH = 256

QUESTION, CONTEXT = "question_encoder", "ctx_encoder"


@dataclass(frozen=True)
class Passages(ReadsTexts, Items):
    """Texts, or pairs of title and text; the inputs are token ids, attention and token types, all int64 [B, L]."""

    passages: PassageReader
    device: torch.device

    def read(self, document: Document) -> str:
        """The passage of a document; only its text if it has no title."""
        return read_passage(document)

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """The longest first."""
        for positions, arrays in self.passages.batches(inputs, batch_size, self.device.type == "cpu"):
            yield Batch(positions, tuple(torch.from_numpy(array).to(self.device) for array in arrays))


def load_dpr(
    source: Source,
    query_checkpoint: str | None = None,
    max_length: int | None = None,
    query_max_length: int | None = None,
    dimensions: int | None = None,
) -> Encoder:
    """DPR: the inner product of two BERTs' [CLS] states, dense baseline of the text papers.

    Question: v = h_[CLS]; passage: v = h_[CLS] of [CLS] title [SEP] text [SEP] with token types 0 and 1; the raw last
    layer, no pooler, not normalised.

    Two folders of transformers: the checkpoint reads passages, `query_checkpoint` questions.

    Args:
        source: the context encoder, for example facebook/dpr-ctx_encoder-single-nq-base.
        query_checkpoint: its question encoder, for example facebook/dpr-question_encoder-single-nq-base.
        max_length: tokens per passage; default 256, or the number of positions of the model.
        query_max_length: the same for questions.
        dimensions: keep only the first ones (Matryoshka); default all. DPR's vectors do not have unit length, cut or
            not.
    """
    context = source.required("dpr")
    if query_checkpoint is None:
        both = "the context encoder as checkpoint, the question encoder as query_checkpoint"
        raise UsageError(f"encoder 'dpr' needs two checkpoints: {both}, each a folder or a hub id")
    question = find_checkpoint(query_checkpoint)
    query = load_tower(source, question, QUESTION, query_max_length, dimensions)
    document = load_tower(source, context, CONTEXT, max_length, dimensions)
    if query.width != document.width:
        widths = f"vectors of {query.width} dimensions, {context.folder} has {document.width}"
        raise CheckpointError(f"{question.folder}: {widths}; the encoders of one DPR model have the same")
    return Encoder("dpr", "dense", query=query, document=document)


def load_tower(
    source: Source, checkpoint: Checkpoint, side: str, max_length: int | None, dimensions: int | None
) -> DenseTower:
    """One BERT, `<side>.bert_model.*`, with `<side>.encode_proj.*` if the configuration has a projection."""
    config = read_config(checkpoint.folder)
    if config.model_type != "dpr":
        raise CheckpointError(f"{checkpoint.folder}: a {config.model_type} model, expected dpr")
    bert, projection = read_network(checkpoint, (side,), source.device)

    def embed(batch: Batch) -> Tensor:
        input_ids, attention, types = batch.inputs
        states = bert(input_ids=input_ids, attention_mask=attention, token_type_ids=types).last_hidden_state
        vectors: Tensor = projection(states[:, 0])  # [B, D]
        return vectors

    # The two folders may share the tokenizer of the context encoder.
    folder = source.tokenizer_folder(checkpoint.folder, source.required("dpr").folder)
    limit = read_position_limit(config)
    tokenizer, length = load_tokenizer(folder, config.vocab_size), max_length or min(MAX_LENGTH, limit or MAX_LENGTH)
    items = Passages(PassageReader(TextReader(tokenizer, length, limit=limit)), source.device)
    width = config.projection_dim or config.hidden_size
    return DenseTower(items, embed, width, normalise=False, dimensions=dimensions)


def read_network(checkpoint: Checkpoint, sides: Sequence[str], device: torch.device) -> tuple[Any, nn.Module]:
    """The BERT of a folder of DPR, and its projection or the identity; the folder has the weights of one of `sides`."""
    config, weights = read_config(checkpoint.folder), read_weights(checkpoint.path)
    side = next((side for side in sides if any(key.startswith(f"{side}.") for key in weights)), sides[0])
    side_weights = take_below(weights, f"{side}.")
    if stray := sorted(weights.keys() - {f"{side}.{key}" for key in side_weights}):
        raise CheckpointError(f"{checkpoint.folder}: holds {stray[0]} and others, expected only {side}.*")
    of_bert = take_below(side_weights, "bert_model.")
    bert = build_bert(config, of_bert, f"{checkpoint.folder}: {side}.bert_model", device)
    projected = config.projection_dim > 0
    projection = nn.Linear(config.hidden_size, config.projection_dim) if projected else nn.Identity()
    others = {key: value for key, value in side_weights.items() if not key.startswith("bert_model.")}
    rest = {key.removeprefix("encode_proj."): value for key, value in others.items()}
    load_strictly(projection, rest, f"{checkpoint.folder}: {side}.encode_proj")
    return bert, projection.eval().to(device)
