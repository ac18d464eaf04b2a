"""Documents scored by their passages: the best one (MaxP), or the sum of the best (SumP; Dai and Callan 2019).

`data.passages` says which document a passage belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from lexvl_anserini.data.passages import document_of
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.typed import MOST
from lexvl_anserini.runs.order import RankedList, ranked

# Queries whose documents are searched together, and the passages that they hold at most.
PIECE = 256
HELD = 1 << 20

# Passages of the first search for each hit, and how many times as many the next search has.
FIRST = 2
DEEPER = 4

# Passages of the first search for those of some documents.
LOOKED_AT = 1000

# Ranked lists of passages, of some queries at a depth.
SearchPassages = Callable[[Sequence[Any], int], Iterable[RankedList]]


def best_of(passages: str | None) -> int:
    """How many passages make a document's score: of `max` 1, of `sum:N` N, of `sum` all; 0 for None.

    Raises:
        UsageError: another text.

    >>> [best_of(passages) for passages in (None, "max", "sum:3")]
    [0, 1, 3]
    """
    if passages is None:
        return 0
    kind, colon, number = str(passages).partition(":")
    if kind == "sum" and colon and number.isascii() and number.isdigit() and 1 <= int(number[:11]) <= MOST:
        return int(number)
    if colon or kind not in ("max", "sum"):
        raise UsageError(f"passages {passages!r}: expected max, sum (of all passages), or sum:N (of the best N)")
    return 1 if kind == "max" else MOST


def by_documents(search: SearchPassages, queries: Iterable[Any], hits: int, best: int) -> Iterator[RankedList]:
    """The `hits` best documents of each query, by the sum of their `best` best passages; exact over any search.

    Passages are searched deeper until no deeper one can change the list.

    Args:
        search: its lists have the order of `runs.order`; one shorter than its depth has all passages.
    """
    stream = iter(queries)
    while piece := list(islice(stream, PIECE)):
        lists: list[Any] = [None] * len(piece)
        waiting, depth = list(range(len(piece))), min(FIRST * hits, MOST)
        while waiting:
            deeper, step = [], max(1, HELD // depth)
            for start in range(0, len(waiting), step):
                places = waiting[start : start + step]
                for place, passages in zip(places, search([piece[p] for p in places], depth), strict=True):
                    documents = settled(passages, hits, best, complete=len(passages) < depth or depth == MOST)
                    if documents is None:
                        deeper.append(place)
                    else:
                        lists[place] = documents
            waiting, depth = deeper, min(DEEPER * depth, MOST)
        yield from lists


def best_passages(search: SearchPassages, query: Any, doc_ids: Collection[str], best: int) -> dict[str, list[str]]:
    """The ids of the at most `best` best passages of each document for a query, best first."""
    depth = LOOKED_AT
    while True:
        [passages] = search([query], depth)
        taken: dict[str, list[str]] = {doc_id: [] for doc_id in doc_ids}
        for passage_id in passages.doc_ids:
            of_document = taken.get(document_of(passage_id))
            if of_document is not None and len(of_document) < best:
                of_document.append(passage_id)
        if len(passages) < depth or depth == MOST or all(len(part) == best for part in taken.values()):
            return taken
        depth = min(DEEPER * depth, MOST)


def settled(passages: RankedList, hits: int, best: int, complete: bool) -> RankedList | None:
    """The documents of a ranked list of passages; None where passages below its end could change them.

    Args:
        complete: whether there are no passages below.
    """
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for passage_id, score in passages.pairs():
        document = document_of(passage_id)
        count = counts.get(document, 0)
        if count < best:
            sums[document] = sums.get(document, 0) + score
            counts[document] = count + 1
    documents = ranked(passages.query_id, sums.items(), hits)
    if complete:
        return documents
    # A passage below adds this at most, and a document of which none is there yet so many of them.
    most, least = max(passages.scores[-1], 0), documents.scores[-1]
    listed = set(documents.doc_ids)
    if len(listed) < hits or best * most >= least or any(counts[doc_id] < best for doc_id in listed):
        return None
    others = ((sums[name] + (best - count) * most, name) for name, count in counts.items() if count < best)
    return None if any(bound >= least for bound, name in others if name not in listed) else documents
