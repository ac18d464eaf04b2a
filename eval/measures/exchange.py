"""Converts our records to ranx's `Run` and `Qrels`, and back: for its plots, fusion methods and comparisons.

ranx orders by score alone and breaks ties arbitrarily; a run is therefore converted in strict order, its tied scores
lowered by the smallest steps of float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, nextafter
from typing import TYPE_CHECKING

import numpy as np

from lexvl_anserini.ground.records import Qrel, ScoredDoc
from lexvl_anserini.runs.order import ranked

from .metrics import judgements
from .ties import by_rank, checked_hits, places

if TYPE_CHECKING:
    import ranx


def to_ranx_run(run: Iterable[ScoredDoc], name: str = "run") -> ranx.Run:
    """Converts a run to ranx.

    Raises:
        DataError: the run is empty, lists a document twice for a topic, or has a score that is not a number.
    """
    from ranx import Run

    scores: dict[str, dict[str, float]] = {}
    hits = checked_hits(run, name)
    order = np.lexsort((places(hits, by_rank(hits), np.arange(len(hits.ranks))), hits.topics()))
    for topic, doc_id, score in zip(
        hits.topics().tolist(), hits.ids_of(order), hits.scores[order].tolist(), strict=True
    ):
        strict = scores.setdefault(hits.query_ids[topic], {})
        below = nextafter(next(reversed(strict.values())), -inf) if strict else inf
        strict[doc_id] = min(score, below)
    return Run(scores, name=name)


def from_ranx_run(run: ranx.Run) -> Iterator[ScoredDoc]:
    """Converts a run of ranx to scored documents, topics in its order, documents by score descending, then doc_id."""
    for query_id, scores in run.to_dict().items():
        yield from ranked(query_id, scores.items())


def to_ranx_qrels(qrels: Iterable[Qrel], name: str = "qrels") -> ranx.Qrels:
    """Converts judgements to ranx.

    Raises:
        DataError: there is no judgement, or two contradict each other.
    """
    from ranx import Qrels

    return Qrels(judgements(qrels, name), name=name)


def from_ranx_qrels(qrels: ranx.Qrels) -> Iterator[Qrel]:
    """Converts judgements of ranx to ours, in its order."""
    for query_id, judged in qrels.to_dict().items():
        yield from (Qrel(query_id, doc_id, int(relevance)) for doc_id, relevance in judged.items())
