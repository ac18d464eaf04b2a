"""Batches of queries with passages, a pure function of seed and step like those of images with captions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.errors import UsageError
from lexvl_anserini.training.batches import TrainingBatch
from lexvl_anserini.training.inputs import TextBatch
from lexvl_anserini.training.query_passages import QueriesWithPassages


@dataclass(frozen=True)
class TextStore:
    """Tokenised texts, one after the other.

    ids      int32 [tokens of all texts]
    first    int64 [n + 1]: text i has the ids first[i] to first[i + 1] - 1
    types    int8 [tokens of all texts], 1 in the second part of a pair
    columns  the dimension of each token
    pad_id   of the tokenizer
    device   of the batches
    """

    ids: np.ndarray
    first: np.ndarray
    types: np.ndarray
    columns: TokenColumns
    pad_id: int
    device: torch.device

    @classmethod
    def of(
        cls, rows: Sequence[tuple[list[int], list[int]]], columns: TokenColumns, pad_id: int, device: torch.device
    ) -> TextStore:
        """Texts as pairs of token ids and token types."""
        first = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in rows], dtype=np.int64)])
        ids = np.fromiter((token for ids, _ in rows for token in ids), dtype=np.int32, count=int(first[-1]))
        types = np.fromiter((kind for _, types in rows for kind in types), dtype=np.int8, count=int(first[-1]))
        return cls(ids, first, types, columns, pad_id, device)

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each text, int64 [n]."""
        return np.diff(self.first)

    def batch(self, texts: np.ndarray) -> TextBatch:
        """The texts at some positions [B] as one batch, padded to the longest of them."""
        lengths = self.first[texts + 1] - self.first[texts]
        ids = np.full((len(texts), max(1, int(lengths.max()))), self.pad_id, dtype=np.int64)
        types, own = np.zeros_like(ids), np.full_like(ids, -1)
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            tokens = slice(self.first[text], self.first[text] + length)
            ids[row, :length], types[row, :length] = self.ids[tokens], self.types[tokens]
            own[row, :length] = self.columns.of_token[self.ids[tokens]]
        attention = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        bag = np.zeros((len(ids), len(self.columns.vocabulary) + 1), dtype=bool)
        np.put_along_axis(bag, own, True, axis=1)  # -1 is the last column, which the batch drops
        parts = (torch.from_numpy(part).to(self.device) for part in (ids, attention, bag[:, :-1], types))
        token_ids, mask, own_dims, kinds = parts
        return TextBatch(token_ids, mask, own_dims, types=kinds)


class QueryBatches:
    """Draws batches of queries, each with one positive and, from each query's own, some hard negatives.

    A positive of one query is not drawn for another query to which it is relevant too, as long as the epoch has other
    queries left: it would count as wrong there. A query without enough hard negatives gets random passages besides.

    Args:
        data: of a split.
        queries, passages: its tokenised texts.
        size: queries per batch; the remainder of an epoch is skipped.
        negatives: hard negatives per query.
        seed: of all draws.

    Raises:
        UsageError: the split has fewer queries than one batch, or too few passages for the negatives.
    """

    def __init__(
        self,
        data: QueriesWithPassages,
        queries: TextStore,
        passages: TextStore,
        size: int,
        negatives: int,
        seed: int,
    ):
        if len(data) < size:
            raise UsageError(f"batch_size {size} is more than the {len(data)} training queries")
        most = max(map(len, data.positives))
        if negatives and len(passages) < most + negatives:
            raise UsageError(
                f"negatives {negatives}: of {len(passages)} passages, a query has {most} positives; lower it"
            )
        self.data, self.queries, self.passages = data, queries, passages
        self.size, self.negatives, self.seed = size, negatives, seed
        self.per_epoch = len(data) // size
        self._batches = lru_cache(maxsize=2)(self._draw_batches)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, step: int) -> TrainingBatch:
        """The batch of a step, counted from 0 over all stages."""
        epoch, number = divmod(step, self.per_epoch)
        pairs = self._batches(epoch)[number]  # [B, 2]
        chosen, positives = pairs[:, 0], pairs[:, 1]
        draws = np.random.default_rng((self.seed, 4, step))
        relevant = {place for query in chosen for place in self.data.positives[query]}
        rows = [self._negatives(query, relevant, draws) for query in chosen]
        documents = np.concatenate([positives, *rows]).astype(np.int64)
        texts = (self.queries.batch(chosen),)
        return TrainingBatch(chosen, self.passages.batch(documents), chosen[None], texts, documents)

    def _negatives(self, query: int, relevant: set[int], draws: np.random.Generator) -> list[int]:
        """Hard negatives of a query; those relevant to another query of the batch last, then random passages."""
        if not self.negatives:
            return []
        own = [int(place) for place in draws.permutation(self.data.negatives[query])]
        found = sorted(own, key=relevant.__contains__)[: self.negatives]
        mine = self.data.positives[query]
        while len(found) < self.negatives:
            place = int(draws.integers(len(self.passages)))
            if place not in mine and place not in found:
                found.append(place)
        return found

    def _draw_batches(self, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, each int64 [B, 2]: queries, ascending, and their positives."""
        draws = np.random.default_rng((self.seed, 3, epoch))
        waiting = deque(int(query) for query in draws.permutation(len(self.data)))
        orders = {query: draws.permutation(list(self.data.positives[query])).tolist() for query in waiting}
        batches = []
        for _ in range(self.per_epoch):
            chosen: dict[int, int] = {}  # positives by query
            passed: list[int] = []
            relevant: set[int] = set()
            while len(chosen) < self.size and waiting:
                query = waiting.popleft()
                mine = self.data.positives[query]
                positive = next((place for place in orders[query] if place not in relevant), None)
                if positive is None or not mine.keys().isdisjoint(chosen.values()):
                    passed.append(query)
                    continue
                chosen[query] = positive
                relevant.update(mine)
            missing = self.size - len(chosen)
            chosen |= {query: orders[query][0] for query in passed[:missing]}
            waiting.extendleft(reversed(passed[missing:]))
            batches.append(np.array(sorted(chosen.items()), dtype=np.int64))
        return batches
