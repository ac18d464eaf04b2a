"""The strict order of a run: every evaluator sees its documents in the same order.

`rank` uses a run's own ranks if they agree with its scores, else score descending, then doc_id ascending.
`trec_eval` does what trec_eval does: scores are read as float32, and equal scores are ordered by doc_id descending.

A table has one of the two rules (`tie_rules.py`): `rank` for runs whose manifest vouches for them, because their lines
have the order of the index; `trec_eval` for runs of other systems, whose published figures are trec_eval's.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lexvl_anserini.errors import DataError, UnknownName
from lexvl_anserini.ranking.order import score_positions
from lexvl_anserini.records import ScoredDoc

log = logging.getLogger(__name__)

# A message lists this many ids or problems, then says "and N more".
SHOWN = 5


@dataclass
class Hits:
    """A run's documents for one topic, as columns in file order (a run of millions of lines must fit)."""

    doc_ids: list[str] = field(default_factory=list)
    ranks: array[int] = field(default_factory=lambda: array("q"))
    scores: array[float] = field(default_factory=lambda: array("d"))


def ranks_agree(hits: Hits) -> bool:
    """Returns True if the ranks are distinct and no score increases with the rank."""
    ranks = np.asarray(hits.ranks)
    order = np.argsort(ranks, kind="stable")
    scores = np.asarray(hits.scores)[order]
    return bool((np.diff(ranks[order]) > 0).all() and (scores[:-1] >= scores[1:]).all())


def score_order(hits: Hits) -> list[int]:
    """Positions by score descending, then doc_id ascending (code points)."""
    return score_positions(hits.scores, hits.doc_ids)


def rank_order(hits: Hits) -> list[int]:
    """Positions by rank if the ranks agree with the scores, else as `score_order`."""
    if ranks_agree(hits):
        return sorted(range(len(hits.doc_ids)), key=hits.ranks.__getitem__)
    return score_order(hits)


def float32_scores(hits: Hits) -> np.ndarray:
    """Scores [n] as trec_eval stores them; those above the largest float32 are infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(hits.scores).astype(np.float32)


def trec_eval_order(hits: Hits) -> list[int]:
    """Positions by score as float32 descending, then doc_id descending, as trec_eval sorts."""
    scores = float32_scores(hits)
    return sorted(range(len(hits.doc_ids)), key=lambda i: (scores[i], hits.doc_ids[i]), reverse=True)


TIES: dict[str, Callable[[Hits], list[int]]] = {"rank": rank_order, "trec_eval": trec_eval_order}

# What each rule does with documents of equal scores, for tables.
ABOUT = {"rank": "equal scores in the order of the run's ranks", "trec_eval": "equal scores by doc id, descending"}


def may_differ(hits: Hits, judged: Mapping[str, int]) -> bool:
    """Returns False if both rules give the same values: no other document has a relevant one's score, as float32."""
    relevant = [i for i, doc_id in enumerate(hits.doc_ids) if judged.get(doc_id, 0) > 0]
    scores = float32_scores(hits)
    values, counts = np.unique(scores, return_counts=True)
    return bool((counts[np.searchsorted(values, scores[relevant])] > 1).any())


def some(items: Sequence[str]) -> str:
    """The first few items, for a message.

    >>> some(["a", "b"])
    "'a', 'b'"
    """
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(map(repr, items[:SHOWN])) + more


def by_topic(run: Iterable[ScoredDoc], name: str) -> dict[str, Hits]:
    """The hits of a run per topic, in order of first appearance.

    Raises:
        DataError: the run is empty, lists a document twice for a topic, or has a score that is not a number.
    """
    topics: dict[str, Hits] = {}
    for query_id, doc_id, rank, score in run:
        hits = topics.get(query_id)
        if hits is None:
            hits = topics[query_id] = Hits()
        hits.doc_ids.append(doc_id)
        hits.ranks.append(rank)
        hits.scores.append(score)
    if not topics:
        raise DataError(f"{name}: the run is empty")
    problems = [problem for query_id, hits in topics.items() for problem in problems_of(query_id, hits)]
    if problems:
        more = f" (and {len(problems) - SHOWN} more)" if len(problems) > SHOWN else ""
        raise DataError(f"{name}: " + "; ".join(problems[:SHOWN]) + more)
    return topics


def problems_of(query_id: str, hits: Hits) -> Iterator[str]:
    """The errors among one topic's hits: documents listed twice, scores that are not numbers."""
    if len(set(hits.doc_ids)) < len(hits.doc_ids):
        seen: set[str] = set()
        for doc_id in hits.doc_ids:
            if doc_id in seen:
                yield f"topic {query_id!r} lists document {doc_id!r} more than once"
            seen.add(doc_id)
    for place in np.flatnonzero(np.isnan(hits.scores)):
        yield f"topic {query_id!r}, document {hits.doc_ids[place]!r}: the score is not a number"


def strict_order(
    run: Iterable[ScoredDoc], ties: str = "rank", remove_query: bool = False, name: str = "run"
) -> dict[str, list[str]]:
    """A run as doc_ids per topic, best first.

    Args:
        run: in any order, topics interleaved or not.
        ties: "rank" or "trec_eval", see above.
        remove_query: drops the document whose doc_id is the query_id (before any cut).
        name: of the run, for messages.

    Raises:
        DataError: the run is empty, lists a document twice for a topic, or has a score that is not a number.
        UnknownName: no such way to order ties.
    """
    topics = by_topic(run, name)
    if ties == "rank":
        report_ranks(topics, name)
    return ordered(topics, ties, remove_query)


def report_ranks(topics: Mapping[str, Hits], name: str) -> None:
    """Logs the topics of a run in which `rank` cannot use the ranks."""
    disagreeing = [query_id for query_id, hits in topics.items() if not ranks_agree(hits)]
    if disagreeing:
        where = f"{len(disagreeing)} of {len(topics)} topics ({some(disagreeing)})"
        log.warning("%s: ranks contradict scores in %s; ordered by score, then doc_id, there", name, where)


def ordered(topics: Mapping[str, Hits], ties: str, remove_query: bool) -> dict[str, list[str]]:
    """The hits of a run in strict order, as `strict_order`.

    Raises:
        UnknownName: no such way to order ties.
    """
    if ties not in TIES:
        raise UnknownName("order of ties", ties, TIES)
    ranked = {query_id: [hits.doc_ids[i] for i in TIES[ties](hits)] for query_id, hits in topics.items()}
    if remove_query:
        return {query_id: [doc_id for doc_id in ids if doc_id != query_id] for query_id, ids in ranked.items()}
    return ranked
