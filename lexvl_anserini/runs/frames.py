"""Ranked lists as a pandas frame."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from lexvl_anserini.ground.records import ScoredDoc

if TYPE_CHECKING:
    from pandas import DataFrame


def as_frame(rankings: Iterable[ScoredDoc] | Iterable[Iterable[ScoredDoc]]) -> DataFrame:
    """A list, or several, with the columns query_id, doc_id, rank (from 1) and score; one line per document.

    >>> as_frame([[ScoredDoc("q", "d1", 1, 3.0)], []]).values.tolist()
    [['q', 'd1', 1, 3.0]]
    """
    from pandas import DataFrame

    lists = ([ranking] if isinstance(ranking, ScoredDoc) else ranking for ranking in rankings)
    return DataFrame(list(chain.from_iterable(lists)), columns=list(ScoredDoc._fields))
