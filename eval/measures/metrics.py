"""Measures of a run against judgements, with trec_eval's semantics; ranx computes.

The rules, in one place:

* The mean is over every topic of the qrels (`trec_eval -c`): a topic that is not in the run counts 0, and so does a
  topic without any relevant document. Topics of the run without judgements are ignored and reported.
* Relevance <= 0 is not relevant. nDCG has linear gain; its ideal ranking has all judged documents, retrieved or not.
* The least relevance that counts (`trec_eval -l`) is 1, or the measure's own: `AP(rel=2)`; nDCG has none.
* A measure sees a strict order (`ties.py`), never scores.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import Measurement, Qrel, ScoredDoc

from .found import Found, Relevant, find, relevant_of
from .kernels import compute
from .names import Measure, parse_measures
from .ties import check_ties, checked_hits, report_ranks, some

log = logging.getLogger(__name__)


class MeasuringRules(NamedTuple):
    """How a run is measured, see `evaluate`."""

    ties: str = "rank"
    remove_query: bool = False


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


def check_levels(relevant: Relevant, measures: Sequence[Measure], name: str) -> None:
    """Refuses measures whose least relevance no document has: every run would score 0.

    Args:
        relevant: of all judged topics.
        measures: that are computed.
        name: of the judgements, for the message.
    """
    largest = int(relevant.relevance.max(initial=0))
    for measure in measures:
        if (level := measure.level or 1) > largest:
            largest_level = f"the largest is {largest}" if largest else "there is none above 0"
            raise DataError(
                f"{name}: no document has relevance {level} ({largest_level}), so every run scores 0 by {measure}; "
                "lower --relevance-level or (rel=N), or give other judgements"
            )


def check_shared_topics(run: Sequence[str], judged: Collection[str], name: str) -> None:
    """Reports topics that only the run or only the qrels have; refuses a run that shares none with the qrels."""
    unjudged = [query_id for query_id in run if query_id not in judged]
    answered = set(run)
    missing = [query_id for query_id in judged if query_id not in answered]
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
        relevance_level: the least relevance that counts, of measures without their own, which have it in their names
            then: AP becomes AP(rel=2), nDCG has none. One that no document has gives 0, as trec_eval does.
        ties: "rank" or "trec_eval", see `ties.py`. The caller has ranked the documents, so its ranks decide by
            default; for a run on disk `measure_runs` chooses by its origin.
        remove_query: a document whose doc_id is the query_id does not count and has no rank (BEIR's rule).

    Raises:
        UsageError: an unknown measure, order of ties or relevance level.
        DataError: an empty run, empty or contradictory qrels, a document listed twice, no topic in common.
    """
    parsed, hits = parse_measures(measures, relevance_level), checked_hits(run, name)
    relevant = relevant_of(judgements(qrels, dataset or "qrels"))
    places = find([hits], relevant, remove_query)
    return measure(places, relevant, parsed, MeasuringRules(ties, remove_query), name, dataset)


def measure(
    found: Found, relevant: Relevant, measures: Sequence[Measure], rules: MeasuringRules, name: str, dataset: str
) -> list[Measurement]:
    """Measures what a run has found, as `evaluate`."""
    if not found.query_ids:
        raise DataError(f"{name}: the run is empty")
    if rules.ties == "rank":
        report_ranks(found.contradicting, len(found.query_ids), name)
    check_shared_topics(found.query_ids, relevant.topics, name)
    values = values_of(found, relevant, np.arange(len(relevant.topics)), measures, rules)
    return [
        Measurement(name, dataset, str(one), query_id, value, rules.ties)
        for one in measures
        for query_id, value in [*zip(relevant.topics, values[one].tolist(), strict=True), ("all", mean(values[one]))]
    ]


def values_of(
    found: Found, relevant: Relevant, topics: np.ndarray, measures: Sequence[Measure], rules: MeasuringRules
) -> dict[Measure, np.ndarray]:
    """Values [t] of each measure on some judged topics, given by ascending numbers; a topic without hits counts 0."""
    check_ties(rules.ties)
    return compute(found, rules.ties, relevant, topics, measures)


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
