"""Batches of queries with passages, a pure function of seed and step like those of images with captions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.training.common.batches import TrainingBatch
from lexvl_anserini.training.common.inputs import TextBatch
from lexvl_anserini.training.texts.query_passages import QueriesWithPassages


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
    The queries of a batch have one corpus: passages of another one are no negatives to learn from.

    Args:
        data: of a split.
        queries, passages: its tokenised texts.
        size: queries per batch; the remainder of an epoch is skipped.
        negatives: hard negatives per query.
        seed: of all draws.
        bucket: batches whose queries are sorted by the lengths of their positives before they are divided.

    Raises:
        UsageError: a corpus has fewer queries than one batch, or there are too few passages for the negatives.
    """

    def __init__(
        self,
        data: QueriesWithPassages,
        queries: TextStore,
        passages: TextStore,
        size: int,
        negatives: int,
        seed: int,
        bucket: int = 1,
    ):
        numbers = np.array(data.corpora or [0] * len(data))
        self.parts = [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
        if (least := min(map(len, self.parts))) < size:
            where = " of a corpus" if len(self.parts) > 1 else ""
            raise UsageError(f"batch_size {size} is more than the {least} training queries{where}")
        most = max(map(len, data.positives))
        if negatives and len(passages) < most + negatives:
            raise UsageError(
                f"negatives {negatives}: of {len(passages)} passages, a query has {most} positives; lower it"
            )
        self.data, self.queries, self.passages = data, queries, passages
        self.size, self.negatives, self.seed, self.bucket = size, negatives, seed, bucket
        self.per_epoch = sum(len(part) // size for part in self.parts)
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
        queries, passages = self.queries.batch(chosen), self.passages.batch(documents)
        taught = self._taught(chosen, documents)
        return TrainingBatch(chosen, passages, chosen[None], (queries,), documents, taught)

    def _taught(self, chosen: np.ndarray, documents: np.ndarray) -> torch.Tensor | None:
        """A teacher's scores of the passages for each query, [B, B (1 + K)].

        A passage that the teacher did not list gets 0, the score without a shared term, or the least one below it.
        """
        if not self.data.scores:
            return None
        listed = [self.data.scores[query] for query in chosen]
        scores = [[known.get(place, min([0.0, *known.values()])) for place in documents] for known in listed]
        return torch.tensor(scores, dtype=torch.float32, device=self.passages.device)

    def _negatives(self, query: int, relevant: set[int], draws: np.random.Generator) -> list[int]:
        """Hard negatives of a query; those relevant to another query of the batch last, then random passages."""
        if not self.negatives:
            return []
        own = [int(place) for place in draws.permutation(self.data.negatives[query])]
        chosen = sorted(own, key=relevant.__contains__)[: self.negatives]
        mine = self.data.positives[query]
        while len(chosen) < self.negatives:
            place = int(draws.integers(len(self.passages)))
            if place not in mine and place not in chosen:
                chosen.append(place)
        return chosen

    def _bucketed(self, drawn: Sequence[int], orders: Mapping[int, Sequence[int]]) -> Iterator[int]:
        """The queries of an epoch; those of each bucket by the length of their first positive."""
        lengths, width = self.passages.lengths, self.size * self.bucket if self.bucket > 1 else 1
        for start in range(0, len(drawn), width):
            yield from sorted(drawn[start : start + width], key=lambda query: lengths[orders[query][0]])

    def _draw_batches(self, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, each int64 [B, 2]: queries, ascending, and their positives."""
        draws = np.random.default_rng((self.seed, 3, epoch))
        batches = [batch for part in self.parts for batch in self._batches_of(part, draws)]
        if len(self.parts) > 1 or self.bucket > 1:  # corpora, and short and long batches, in turns
            batches = [batches[number] for number in draws.permutation(len(batches))]
        return batches

    def _batches_of(self, part: np.ndarray, draws: np.random.Generator) -> Iterator[np.ndarray]:
        """The batches of the queries of one corpus."""
        drawn = [int(query) for query in draws.permutation(part)]
        orders = {query: draws.permutation(list(self.data.positives[query])).tolist() for query in drawn}
        waiting = deque(self._bucketed(drawn, orders))
        for _ in range(len(part) // self.size):
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
            yield np.array(sorted(chosen.items()), dtype=np.int64)
