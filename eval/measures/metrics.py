"""Measures of a run against judgements, with trec_eval's semantics; ranx computes.

The rules, in one place:

* The mean is over every topic of the qrels (`trec_eval -c`): a topic that is not in the run counts 0, and so does a
  topic without any relevant document. Topics of the run without judgements are ignored and reported.
* Relevance <= 0 is not relevant. nDCG has linear gain; its ideal ranking has all judged documents, retrieved or not.
* `relevance_level` (`trec_eval -l`) is the least relevance that counts as relevant; `AP(rel=2)` has its own, nDCG none.
* A measure sees a strict order (`ties.py`), never scores.

ranx computes on document numbers. This module numbers documents within their topic, because ranx's own `Run` and
`Qrels` number them by a 64-bit hash stored in a float64, sort equal scores by the order of a dictionary, and are
modified by `make_comparable`. ranx runs on numba's `workqueue` threads: call `evaluate` from one thread at a time.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.errors import DataError, UsageError
from lexvl_anserini.records import Measurement, Qrel, ScoredDoc

from .names import MEASURES, Measure, parse_measures
from .ties import Hits, by_topic, ordered, report_ranks, some

log = logging.getLogger(__name__)


class MeasuringRules(NamedTuple):
    """How a run is measured, see `evaluate`."""

    relevance_level: int = 1
    ties: str = "rank"
    remove_query: bool = False


# Topics per call of ranx: limits the padded arrays to about 16 MB at a depth of 1,000.
BLOCK = 1000


def judgements(qrels: Iterable[Qrel], name: str = "qrels") -> dict[str, dict[str, int]]:
    """Qrels as relevance per document per topic, in order of first appearance.

    Raises:
        DataError: there is no judgement, or a document is judged twice for a topic with different relevance.
    """
    topics: dict[str, dict[str, int]] = {}
    for query_id, doc_id, relevance in qrels:
        judged = topics.setdefault(query_id, {})
        if judged.setdefault(doc_id, relevance) != relevance:
            raise DataError(
                f"{name}: topic {query_id!r} judges document {doc_id!r} twice, as {judged[doc_id]} and as {relevance}"
            )
    if not topics:
        raise DataError(f"{name}: there are no judgements; expected lines of query-id, doc-id, relevance")
    return topics


def check_shared_topics(rankings: Mapping[str, object], judged: Mapping[str, object], name: str) -> None:
    """Reports topics that only the run or only the qrels have.

    Raises:
        DataError: they share none.
    """
    unjudged = [query_id for query_id in rankings if query_id not in judged]
    missing = [query_id for query_id in judged if query_id not in rankings]
    if len(missing) == len(judged):
        raise DataError(
            f"{name}: run and qrels share no topic; e.g. run has {unjudged[0]!r}, qrels have {missing[0]!r}"
            if unjudged
            else f"{name}: the run has no topic"
        )
    if unjudged:
        log.info("%s: %d topics without judgements are ignored (%s)", name, len(unjudged), some(unjudged))
    if missing:
        log.warning(
            "%s: %d of %d topics are not in the run and count 0 (%s)", name, len(missing), len(judged), some(missing)
        )


def as_arrays(
    rankings: Sequence[Sequence[str]], judged: Sequence[Mapping[str, int]], depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """The input of ranx: judgements [T, J, 2] and rankings [T, depth, 2], rows (document number, value).

    Documents are numbered within their topic: the relevant ones 0.. by descending relevance, all others -1. Padding is
    document -1 with relevance 0, which ranx drops; the value of a ranked document decreases by 1 per rank.
    """
    best = [sorted(((r, d) for d, r in topic.items() if r > 0), key=lambda pair: -pair[0]) for topic in judged]
    relevant = np.zeros((len(judged), max(1, *map(len, best)), 2))  # [T, J, 2]
    relevant[:, :, 0] = -1
    ranked = np.full((len(judged), depth, 2), -1.0)  # [T, depth, 2]
    ranked[:, :, 1] = np.arange(depth, 0, -1)
    for t, (topic, ranking) in enumerate(zip(best, rankings, strict=True)):
        numbers = {doc_id: number for number, (_, doc_id) in enumerate(topic)}
        relevant[t, : len(topic), 0] = range(len(topic))
        relevant[t, : len(topic), 1] = [relevance for relevance, _ in topic]
        top = ranking[:depth]
        ranked[t, : len(top), 0] = [numbers.get(doc_id, -1) for doc_id in top]
    return relevant, ranked


@contextmanager
def compilation_logged() -> Iterator[None]:
    """Logs one line when numba begins to compile; what its cache on the disk holds is loaded without one."""
    from numba.core import event

    class FirstCompilation(event.Listener):
        begun = False

        def on_start(self, event: Any) -> None:
            if not self.begun:
                log.info("ranx compiles its measures, once per machine (up to half a minute)")
            self.begun = True

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", FirstCompilation()):
        yield


def compute(
    rankings: Sequence[Sequence[str]],
    judged: Sequence[Mapping[str, int]],
    measures: Sequence[Measure],
    relevance_level: int = 1,
) -> dict[Measure, np.ndarray]:
    """Values [T] of each measure; the t-th ranking (doc_ids, best first) belongs to the t-th judgements."""
    with warnings.catch_warnings():
        # From Python 3.12 on, compiling the sources of ranx 0.3 warns of backslashes in its strings.
        warnings.simplefilter("ignore", SyntaxWarning)
        from ranx import metrics as ranx_metrics

    # A measure with a cut reads no further than the cut; one without reads the whole ranking.
    longest = max(1, *map(len, rankings))
    depth = min(longest, max(measure.k or longest for measure in measures))
    values: dict[Measure, list[np.ndarray]] = {measure: [] for measure in measures}
    with compilation_logged():
        for start in range(0, len(judged), BLOCK):
            block = slice(start, start + BLOCK)
            relevant, ranked = as_arrays(rankings[block], judged[block], depth)
            for measure in measures:
                definition = MEASURES[measure.name]
                named = definition.function
                function = getattr(ranx_metrics, named) if isinstance(named, str) else named
                level = (measure.level or relevance_level) if definition.binary else 1
                values[measure].append(function(relevant, ranked, measure.k or 0, level))
    return {measure: np.concatenate(parts) for measure, parts in values.items()}


def evaluate(
    run: Iterable[ScoredDoc],
    qrels: Iterable[Qrel],
    measures: Iterable[str | Measure],
    *,
    name: str = "run",
    dataset: str = "",
    relevance_level: int = 1,
    ties: str = "rank",
    remove_query: bool = False,
) -> list[Measurement]:
    """Measures a run: per measure one value per topic of the qrels, then the mean under query_id "all".

    Args:
        run: scored documents in any order.
        qrels: judgements; each of their topics counts.
        measures: such as "nDCG@10", "RR@10", "Recall@100", "HitRate@1", "AP", "P@5", "AP(rel=2)@100".
        name: of the run, for the rows and for messages.
        dataset: of the qrels, for the rows.
        relevance_level: the least relevance that is relevant, of measures without their own (not for nDCG), at least 1.
        ties: "rank" or "trec_eval", see `ties.py`; `measure_runs` chooses it for runs on disk.
        remove_query: a document whose doc_id is the query_id does not count and has no rank (BEIR's rule).

    Raises:
        UsageError: an unknown measure, order of ties or relevance level.
        DataError: an empty run, empty or contradictory qrels, a document listed twice, no topic in common.
    """
    parsed, hits = parse_measures(measures), by_topic(run, name)
    rules = MeasuringRules(relevance_level, ties, remove_query)
    return measure_hits(hits, judgements(qrels, dataset or "qrels"), parsed, rules, name=name, dataset=dataset)


def measure_hits(
    hits: Mapping[str, Hits],
    judged: Mapping[str, Mapping[str, int]],
    measures: Sequence[Measure],
    rules: MeasuringRules,
    *,
    name: str,
    dataset: str,
) -> list[Measurement]:
    """Measures the hits of a run's topics (`by_topic`), as `evaluate`.

    Raises:
        UsageError, DataError: as `evaluate`.
    """
    if rules.ties == "rank":
        report_ranks(hits, name)
    check_shared_topics(hits, judged, name)
    topics = list(judged)
    values = values_of(hits, judged, topics, measures, rules)
    return [
        Measurement(name, dataset, str(measure), query_id, float(value), rules.ties)
        for measure in measures
        for query_id, value in [*zip(topics, values[measure], strict=True), ("all", mean(values[measure]))]
    ]


def values_of(
    hits: Mapping[str, Hits],
    judged: Mapping[str, Mapping[str, int]],
    topics: Sequence[str],
    measures: Sequence[Measure],
    rules: MeasuringRules,
) -> dict[Measure, np.ndarray]:
    """Values [T] of each measure on some topics; a topic without hits has an empty ranking.

    Raises:
        UsageError: an unknown order of ties or relevance level.
    """
    if rules.relevance_level < 1:
        raise UsageError(f"relevance level {rules.relevance_level} is below 1; relevance 0 is never relevant")
    rankings = ordered({topic: hits[topic] for topic in topics if topic in hits}, rules.ties, rules.remove_query)
    return compute(
        [rankings.get(topic, []) for topic in topics],
        [judged[topic] for topic in topics],
        measures,
        rules.relevance_level,
    )


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean, rounded once: independent of the order of the topics."""
    values = list(values)
    return math.fsum(values) / len(values)


def means(measurements: Iterable[Measurement]) -> dict[str, float]:
    """The mean of each measure ("all" rows), by measure, in order."""
    return {row.measure: row.value for row in measurements if row.query_id == "all"}


def per_topic(measurements: Iterable[Measurement], measure: str) -> dict[str, float]:
    """The values of one measure by query_id, without the mean."""
    return {row.query_id: row.value for row in measurements if row.measure == measure and row.query_id != "all"}
