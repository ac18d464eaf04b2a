"""Texts without a network: which texts share a batch, how they are padded; DPR's passages; bags of tokens.

A passage is a pair of title and text, with token types. Loads no model library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lexvl_anserini.encoders.encoder import Kind, ReadsTexts, read_document
from lexvl_anserini.encoders.parts.sparsify import WeightsOfRows, join_rows
from lexvl_anserini.encoders.parts.tokens import (
    OwnTokens,
    TextReader,
    TokenColumns,
    encode_whole,
    keep_first,
    list_places,
    place_parts,
    read_starts,
)
from lexvl_anserini.ground.errors import FAIL, OnError
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import CsrRows
from lexvl_anserini.ground.records import Document, Vocabulary

# Rows of a matrix product from which a CPU is not faster per row, and the largest share of padding in a batch row from
# there on.
ENOUGH_TOKENS, MOST_PADDING = 512, 1 / 8


def collate_texts(
    reader: TextReader, texts: Sequence[str], batch_size: int, on_cpu: bool = True
) -> Iterator[tuple[np.ndarray, list[list[int]], tuple[np.ndarray, np.ndarray]]]:
    """Batches of tokenised texts, the longest first: positions [B], token ids, and ids padded with attention [B, L]."""
    ids = reader(texts)
    whole = reader.padding == "max_length"
    lengths = [reader.max_length if whole else len(row) for row in ids]
    for positions in sort_by_length(lengths, batch_size, on_cpu):
        rows = [ids[i] for i in positions]
        yield positions, rows, pad(rows, max(1, lengths[positions[0]]), reader.pad_id)


def sort_by_length(lengths: Sequence[int], batch_size: int, on_cpu: bool) -> Iterator[np.ndarray]:
    """Positions of the texts of each batch, int64 [B], the longest first: memory has its peak at the start.

    On a CPU, a batch of `ENOUGH_TOKENS` or more also ends before a text that would be padded by more than
    `MOST_PADDING`: the time is proportional to the number of tokens with padding.
    """
    order = np.argsort([-length for length in lengths], kind="stable")
    start = 0
    while start < len(order):
        stop = min(start + batch_size, len(order))
        if on_cpu:
            longest = max(1, lengths[order[start]])
            enough = start + -(-ENOUGH_TOKENS // longest)
            while enough < stop and lengths[order[enough]] >= (1 - MOST_PADDING) * longest:
                enough += 1
            stop = min(stop, enough)
        yield order[start:stop]
        start = stop


def pad(ids: Sequence[Sequence[int]], length: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and attention mask, both int64 [B, length]."""
    input_ids = np.full((len(ids), length), pad_id, dtype=np.int64)
    attention = np.zeros((len(ids), length), dtype=np.int64)
    for row, tokens in enumerate(ids):
        input_ids[row, : len(tokens)] = tokens
        attention[row, : len(tokens)] = 1
    return input_ids, attention


class Passage(str):
    """A title and a text: a string that joins them by a blank, with both in `parts` for the tokenizer."""

    parts: tuple[str, str]

    def __new__(cls, title: str, text: str) -> Passage:
        """Joins title and text."""
        passage = super().__new__(cls, f"{title} {text}")
        passage.parts = (title, text)
        return passage


def read_passage(document: Document) -> str:
    """The passage of a document; only its text if it has no title."""
    if document.title and document.text is not None:
        return Passage(document.title, document.text)
    return read_document(document)


@dataclass(frozen=True)
class PassageReader:
    """Tokenises passages: a string, a `Passage`, or a tuple (title, text), of which an empty title is ignored."""

    reader: TextReader

    def batches(
        self, inputs: Sequence[Any], batch_size: int, on_cpu: bool = True
    ) -> Iterator[tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """Positions [B], and token ids, attention and token types, all int64 [B, L]; the longest first."""
        tokens = [self.tokens(item) for item in inputs]
        for positions in sort_by_length([len(ids) for ids, _ in tokens], batch_size, on_cpu):
            rows = [tokens[i] for i in positions]
            length = max(len(ids) for ids, _ in rows)
            input_ids, attention = pad([ids for ids, _ in rows], length, self.reader.pad_id)
            types, _ = pad([types for _, types in rows], length, 0)
            yield positions, (input_ids, attention, types)

    def tokens(self, item: str | tuple[str, str]) -> tuple[list[int], list[int]]:
        """Token ids and types; if a pair is too long, its longer part is cut."""
        title, text = item if isinstance(item, tuple) else getattr(item, "parts", ("", item))
        if not title or not text:  # transformers takes a pair with an empty part as one text
            [ids] = self.reader([title or str(text)])
            return ids, [0] * len(ids)
        tokenizer, length = self.reader.tokenizer, self.reader.max_length
        room = length - int(tokenizer.num_special_tokens_to_add(pair=True))
        parts = encode_whole(tokenizer, read_starts(tokenizer, [title, text], length))
        if len(parts[0]) >= room:  # then it matters which of the whole parts is longer
            parts = encode_whole(tokenizer, [title, text])
        lengths = split_room(len(parts[0]), len(parts[1]), room)
        rows = [keep_first(tokenizer, part.ids, most) for part, most in zip(parts, lengths, strict=True)]
        return place_parts(list_places(tokenizer, 2), rows)


def split_room(first: int, second: int, room: int) -> tuple[int, int]:
    """The tokens that each of two parts keeps: the longer one is cut until it is as long as the other, then both.

    >>> split_room(3, 20, 10), split_room(20, 30, 11)
    ((3, 7), (5, 6))
    """
    if first + second <= room:
        return first, second
    if first > second:
        return split_room(second, first, room)[::-1]
    shorter = min(first, room // 2)
    return shorter, room - shorter


class BagTower(WeightsOfRows, ReadsTexts):
    """w_j = n_j weight_j over a text's own tokens: no network (SVDR's non-parametric side, inference-free queries).

    Without `weight` [V] all weights are 1. With `adds`, n_j is how often token j occurs (Li-LSR, V-SPLADE), else 1.
    """

    kind: ClassVar[Kind] = "impact"

    def __init__(
        self,
        reader: TextReader,
        columns: TokenColumns,
        weight: np.ndarray | None = None,
        joiner: str = " ",
        normalise: bool = False,
        topk: int | None = None,
        adds: bool = False,
    ):
        self.reader, self.columns, self.joiner, self.normalise = reader, columns, joiner, normalise
        self.topk, self.adds = topk, adds
        self.weight = None if weight is None else weight.astype(np.float32)

    @property
    def binary(self) -> bool:
        """True if all weights are 1, so that quantising must not scale them."""
        return not (self.normalise or self.adds) and (self.weight is None or bool((self.weight == 1).all()))

    @property
    def vocabulary(self) -> Vocabulary:
        """Maps a column of `weights` to its term."""
        return self.columns.vocabulary

    def csr_rows(
        self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> CsrRows:
        """As `weights`, without scipy."""
        rows = [self._weigh(own) for own in self.columns.count_own(self.reader(inputs))]
        progress(len(inputs))
        return join_rows([dims for dims, _ in rows], [values for _, values in rows], len(self.vocabulary))

    def _weigh(self, own: OwnTokens) -> tuple[np.ndarray, np.ndarray]:
        """The dimensions of a text and their weights; among equal weights the lowest dimensions are kept."""
        values = own.counts if self.adds else np.ones_like(own.counts)
        if self.weight is not None:
            values = values * np.fmax(self.weight[own.dims], 0)  # which is 0 of NaN too
        places = np.flatnonzero(values)
        if self.topk is not None:
            places = np.sort(places[np.argsort(-values[places], kind="stable")[: self.topk]])
        dims, values = own.dims[places], values[places]
        return dims, values / np.sqrt((values * values).sum()) if self.normalise else values
