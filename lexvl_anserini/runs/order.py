"""The order of ranked lists, defined once: score descending, then doc_id ascending by code points; lists as a frame.

Integer scores tie often, so every list of this package breaks ties in this way, and a cut at k hits is well defined.
Lucene and Java follow the same rule by sorting on the field `id`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from heapq import merge
from itertools import islice, repeat
from typing import TYPE_CHECKING

from lexvl_anserini.ground.records import ScoredDoc
from lexvl_anserini.ground.typed import check_type

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

# What `as_frame` reads.
LISTS = "a list of scored documents, or several"

# NamedTuple's own constructor without its Python frame.
_scored = partial(tuple.__new__, ScoredDoc)


def ranked(query_id: str, scored: Iterable[tuple[str, float]], hits: int | None = None) -> list[ScoredDoc]:
    """The ranked list of (doc_id, score) pairs, cut at `hits`; ranks count from 1.

    >>> [d.doc_id for d in ranked("q", [("b", 2.0), ("c", 3.0), ("a", 2.0)])]
    ['c', 'a', 'b']
    """
    best = sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:hits]
    return [ScoredDoc(query_id, doc_id, rank, score) for rank, (doc_id, score) in enumerate(best, start=1)]


def by_score(documents: Iterable[ScoredDoc]) -> list[ScoredDoc]:
    """Scored documents in order; their ranks stay as they are."""
    return sorted(documents, key=lambda document: (-document.score, document.doc_id))


def merged_by_score(lists: Iterable[Iterable[ScoredDoc]], hits: int) -> list[ScoredDoc]:
    """The first `hits` documents of several ranked lists together, in order; reads no list further than it needs."""
    return list(islice(merge(*lists, key=lambda document: (-document.score, document.doc_id)), hits))


def top_positions(scores: np.ndarray, hits: int) -> np.ndarray:
    """Positions of the `hits` largest positive scores, in order, where documents ascend by their ids."""
    import numpy as np

    positions = np.flatnonzero(scores > 0)
    if len(positions) > hits:
        least = np.partition(scores[positions], len(positions) - hits)[len(positions) - hits]
        positions = positions[scores[positions] >= least]
    return positions[np.argsort(-scores[positions], kind="stable")][:hits]


def with_ranks(documents: Iterable[ScoredDoc], start: int = 1) -> list[ScoredDoc]:
    """The documents in the given order, with ranks that count from `start`."""
    return [document._replace(rank=rank) for rank, document in enumerate(documents, start=start)]


def as_frame(rankings: Iterable[ScoredDoc] | Iterable[Iterable[ScoredDoc]]) -> DataFrame:
    """A list, or several, with the columns query_id, doc_id, rank (from 1) and score; one line per document.

    Raises:
        UsageError: something else than scored documents.

    >>> as_frame([[ScoredDoc("q", "d1", 1, 3.0)], []]).values.tolist()
    [['q', 'd1', 1, 3.0]]
    """
    from pandas import DataFrame

    check_type("rankings", rankings, Iterable, LISTS)
    rows: list[ScoredDoc] = []
    for ranking in rankings:
        check_type("a list of rankings", ranking, Iterable, LISTS)
        rows += [ranking] if isinstance(ranking, ScoredDoc) else ranking
    for row in rows:
        check_type("a document of rankings", row, tuple, "a ScoredDoc")
    return DataFrame(rows, columns=list(ScoredDoc._fields))


def hit_list(query_id: str, lines: bytes, scores: np.ndarray) -> list[ScoredDoc]:
    """The list of a query, from its ids (UTF-8, a line feed after each) and their scores, the best first."""
    # The last line ends with a line feed too, so the split has one more, empty id.
    ids = lines.decode().split("\n")
    return list(map(_scored, zip(repeat(query_id), ids, range(1, len(ids)), scores.tolist(), strict=False)))
