"""Fusion of runs, one topic at a time: by reciprocal ranks, or by scores on one scale.

Ranks are the runs' own, with ties broken by doc_id (see `runs.order`), so equal scores do not depend on chance. Sums
are rounded once (`math.fsum`), so the order of the runs does not matter.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np

from lexvl_anserini.ground.errors import DataError, UnknownName, UsageError
from lexvl_anserini.ground.files import compute_sha256
from lexvl_anserini.ground.machine import OURS, list_versions
from lexvl_anserini.ground.manifest import NAMED, EncodedCorpus, EncoderRef, RunManifest, read_run_manifest
from lexvl_anserini.ground.records import QuantiserEntry, ScoredDoc
from lexvl_anserini.ground.typed import check_count
from lexvl_anserini.runs.order import RankedList, rank_hits
from lexvl_anserini.runs.trec import DEFAULT_HITS, read_lists, sort_by_rank

log = logging.getLogger(__name__)

RRF_K = 60  # the constant of the published RRF (Cormack et al., SIGIR 2009)
LARGEST = 1e30  # weights, and scores of runs, are far below; their squares and sums must stay numbers

# What runs must agree in to be fused; the fused run has the same.
SHARED = ("topics", "topics_sha256", "dataset", "split", "data_dir", "remove_query")


def normalise_min_max(scores: np.ndarray) -> np.ndarray:
    """Scores [n] brought to 0..1 by the list's least and greatest; 1 where all are equal."""
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else scores * 0 + 1


def normalise_deviation(scores: np.ndarray) -> np.ndarray:
    """Scores [n] as standard deviations above the list's mean; 0 where all are equal."""
    distances = scores - fsum(scores) / len(scores)
    deviation = (fsum(distances**2) / len(scores)) ** 0.5
    return distances / deviation if deviation else scores * 0


NORMALISATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "min-max": normalise_min_max,
    "none": lambda scores: scores,
    "z-score": normalise_deviation,
}


@dataclass(frozen=True)
class Fusion:
    """How lists are fused.

    Attributes:
        method: rrf: sum of w / (k + rank); interpolation: sum of w x normalised score, 0 where a document is absent.
        weights: one a run; empty for equal ones (rrf: 1 each; interpolation: their mean).
        k: of rrf.
        normalisation: of interpolation, a row of `NORMALISATIONS`.
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
        if not all(0 <= number < LARGEST for number in (self.k, *self.weights)):
            raise UsageError(f"k {self.k} and weights {list(self.weights)}: expected numbers from 0 to 1e30")

    def open_runs(self, runs: int) -> tuple[float, ...]:
        """The weight of each run."""
        if not self.weights:
            return (1.0 if self.method == "rrf" else 1 / runs,) * runs
        if len(self.weights) != runs:
            raise UsageError(f"{len(self.weights)} weights for {runs} runs; give one for each, or none")
        return self.weights

    def to_json(self) -> dict[str, Any]:
        """What decides the fused scores, for a manifest."""
        options = {"k": self.k} if self.method == "rrf" else {"normalisation": self.normalisation}
        return {"method": self.method, **options, **({"weights": list(self.weights)} if self.weights else {})}


def fuse_lists(query_id: str, rankings: Sequence[Sequence[ScoredDoc]], fusion: Fusion, hits: int) -> RankedList:
    """One topic's lists as one; a run without a list for it contributes nothing."""
    summands: dict[str, list[float]] = defaultdict(list)
    for ranking, weight in zip(rankings, fusion.open_runs(len(rankings)), strict=True):
        if not ranking:
            continue
        listed = RankedList.of(ranking)
        if fusion.method == "rrf":
            listed = sort_by_rank(listed)
            scores = 1 / (fusion.k + np.arange(1, len(listed) + 1))
        else:
            scores = NORMALISATIONS[fusion.normalisation](listed.scores)
        for doc_id, score in zip(listed.doc_ids, (weight * scores).tolist(), strict=True):
            summands[doc_id].append(score)
    return rank_hits(query_id, ((doc_id, fsum(scores)) for doc_id, scores in summands.items()), hits)


def fuse_runs(runs: Sequence[Path], fusion: Fusion, hits: int = DEFAULT_HITS) -> Iterator[RankedList]:
    """The fused lists of all topics, in the order in which the runs first name them."""
    check_count("hits", hits)
    fusion.open_runs(len(runs))
    yield from fuse_rankings(read_rankings(runs), fusion, hits)


def read_rankings(runs: Sequence[Path]) -> list[dict[str, RankedList]]:
    """Per run the ranked list of each topic."""
    rankings: list[dict[str, RankedList]] = []
    for path in runs:
        lists = read_lists(path)
        for query_id, hits in lists.items():
            if len(too_large := hits.scores[~(np.abs(hits.scores) < LARGEST)]):
                raise DataError(f"{path}: score {too_large[0]} of topic {query_id!r}, expected below 1e30")
        if not lists:
            log.warning("%s: no hits in it; the other runs are fused without it", path)
        rankings.append(lists)
    return rankings


def fuse_rankings(
    rankings: Sequence[Mapping[str, Sequence[ScoredDoc]]], fusion: Fusion, hits: int = DEFAULT_HITS
) -> Iterator[RankedList]:
    """As `fuse_runs`, for runs that are read already."""
    for query_id in dict.fromkeys(query_id for lists in rankings for query_id in lists):
        yield fuse_lists(query_id, [lists.get(query_id, ()) for lists in rankings], fusion, hits)


def build_fused_manifest(runs: Sequence[Path], fusion: Fusion, hits: int) -> RunManifest:
    """The manifest of a fused run: topics and judgements as in the runs, and the runs by name and digest."""
    if absent := next((path for path in runs if not path.is_file()), None):
        raise DataError(f"{absent}: no such run; write one with python -m lexvl_anserini.search")
    known: Mapping[Path, RunManifest] = {path: manifest for path in runs if (manifest := read_run_manifest(path))}
    shared: dict[str, Any] = {}
    for name in SHARED:
        values = {getattr(manifest, name): path for path, manifest in known.items()}
        if name == "topics_sha256" and len(values) > 1:
            values.pop("", None)  # a run of a dataset's topics that an older version wrote
        if len(values) > 1 and name != "data_dir":
            (value, run), (other, other_run) = list(values.items())[:2]
            raise UsageError(f"{run} has {name} {value!r}, {other_run} has {other!r}; fuse runs of the same topics")
        shared[name] = next(iter(values), None)
    if not known:
        shared = {**dict.fromkeys(SHARED, ""), "data_dir": None, "remove_query": False}
    named = [f"{path.name}@{compute_sha256(path)[:NAMED]}" for path in runs]
    first = next(iter(known.values()), None)
    return RunManifest(
        **shared,
        corpus=first.corpus if first else EncodedCorpus(),
        encoder=EncoderRef(name="fusion", options={**fusion.to_json(), "runs": named}),
        quantiser=QuantiserEntry(),
        index="",
        hits=hits,
        versions=list_versions([OURS]),
    )
