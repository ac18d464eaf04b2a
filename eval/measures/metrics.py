"""Measures of a run against judgements, with trec_eval's semantics; ranx computes.

The rules, in one place:

* The mean is over every topic of the qrels (`trec_eval -c`): a topic that is not in the run counts 0, and so does a
  topic without any relevant document. Topics of the run without judgements are ignored and reported.
* Relevance <= 0 is not relevant. nDCG has linear gain; its ideal ranking has all judged documents, retrieved or not.
* `relevance_level` (`trec_eval -l`) is the least relevance that counts as relevant; nDCG has no such threshold.
* A measure sees a strict order (`ties.py`), never scores.

ranx computes on document numbers. This module numbers documents within their topic, because ranx's own `Run` and
`Qrels` number them by a 64-bit hash stored in a float64, sort equal scores by the order of a dictionary, and are
modified by `make_comparable`. ranx runs on numba's `workqueue` threads: call `evaluate` from one thread at a time.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import NamedTuple

import numpy as np

from lexvl_anserini.errors import DataError, UnknownName, UsageError
from lexvl_anserini.records import Measurement, Qrel, ScoredDoc

from .ties import some, strict_order

log = logging.getLogger(__name__)

# Topics per call of ranx: limits the padded arrays to about 16 MB at a depth of 1,000.
BLOCK = 1000

# Loading ranx takes 2-4 s; if it takes longer, numba compiles, once per machine.
SLOW_S = 6.0


class Measure(NamedTuple):
    """A measure and its cut: `nDCG@10` is ("nDCG", 10), `AP` is ("AP", None)."""

    name: str
    k: int | None = None

    def __str__(self) -> str:
        return self.name if self.k is None else f"{self.name}@{self.k}"


# (judgements [T, J, 2], rankings [T, depth, 2], cut or 0, relevance level) -> values [T]; `as_arrays` has the layout.
MeasureFunction = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]


class Definition(NamedTuple):
    """How a measure is computed.

    function   the name of a function of `ranx.metrics`, or a function with the same parameters
    needs_cut  the measure needs a cut
    binary     `relevance_level` applies
    about      the measure in words
    """

    function: str | MeasureFunction
    needs_cut: bool
    binary: bool
    about: str


MEASURES: dict[str, Definition] = {
    "nDCG": Definition("ndcg", False, False, "normalised discounted cumulative gain, linear gain"),
    "RR": Definition("reciprocal_rank", False, True, "1 / rank of the first relevant document"),
    "AP": Definition("average_precision", False, True, "mean precision at the relevant documents"),
    "Recall": Definition("recall", True, True, "share of the relevant documents found"),
    "HitRate": Definition("hit_rate", True, True, "1 if any relevant document is found; R@k of the caption papers"),
    "P": Definition("precision", True, True, "share of the first k that is relevant"),
}

# In lower case: the names of other tools for the same measures.
ALIASES: dict[str, str] = {
    **{name.lower(): name for name in MEASURES},
    "mrr": "RR",
    "map": "AP",
    "precision": "P",
    "success": "HitRate",
    "hit": "HitRate",
    "hit_rate": "HitRate",
}


def parse_measure(text: str) -> Measure:
    """Parses a measure's name; case is ignored.

    >>> parse_measure("MRR@10")
    Measure(name='RR', k=10)

    Raises:
        UnknownName: there is no such measure; the message suggests the nearest.
        UsageError: the cut is missing or below 1, or the name means two things (`R@10`).
    """
    shape = re.fullmatch(r"([A-Za-z_]+)(?:@([0-9]+))?", text)
    name, cut = shape.groups() if shape else (text.partition("@")[0], None)
    if name.lower() == "r":
        raise UsageError(
            f"measure {text!r} means two things: HitRate@k (R@k of the caption papers) or Recall@k (trec_eval's)"
        )
    if shape is None or name.lower() not in ALIASES:
        raise UnknownName("measure", text, (f"{known}@k" for known in MEASURES))
    measure = Measure(ALIASES[name.lower()], int(cut) if cut else None)
    if measure.k == 0 or (measure.k is None and MEASURES[measure.name].needs_cut):
        raise UsageError(f"measure {text!r} needs a cut of at least 1, such as {measure.name}@10")
    return measure


def parse_measures(texts: Iterable[str | Measure]) -> tuple[Measure, ...]:
    """Parses several measures, in order, without duplicates.

    Raises:
        UsageError: one of them cannot be parsed, or there is none.
    """
    measures = tuple(dict.fromkeys(parse_measure(str(text)) for text in texts))
    if not measures:
        raise UsageError("no measure given; name one, such as nDCG@10")
    return measures


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
def log_if_slow(seconds: float, message: str) -> Iterator[None]:
    """Logs `message` if the body is still running after `seconds`."""
    timer = Timer(seconds, log.info, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def compute(
    rankings: Sequence[Sequence[str]],
    judged: Sequence[Mapping[str, int]],
    measures: Sequence[Measure],
    relevance_level: int = 1,
) -> dict[Measure, np.ndarray]:
    """Values [T] of each measure; the t-th ranking (doc_ids, best first) belongs to the t-th judgements."""
    with log_if_slow(SLOW_S, "ranx is loading; its first use on a machine compiles it (up to half a minute)"):
        with warnings.catch_warnings():
            # From Python 3.12 on, compiling the sources of ranx 0.3 warns of backslashes in its strings.
            warnings.simplefilter("ignore", SyntaxWarning)
            from ranx import metrics as ranx_metrics

        # A measure with a cut reads no further than the cut; one without reads the whole ranking.
        longest = max(1, *map(len, rankings))
        depth = min(longest, max(measure.k or longest for measure in measures))
        values: dict[Measure, list[np.ndarray]] = {measure: [] for measure in measures}
        for start in range(0, len(judged), BLOCK):
            block = slice(start, start + BLOCK)
            relevant, ranked = as_arrays(rankings[block], judged[block], depth)
            for measure in measures:
                definition = MEASURES[measure.name]
                named = definition.function
                function = getattr(ranx_metrics, named) if isinstance(named, str) else named
                level = relevance_level if definition.binary else 1
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
        measures: such as "nDCG@10", "RR@10", "Recall@100", "HitRate@1", "AP", "P@5".
        name: of the run, for the rows and for messages.
        dataset: of the qrels, for the rows.
        relevance_level: the least relevance that is relevant (not for nDCG), at least 1.
        ties: "rank" or "trec_eval", see `ties.py`.
        remove_query: a document whose doc_id is the query_id does not count and has no rank (BEIR's rule).

    Raises:
        UsageError: an unknown measure, order of ties or relevance level.
        DataError: an empty run, empty or contradictory qrels, a document listed twice, no topic in common.
    """
    parsed = parse_measures(measures)
    if relevance_level < 1:
        raise UsageError(f"relevance level {relevance_level} is below 1; relevance 0 is never relevant")
    rankings = strict_order(run, ties, remove_query, name)
    judged = judgements(qrels, dataset or "qrels")
    check_shared_topics(rankings, judged, name)
    topics = list(judged)
    values = compute([rankings.get(topic, []) for topic in topics], list(judged.values()), parsed, relevance_level)
    return [
        Measurement(name, dataset, str(measure), query_id, float(value))
        for measure in parsed
        for query_id, value in [*zip(topics, values[measure], strict=True), ("all", mean(values[measure]))]
    ]


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
