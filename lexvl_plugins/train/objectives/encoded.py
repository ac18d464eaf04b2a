"""The batch that all objectives read, and what several of them compute of its vectors.

Row i of `query` [N, V] and row i of `document` [M, V] are a pair; where M > N, the first N documents are the positives
and the others hard negatives: K = M / N - 1 for each query, those of query 0 first. Vectors are those of the encoders,
so they have unit length where an encoder normalises; scores are their inner products, divided by `temperature`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from lexvl_anserini.encoders.parts.sparsify import mark_top

Temperature = float | Tensor


class Dense(NamedTuple):
    """Dense vectors of both sides, float32 [N, D]."""

    query: Tensor
    document: Tensor


class Keys(NamedTuple):
    """Vectors of momentum encoders for this batch [N, V] and those before [Q, V]: of unit length, without gradients."""

    query: Tensor
    document: Tensor
    queries: Tensor
    documents: Tensor


class Predicted(NamedTuple):
    """Predictions of the masked words of texts: float32 [B, L, V], and int64 [B, L], -100 but for masked positions."""

    logits: Tensor
    labels: Tensor


class Encoded(NamedTuple):
    """One batch after the pair of towers encoded it. What no objective of a stage reads is None.

    Attributes:
        query: float32 [N, V] (dense twin: [N, D]), before the sparsifier.
        document: float32 [M, V] (or [M, D]).
        query_bag: bool [N, V], the queries' own tokens; None where queries are no texts.
        document_bag: bool [M, V], the same for documents.
        named: float32 [M, V], the share of each document's captions that contain a term.
        frequency: float32 [V], the mean of `named` over the training split.
        taught: float32 [N, M], the scores of a teacher.
        dense: the dense vectors that both sides have beside lexical ones.
        expanded: False where the texts of this batch keep only their own tokens.
        keys: what momentum encoders computed.
        predicted: predictions of masked words.
        codebook: float32 [K, D]; its rows, averaged by the weights of a vector, are the features of the vector.
        caption: float32 [N, V], lexical vectors of the positives' captions, with terms of the caption only.
        logits: float32 [N, V], the positives before the activation.
    """

    query: Tensor
    document: Tensor
    query_bag: Tensor | None = None
    document_bag: Tensor | None = None
    named: Tensor | None = None
    frequency: Tensor | None = None
    taught: Tensor | None = None
    dense: Dense | None = None
    expanded: bool = True
    keys: Keys | None = None
    predicted: tuple[Predicted, ...] = ()
    codebook: Tensor | None = None
    caption: Tensor | None = None
    logits: Tensor | None = None

    @property
    def positives(self) -> Tensor:
        """The documents that answer the queries, [N, V]."""
        return self.document[: len(self.query)]

    @property
    def negatives(self) -> Tensor:
        """The hard negatives of all queries, [N K, V]; the view [N, K, V] has those of each query."""
        rows, others = len(self.query), self.document[len(self.query) :]
        if not len(others) or len(others) % rows:
            raise ValueError(f"{len(others)} hard negatives of {rows} queries, expected as many for each, at least one")
        return others

    @property
    def judged(self) -> Tensor:
        """The teacher's scores of each query's own documents [N, 1 + K]: its positive, then its hard negatives."""
        if self.taught is None:
            raise ValueError("this objective needs the scores of a teacher; DPR's files with `score` have them")
        rows, each = len(self.query), len(self.negatives) // len(self.query)
        own = torch.arange(rows)[:, None]
        places = torch.cat([own, rows + own * each + torch.arange(each)], dim=1).to(self.taught.device)
        return self.taught.detach().gather(1, places)


def contrast(query: Tensor, document: Tensor, temperature: Temperature = 1.0, symmetric: bool = True) -> Tensor:
    """Cross entropy of every query over all documents, plus every positive over all queries (a sum, not a mean).

    Hard negatives act in the first direction only.
    """
    scores = query @ document.T / temperature  # [N, M]
    target = torch.arange(len(query), device=query.device)
    loss = cross_entropy(scores, target)
    return loss + cross_entropy(scores[:, : len(query)].T, target) if symmetric else loss


def keep_heaviest(weights: Tensor, bag: Tensor | None, topk: int) -> Tensor:
    """The vectors that search uses [N, V]: their `topk` largest weights and, of a text, its own tokens'."""
    keep = mark_top(weights.detach(), topk)
    return weights * (keep if bag is None else keep | bag)


def require_bag(bag: Tensor | None) -> Tensor:
    """The bag, bool [n, V]."""
    if bag is None:
        raise ValueError("this objective needs the own tokens of both sides, and one side has no texts")
    return bag


def weigh_bag(bag: Tensor | None, normalised: bool) -> Tensor:
    """The bag as weights, float32 [n, V]: ones, or of unit length."""
    weights = require_bag(bag).float()
    return normalize(weights, dim=1) if normalised else weights
