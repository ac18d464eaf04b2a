"""DPR: the inner product of two BERTs' [CLS] states (Karpukhin et al., EMNLP 2020), dense baseline of the text papers.

Question: v = h_[CLS]; passage: v = h_[CLS] of [CLS] title [SEP] text [SEP] with token types 0 and 1; the raw last
layer, no pooler, not normalised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lexvl_anserini.data.images import FAIL, OnError
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.checkpoints.weights import load_strictly, read_weights
from lexvl_anserini.encoders.encoder import Encoder, read_document, read_topic
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import bert_from_weights, position_limit, read_config
from lexvl_anserini.encoders.parts.dense import DenseTower, Items
from lexvl_anserini.encoders.parts.tokens import (
    TextReader,
    load_tokenizer,
    placed,
    places,
    readable,
    truncated,
    whole_encodings,
)
from lexvl_anserini.encoders.parts.towers import Batch, by_length, pad
from lexvl_anserini.errors import CheckpointError, UsageError
from lexvl_anserini.records import Document, Topic

# Tokens per passage and per question, as in the papers (VDR, appendix A).
MAX_LENGTH = 256

QUESTION, CONTEXT = "question_encoder", "ctx_encoder"


class Passage(str):
    """A title and a text: a string that joins them by a blank, with both in `parts` for the tokenizer."""

    parts: tuple[str, str]

    def __new__(cls, title: str, text: str) -> Passage:
        """Joins title and text."""
        passage = super().__new__(cls, f"{title} {text}")
        passage.parts = (title, text)
        return passage


@dataclass(frozen=True)
class Passages(Items):
    """Texts, or pairs of title and text; the inputs are token ids, attention and token types, all int64 [B, L].

    An input is a string, a `Passage`, or a tuple (title, text); an empty title is ignored.
    """

    reader: TextReader
    device: torch.device

    def read(self, document: Document) -> str:
        """The passage of a document; only its text if it has no title."""
        if document.title and document.text is not None:
            return Passage(document.title, document.text)
        return read_document(document)

    def read_topic(self, topic: Topic) -> str:
        """The text of a topic."""
        return read_topic(topic)

    def batches(self, inputs: Sequence[Any], batch_size: int, on_error: OnError = FAIL) -> Iterator[Batch]:
        """The longest first."""
        tokens = [self.tokens(item) for item in inputs]
        for positions in by_length([len(ids) for ids, _ in tokens], batch_size, self.device):
            rows = [tokens[i] for i in positions]
            length = max(len(ids) for ids, _ in rows)
            input_ids, attention = pad([ids for ids, _ in rows], length, self.reader.pad_id, self.device)
            types, _ = pad([types for _, types in rows], length, 0, self.device)
            yield Batch(positions, (input_ids, attention, types))

    def tokens(self, item: str | tuple[str, str]) -> tuple[list[int], list[int]]:
        """Token ids and types; if a pair is too long, its longer part is cut."""
        title, text = item if isinstance(item, tuple) else getattr(item, "parts", ("", item))
        if not title or not text:  # transformers takes a pair with an empty part as one text
            [ids] = self.reader([title or str(text)])
            return ids, [0] * len(ids)
        tokenizer, length = self.reader.tokenizer, self.reader.max_length
        room = length - int(tokenizer.num_special_tokens_to_add(pair=True))
        parts = whole_encodings(tokenizer, readable(tokenizer, [title, text], length))
        if len(parts[0]) >= room:  # then it matters which of the whole parts is longer
            parts = whole_encodings(tokenizer, [title, text])
        kept = longest_first(len(parts[0]), len(parts[1]), room)
        rows = [truncated(tokenizer, part.ids, most) for part, most in zip(parts, kept, strict=True)]
        return placed(places(tokenizer, 2), rows)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """The tokens that each of two parts keeps: the longer one is cut until it is as long as the other, then both.

    >>> longest_first(3, 20, 10), longest_first(20, 30, 11)
    ((3, 7), (5, 6))
    """
    if first + second <= room:
        return first, second
    if first > second:
        return longest_first(second, first, room)[::-1]
    shorter = min(first, room // 2)
    return shorter, room - shorter


def load_dpr(
    source: Source,
    query_checkpoint: str | None = None,
    max_length: int | None = None,
    query_max_length: int | None = None,
    dimensions: int | None = None,
) -> Encoder:
    """Two folders of transformers: the checkpoint reads passages, `query_checkpoint` questions.

    Args:
        source: the context encoder, for example facebook/dpr-ctx_encoder-single-nq-base.
        query_checkpoint: its question encoder, for example facebook/dpr-question_encoder-single-nq-base.
        max_length: tokens per passage; default 256, or the number of positions of the model.
        query_max_length: the same for questions.
        dimensions: keep only the first ones (Matryoshka); default all. DPR's vectors do not have unit length, cut or
            not.

    Raises:
        UsageError: the question encoder is missing.
        CheckpointError: a folder has another model or no tokenizer, or the two models have vectors of different widths.
    """
    context = source.required("dpr")
    if query_checkpoint is None:
        raise UsageError(
            "encoder 'dpr' needs two checkpoints: the context encoder as --checkpoint, the question encoder as "
            "--set query_checkpoint=FOLDER or HUB-ID"
        )
    question = find_checkpoint(query_checkpoint)
    query = tower(source, question, QUESTION, query_max_length, dimensions)
    document = tower(source, context, CONTEXT, max_length, dimensions)
    if query.width != document.width:
        raise CheckpointError(
            f"{question.folder}: vectors of {query.width} dimensions, {context.folder} has {document.width}; the two "
            "encoders of one DPR model have the same"
        )
    return Encoder("dpr", "dense", query=query, document=document)


def tower(
    source: Source, checkpoint: Checkpoint, side: str, max_length: int | None, dimensions: int | None
) -> DenseTower:
    """One BERT from the keys `<side>.bert_model.*`, with `<side>.encode_proj.*` if the configuration has a projection.

    Raises:
        CheckpointError: another model, the other side, weights that do not fit, or no tokenizer.
    """
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
    limit = position_limit(config)
    reader = TextReader(
        load_tokenizer(folder, config.vocab_size), max_length or min(MAX_LENGTH, limit or MAX_LENGTH), limit=limit
    )
    width = config.projection_dim or config.hidden_size
    return DenseTower(Passages(reader, source.device), embed, width, normalise=False, dimensions=dimensions)


def read_network(checkpoint: Checkpoint, sides: Sequence[str], device: torch.device) -> tuple[Any, nn.Module]:
    """The BERT of a folder of DPR, and its projection or the identity; the folder has the weights of one of `sides`.

    Raises:
        CheckpointError: another side, or weights that do not fit.
    """
    config, weights = read_config(checkpoint.folder), read_weights(checkpoint.path)
    side = next((side for side in sides if any(key.startswith(f"{side}.") for key in weights)), sides[0])
    own = {key.removeprefix(f"{side}."): value for key, value in weights.items() if key.startswith(f"{side}.")}
    if stray := sorted(weights.keys() - {f"{side}.{key}" for key in own}):
        raise CheckpointError(f"{checkpoint.folder}: holds {stray[0]} and others, expected only {side}.*")
    bert = bert_from_weights(
        config,
        {key.removeprefix("bert_model."): value for key, value in own.items() if key.startswith("bert_model.")},
        f"{checkpoint.folder}: {side}.bert_model",
        device,
    )
    projected = config.projection_dim > 0
    projection = nn.Linear(config.hidden_size, config.projection_dim) if projected else nn.Identity()
    rest = {key.removeprefix("encode_proj."): value for key, value in own.items() if not key.startswith("bert_model.")}
    load_strictly(projection, rest, f"{checkpoint.folder}: {side}.encode_proj")
    return bert, projection.eval().to(device)
