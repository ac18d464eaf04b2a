"""Batches of tokenised texts: which texts share a batch, and how they are padded. Loads no model library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lexvl_anserini.encoders.parts.texts.tokens import TextReader

# Rows of a matrix product from which a CPU is not faster per row, and the largest share of padding in a batch row from
# there on.
ENOUGH_TOKENS, MOST_PADDING = 512, 1 / 8


def padded_batches(
    reader: TextReader, texts: Sequence[str], batch_size: int, on_cpu: bool = True
) -> Iterator[tuple[np.ndarray, list[list[int]], tuple[np.ndarray, np.ndarray]]]:
    """Batches of tokenised texts, the longest first: positions [B], token ids, and ids padded with attention [B, L]."""
    ids = reader(texts)
    whole = reader.padding == "max_length"
    lengths = [reader.max_length if whole else len(row) for row in ids]
    for positions in by_length(lengths, batch_size, on_cpu):
        rows = [ids[i] for i in positions]
        yield positions, rows, pad(rows, max(1, lengths[positions[0]]), reader.pad_id)


def by_length(lengths: Sequence[int], batch_size: int, on_cpu: bool) -> Iterator[np.ndarray]:
    """Positions of the texts of each batch, int64 [B], the longest first: memory has its peak at the start.

    On a CPU the time is proportional to the number of tokens with padding. There, a batch of `ENOUGH_TOKENS` or more
    also ends before a text that would be padded by more than `MOST_PADDING`.
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
