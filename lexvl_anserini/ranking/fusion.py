"""Fusion of ranked lists, one topic at a time: reciprocal ranks, or scores brought to one scale.

Ranks are the runs' own (score descending, then doc_id), so equal scores, which integers have often, are no matter of
chance; sums are rounded once (`math.fsum`), so the order of the runs does not matter either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from lexvl_anserini.errors import UnknownName, UsageError
from lexvl_anserini.ranking.order import ranked
from lexvl_anserini.ranking.runs import in_rank_order
from lexvl_anserini.records import ScoredDoc

# Of the published RRF (Cormack et al., SIGIR 2009).
RRF_K = 60

Ranking = Sequence[ScoredDoc]


def min_max(ranking: Ranking) -> dict[str, float]:
    """Scores brought to 0..1 by the list's least and greatest; 1 where all are equal."""
    low, high = min(d.score for d in ranking), max(d.score for d in ranking)
    return {d.doc_id: (d.score - low) / (high - low) if high > low else 1.0 for d in ranking}


def as_given(ranking: Ranking) -> dict[str, float]:
    """Scores as they are."""
    return {d.doc_id: d.score for d in ranking}


def mean_deviation(ranking: Ranking) -> dict[str, float]:
    """Scores as standard deviations above the list's mean; 0 where all are equal."""
    mean = fsum(d.score for d in ranking) / len(ranking)
    deviation = (fsum((d.score - mean) ** 2 for d in ranking) / len(ranking)) ** 0.5
    return {d.doc_id: (d.score - mean) / deviation if deviation else 0.0 for d in ranking}


NORMALISATIONS: Mapping[str, Callable[[Ranking], dict[str, float]]] = {
    "min-max": min_max,
    "none": as_given,
    "z-score": mean_deviation,
}


@dataclass(frozen=True)
class Fusion:
    """How lists are fused.

    method         rrf: sum of w / (k + rank); interpolation: sum of w x normalised score, 0 where a document is absent
    weights        one a run; empty for equal ones (rrf: 1 each; interpolation: their mean)
    k              of rrf
    normalisation  of interpolation, a row of `NORMALISATIONS`

    Raises:
        UnknownName: no such method or normalisation.
        UsageError: a number that makes no sense.
    """

    method: str = "rrf"
    weights: tuple[float, ...] = ()
    k: float = RRF_K
    normalisation: str = "min-max"

    def __post_init__(self) -> None:
        if self.method not in ("rrf", "interpolation"):
            raise UnknownName("fusion", self.method, ("rrf", "interpolation"))
        if self.normalisation not in NORMALISATIONS:
            raise UnknownName("normalisation", self.normalisation, NORMALISATIONS)
        if self.k < 0 or any(not weight >= 0 for weight in self.weights):
            raise UsageError(f"k {self.k} and weights {list(self.weights)}: expected numbers >= 0")

    def of_runs(self, runs: int) -> tuple[float, ...]:
        """The weight of each run.

        Raises:
            UsageError: there are more or fewer weights than runs.
        """
        if not self.weights:
            return (1.0 if self.method == "rrf" else 1 / runs,) * runs
        if len(self.weights) != runs:
            raise UsageError(f"{len(self.weights)} weights for {runs} runs; give one for each, or none")
        return self.weights

    def to_json(self) -> dict[str, Any]:
        """What decides the fused scores, for a manifest."""
        about = {"k": self.k} if self.method == "rrf" else {"normalisation": self.normalisation}
        return {"method": self.method, **about, **({"weights": list(self.weights)} if self.weights else {})}


def fuse_lists(query_id: str, rankings: Sequence[Ranking], fusion: Fusion, hits: int) -> list[ScoredDoc]:
    """One topic's lists as one; a run without a list for it contributes nothing."""
    parts: dict[str, list[float]] = defaultdict(list)
    for ranking, weight in zip(rankings, fusion.of_runs(len(rankings)), strict=True):
        if not ranking:
            continue
        if fusion.method == "rrf":
            scores = {d.doc_id: 1 / (fusion.k + d.rank) for d in in_rank_order(ranking)}
        else:
            scores = NORMALISATIONS[fusion.normalisation](ranking)
        for doc_id, score in scores.items():
            parts[doc_id].append(weight * score)
    return ranked(query_id, ((doc_id, fsum(scores)) for doc_id, scores in parts.items()), hits)
