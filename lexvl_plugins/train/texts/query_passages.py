"""Queries with their passages in memory: read from any dataset of texts with judgements, and drawn in batches."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
import orjson
import torch

from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Document
from lexvl_plugins.train.common.tower_pair import TextStore, TrainingBatch


@dataclass(frozen=True)
class QueriesWithPassages:
    """Queries that have a positive, with their passages sorted by id; the other fields name passages by position.

    Positives have their relevance, at least 1; negatives are judged and not relevant. Scores of passages are a
    teacher's, and `corpora` the number of each query's corpus; both are empty where the data have one or none.
    """

    ids: Sequence[str]
    queries: Sequence[str]
    positives: Sequence[Mapping[int, int]]
    negatives: Sequence[Sequence[int]]
    passages: Sequence[Document]
    scores: Sequence[Mapping[int, float]] = ()
    corpora: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def texts(self) -> Iterator[str]:
        """All texts, to learn a vocabulary from."""
        yield from self.queries
        yield from (passage.contents for passage in self.passages)

    def describe(self, batch: TrainingBatch) -> list[dict[str, Any]]:
        """The queries of a batch with their positives and hard negatives, for people to read."""
        assert batch.passages is not None
        ids, size = np.array([self.passages[place].doc_id for place in batch.passages]), len(batch.items)
        rows = zip(batch.items, ids[:size].tolist(), ids[size:].reshape(size, -1).tolist(), strict=True)
        return [
            {"id": self.ids[item], "query": self.queries[item], "positive": positive, "negatives": negatives}
            for item, positive, negatives in rows
        ]

    def digest(self) -> str:
        """SHA-256 (hex) of all ids, texts and judgements, in order."""
        whole = sha256()
        for passage in self.passages:
            whole.update(orjson.dumps([passage.doc_id, passage.title, passage.text]))
        for query in zip(self.ids, self.queries, self.positives, self.negatives, strict=True):
            query_id, text, positives, negatives = query
            whole.update(orjson.dumps([query_id, text, sorted(positives.items()), list(negatives)]))
        if self.scores:
            whole.update(orjson.dumps([sorted(of_query.items()) for of_query in self.scores]))
        return whole.hexdigest()

    def select(self, positions: Sequence[int]) -> QueriesWithPassages:
        """The queries at the given positions, with all passages."""
        rows = {
            field: [getattr(self, field)[place] for place in positions] if getattr(self, field) else ()
            for field in ("ids", "queries", "positives", "negatives", "scores", "corpora")
        }
        return replace(self, **rows)


def read_query_passages(dataset: Dataset, others: int = 0, titles: bool = True) -> QueriesWithPassages:
    """The topics of a dataset of texts that have a relevant document, in the order of the dataset.

    Documents of relevance 0 or less are hard negatives of their topic; `others` is the number of unjudged documents to
    keep, chosen by the digests of their ids.
    """
    name = f"{dataset.name}/{dataset.split}"
    relevance: dict[str, dict[str, int]] = {}
    for qrel in dataset.qrels():
        judged = relevance.setdefault(qrel.query_id, {})
        judged[qrel.doc_id] = max(qrel.relevance, judged.get(qrel.doc_id, qrel.relevance))
    topics = [topic for topic in dataset.topics() if max(relevance.get(topic.query_id, {"": 0}).values()) > 0]
    if not topics:
        raise DataError(f"{name}: no topic has a relevant document; training needs pairs of a query and a positive")
    if empty := [topic.query_id for topic in topics if not (topic.text or "").strip()]:
        raise DataError(f"{name}: {len(empty)} topics have no text, such as {empty[0]!r}; remove their judgements")
    needed = {doc_id for topic in topics for doc_id in relevance[topic.query_id]}
    passages = sorted(read_passages(dataset, needed, others, titles), key=lambda passage: passage.doc_id)
    place = {passage.doc_id: number for number, passage in enumerate(passages)}
    if missing := sorted(needed - place.keys()):
        raise DataError(f"{name}: {len(missing)} judged documents are not in the corpus, such as {missing[0]!r}")
    positives, negatives = [], []
    for topic in topics:
        judged = relevance[topic.query_id]
        positives.append({place[doc_id]: value for doc_id, value in judged.items() if value > 0})
        negatives.append([place[doc_id] for doc_id, value in judged.items() if value <= 0])
    ids = [topic.query_id for topic in topics]
    taught: dict[str, dict[int, float]] = {query_id: {} for query_id in ids}
    for query_id, doc_id, score in dataset.scores() if dataset.scores else ():
        if query_id in taught:
            taught[query_id][place[doc_id]] = score
    scores = list(taught.values()) if any(taught.values()) else ()
    return QueriesWithPassages(ids, [topic.text or "" for topic in topics], positives, negatives, passages, scores)


def join(parts: Sequence[QueriesWithPassages]) -> QueriesWithPassages:
    """The queries and passages of several corpora as one; ids of the second corpus get the prefix `1/`, and so on."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.passages) for part in parts)]).tolist()
    placed = list(zip(starts, parts, strict=False))
    return QueriesWithPassages(
        ids=[f"{number}/{query_id}" for number, part in enumerate(parts) for query_id in part.ids],
        queries=[text for part in parts for text in part.queries],
        positives=[
            {start + place: value for place, value in judged.items()}
            for start, part in placed
            for judged in part.positives
        ],
        negatives=[[start + place for place in listed] for start, part in placed for listed in part.negatives],
        passages=[p._replace(doc_id=f"{n}/{p.doc_id}") for n, part in enumerate(parts) for p in part.passages],
        scores=[
            {start + place: score for place, score in scored.items()}
            for start, part in placed
            for scored in part.scores
        ]
        if all(part.scores for part in parts)
        else (),
        corpora=[number for number, part in enumerate(parts) for _ in part.ids],
    )


def read_passages(dataset: Dataset, needed: set[str], others: int, titles: bool = True) -> Iterator[Document]:
    """The needed documents of a dataset, then `others` of the rest: those whose ids have the smallest digests."""
    least: list[tuple[int, str, Document]] = []  # a heap of the negated digests: the largest digest is first
    seen: set[str] = set()
    for document in dataset.documents():
        document = document if titles else document._replace(title=None)
        text = bool(document.contents.strip())
        if document.doc_id in needed:
            if not text:
                raise DataError(f"{dataset.name}: the judged document {document.doc_id!r} has no text")
            if document.doc_id in seen:
                raise DataError(f"{dataset.name}: two documents have the id {document.doc_id!r}")
            seen.add(document.doc_id)
            yield document
        elif others and text:
            digest = blake2b(document.doc_id.encode(), digest_size=8).digest()
            entry = (-int.from_bytes(digest, "big"), document.doc_id, document)
            if len(least) < others:
                heapq.heappush(least, entry)
            else:
                heapq.heappushpop(least, entry)
    yield from (document for _, _, document in least)


class QueryBatches:
    """Draws batches of queries, each with one positive and some of its hard negatives, or random passages.

    While an epoch has other queries left, no positive is relevant to two queries of a batch; a batch has one corpus.
    With a `bucket` above 1, that many batches at a time are sorted by the length of their positives, then divided.
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
            raise UsageError(f"negatives {negatives}: of {len(passages)} passages, a query has {most} positives")
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
        rows = [self._draw_negatives(query, relevant, draws) for query in chosen]
        documents = np.concatenate([positives, *rows]).astype(np.int64)
        queries, passages = self.queries.read_batch(chosen), self.passages.read_batch(documents)
        taught = None
        if self.data.scores:
            # A passage that the teacher did not list gets 0, as without shared terms, or a lower least score.
            listed = [self.data.scores[query] for query in chosen]
            scores = [[known.get(place, min([0.0, *known.values()])) for place in documents] for known in listed]
            taught = (torch.tensor(scores, dtype=torch.float32, device=self.passages.device),)
        return TrainingBatch(chosen, passages, chosen[None], (queries,), documents, taught)

    def _draw_negatives(self, query: int, relevant: set[int], draws: np.random.Generator) -> list[int]:
        """Hard negatives of a query, those relevant to another query of the batch last; then random passages."""
        if not self.negatives:
            return []
        hard = [int(place) for place in draws.permutation(self.data.negatives[query])]
        chosen = sorted(hard, key=relevant.__contains__)[: self.negatives]
        mine = self.data.positives[query]
        while len(chosen) < self.negatives:
            place = int(draws.integers(len(self.passages)))
            if place not in mine and place not in chosen:
                chosen.append(place)
        return chosen

    def _draw_batches(self, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, each int64 [B, 2]: queries, ascending, and their positives."""
        draws = np.random.default_rng((self.seed, 3, epoch))
        batches = [batch for part in self.parts for batch in self._divide(part, draws)]
        if len(self.parts) > 1 or self.bucket > 1:  # mix corpora, and short with long batches
            batches = [batches[number] for number in draws.permutation(len(batches))]
        return batches

    def _divide(self, part: np.ndarray, draws: np.random.Generator) -> Iterator[np.ndarray]:
        """The batches of the queries of one corpus; queries of a bucket by the length of their first positive."""
        drawn = [int(query) for query in draws.permutation(part)]
        orders = {query: draws.permutation(list(self.data.positives[query])).tolist() for query in drawn}
        lengths, width = self.passages.lengths, self.size * self.bucket if self.bucket > 1 else 1
        buckets = (drawn[start : start + width] for start in range(0, len(drawn), width))
        waiting = deque(q for bucket in buckets for q in sorted(bucket, key=lambda query: lengths[orders[query][0]]))
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
