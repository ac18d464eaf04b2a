"""The settings of approximate search, and the recall that was measured for each: which one a search takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lexvl_anserini.engines.index_folder import IndexReport, SettingEntry
from lexvl_anserini.ground.errors import ArtefactError, UsageError

# Lengths of lists that are measured; other lists have the setting of the next longer ones.
MEASURED_HITS = (10, 100, 1000)

# The shares of the last hit's score that the sum of a group must have (`engines/resident/approximate.py`), which are
# measured one after the other until all hits are found.
REACHES = (1.1, 1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)

PREPARE = "python -m lexvl_anserini.index --approximate --index INDEX"

# The exact hits of a query: their number, and the score of the last.
Exact = tuple[int, float]


def compute_mean_recall(exact: Sequence[Exact], scores: Sequence[np.ndarray]) -> float:
    """Mean over queries of the share of the exact hits whose places are taken by documents of their true `scores`.

    Documents with the score of the last exact hit are as good as it. A query without hits does not count.
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
    """The measured setting that scores the fewest documents for this recall."""
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
