"""The settings of approximate search, and the recall that was measured for each: which one a search takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.engine import ImpactEngine, open_verified
from lexvl_anserini.engines.index_folder import (
    APPROXIMATE,
    BuiltIndex,
    IndexReport,
    SettingEntry,
    read_report,
    write_report,
)
from lexvl_anserini.engines.lucene.writing import read_source_manifest
from lexvl_anserini.engines.verifying import change_index
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import sole_writer
from lexvl_anserini.ground.manifest import Manifest
from lexvl_anserini.ground.records import SCORE_LIMIT, ImpactQuery
from lexvl_anserini.runs.order import RankedList

if TYPE_CHECKING:
    from lexvl_anserini.engines.resident.approximate import ApproximatePostings


# Lengths of lists that are measured; other lists have the setting of the next longer ones.
MEASURED_HITS = (10, 100, 1000)

# The shares of the last hit's score that the sum of a group must have (`engines/resident/approximate.py`), which are
# measured one after the other until all hits are found.
REACHES = (1.1, 1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)

PREPARE = "python -m lexvl_anserini.index --approximate --index INDEX"


# The exact hits of a query: their number, and the score of the last.
Exact = tuple[int, float]


def compute_mean_recall(exact: Sequence[Exact], scores: Sequence[np.ndarray]) -> float:
    """Mean over queries of the share of the exact hits whose places are taken by documents of their scores.

    Documents with the score of the last exact hit are as good as it. A query without hits does not count.

    Args:
        scores: the true scores of each query's hits, distinct documents.
    """
    shares = [
        min(1.0, np.count_nonzero(of_query >= least) / count)
        for (count, least), of_query in zip(exact, scores, strict=True)
        if count
    ]
    return float(sum(shares) / len(shares)) if shares else 1.0


def check_recall(recall: float) -> None:
    """Refuses (UsageError) what is no recall of approximate search."""
    if not 0 < recall < 1:
        raise UsageError(f"approximate {recall}: expected a recall above 0 and below 1, such as 0.99")


def choose_setting(report: IndexReport, index: Path, recall: float, hits: int) -> SettingEntry:
    """The measured setting that scores the fewest documents for this recall.

    Raises:
        UsageError: the index is of another engine, or lists of so many hits are not measured.
        ArtefactError: nothing is measured, or no setting has this recall.
    """
    if report.engine != "lucene":
        raise UsageError(f"{index}: an index of the engine {report.engine}; approximate search is for those of lucene")
    settings = [SettingEntry(entry) for entry in report.approximation.get("settings", ())]
    if not settings:
        raise ArtefactError(f"{index}: not prepared for approximate search, or changed since; run {PREPARE}")
    # A list from which the topic's own document is removed has one more hit.
    measured = next((count for count in MEASURED_HITS if hits <= count + 1), None)
    if measured is None:
        raise UsageError(f"approximate search is measured for up to {MEASURED_HITS[-1]:,} hits, not for {hits:,}")
    fitting = [setting for setting in settings if setting.hits == measured]
    if enough := [setting for setting in fitting if setting.recall >= recall]:
        return min(enough, key=lambda setting: setting.documents)
    most = max(setting.recall for setting in fitting)
    raise ArtefactError(
        f"{index}: no setting of approximate search reaches a recall of {recall} for {measured:,} hits, the highest is "
        f"{most}; search exactly"
    )


def read_recall(report: IndexReport, index: Path, recall: float, hits: int) -> str:
    """What a run of approximate search notes: the recall that was measured."""
    setting, measured = choose_setting(report, index, recall, hits), report.approximation
    return f"{recall} (measured {setting.recall} of the first {setting.hits}, {measured.queries} {measured.source})"


# Where the user has no queries, some terms of so many documents are queries. Few terms, drawn from all: the heaviest
# find the document and its like too easily. On mixtures of SPLADE's vectors, 16 terms have the recall of real queries.
SAMPLE = 200
QUERY_TERMS = 16
SEED = 20261125

# The queries of a measurement, at most: their exact lists are in memory.
MOST_QUERIES = 10_000


def approximate(
    index: Path, opened: Callable[[Path, Manifest], ImpactEngine], queries: Sequence[ImpactQuery], source: str
) -> BuiltIndex:
    """Writes the groups and the measurement of an index; it changes whole or not at all.

    Args:
        opened: opens an index.
        queries: to measure with; documents of the index if there are none. `source` says which queries they are.
    """
    from lexvl_anserini.engines.resident.approximate import ApproximatePostings, write_approximate

    if len(queries) > MOST_QUERIES:
        raise UsageError(f"{len(queries):,} queries to measure with, at most {MOST_QUERIES:,}; give some of them")
    jvm.start()
    manifest = read_source_manifest(index)
    with sole_writer(index, folder=True), change_index(index) as part:
        # In a changed index the name is a link to the file of the older one.
        (part / APPROXIMATE).unlink(missing_ok=True)
        write_approximate(part)
        with (part / APPROXIMATE).open("rb") as file:
            postings = ApproximatePostings(file, part / APPROXIMATE)
        measuring = list(queries) or sample_queries(postings)
        with open_verified(opened(part, manifest)) as engine:
            exact = list(engine.search(measuring, MEASURED_HITS[-1]))
        settings = list(measure_settings(postings, measuring, exact))
        facts = {"queries": len(measuring), "source": source if queries else f"documents, {QUERY_TERMS} terms of each"}
        report = {**read_report(part), "approximate_bytes": (part / APPROXIMATE).stat().st_size}
        write_report(part, {**report, "approximation": {**facts, "settings": settings}}, manifest)
    return BuiltIndex(index, manifest)


def sample_queries(postings: ApproximatePostings) -> list[ImpactQuery]:
    """Some terms of documents at equal distances, as queries."""
    random, members = np.random.default_rng(SEED), len(postings.grouped.ranks)
    queries = []
    for number in np.unique(np.linspace(0, members - 1, SAMPLE).astype(int)).tolist():
        terms = list(postings.vector(number).items())
        vector = dict(terms[place] for place in random.permutation(len(terms))[:QUERY_TERMS])
        # Scores of such queries stay below the limit.
        most = postings.find_max_impacts(list(vector))
        share = min(1.0, SCORE_LIMIT / 2 / sum(a * b for a, b in zip(vector.values(), most, strict=True)))
        weights = {term: max(1, int(weight * share)) for term, weight in vector.items()}
        queries.append(ImpactQuery(f"document {number}", weights))
    return queries


def measure_settings(
    postings: ApproximatePostings, queries: Sequence[ImpactQuery], exact: Sequence[RankedList]
) -> Iterator[dict[str, Any]]:
    """The settings for each length of lists, the fastest first; each finds more than the one before it."""
    for hits in MEASURED_HITS:
        ends = [(len(best), best.min(initial=np.inf)) for best in (of_query.scores[:hits] for of_query in exact)]
        most = 0.0
        for reach in REACHES:
            at = postings.at(reach)
            recall = compute_mean_recall(ends, [of_query.scores for of_query in at.lists(queries, hits, 1)])
            if recall > most:
                most, documents = recall, round(at.scored / len(queries), 1)
                # Rounded down: no setting promises more than it found.
                yield {"hits": hits, "reach": reach, "recall": int(recall * 10_000) / 10_000, "documents": documents}
            if recall == 1:
                break
