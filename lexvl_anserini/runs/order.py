"""Ranked lists: their order, defined once, and their columns; lists as a frame.

The order is score descending, then doc_id ascending by code points. Integer scores tie often, so every list of this
package breaks ties in this way, and a cut at k hits is well defined. Lucene and Java follow the same rule by sorting on
the field `id`.

Documents are scored by their passages: the best one (MaxP), or the sum of the best (SumP; Dai and Callan 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.progress import make_batches
from lexvl_anserini.ground.records import ScoredDoc, get_document_id
from lexvl_anserini.ground.typed import MOST, check_type

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

Item = TypeVar("Item")
LISTS = "a list of scored documents, or several"  # what `as_frame` reads
_scored = partial(tuple.__new__, ScoredDoc)  # NamedTuple's own constructor without its Python frame


class RankedList(Sequence[ScoredDoc]):
    """The hits of one query, best first, as columns; a `ScoredDoc` is made when it is read.

    It equals a list of the same scored documents, a slice of it is a ranked list, and `list(hits)` is a list. It holds
    no file and no mapping, so it outlives the engine that made it.

    Ids may be bytes, UTF-8 with a line feed after each, which are decoded when an id is read. Ranks are 1 to n by
    default.
    """

    __slots__ = ("_doc_ids", "query_id", "ranks", "scores")

    def __init__(
        self, query_id: str, doc_ids: Sequence[str] | bytes, scores: np.ndarray, ranks: Sequence[int] | None = None
    ):
        self.query_id, self._doc_ids, self.scores = query_id, doc_ids, scores
        self.ranks = range(1, len(scores) + 1) if ranks is None else ranks

    @classmethod
    def of(cls, documents: Iterable[ScoredDoc]) -> RankedList:
        """The columns of one query's documents, in the given order, with their ranks."""
        if isinstance(documents, cls):
            return documents
        import numpy as np

        query_ids, doc_ids, ranks, scores = tuple(zip(*documents, strict=True)) or ((), (), (), ())
        if len(set(query_ids)) > 1:
            raise UsageError(f"a ranked list of {len(set(query_ids))} topics, expected one; give a list for each topic")
        return cls(query_ids[0] if query_ids else "", list(doc_ids), np.array(scores, np.float64), list(ranks))

    @property
    def doc_ids(self) -> Sequence[str]:
        """The ids, best first."""
        if isinstance(self._doc_ids, bytes):
            # The last id ends with a line feed too, so the split has one more, empty id.
            self._doc_ids = self._doc_ids.decode().split("\n")[:-1]
        return self._doc_ids

    def without(self, doc_id: str) -> RankedList:
        """The list without a document; ranks count from 1."""
        import numpy as np

        if doc_id not in self.doc_ids:
            return RankedList(self.query_id, self.doc_ids, self.scores)
        place = self.doc_ids.index(doc_id)
        doc_ids = [*self.doc_ids[:place], *self.doc_ids[place + 1 :]]
        return RankedList(self.query_id, doc_ids, np.delete(self.scores, place))

    def down_to(self, least: float) -> RankedList:
        """The hits whose score is at least `least`."""
        import numpy as np

        return self[: int(np.searchsorted(-self.scores, -least, "right"))]

    def pairs(self) -> Iterator[tuple[str, float]]:
        """Ids and scores, best first."""
        return zip(self.doc_ids, self.scores.tolist(), strict=True)

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, place: int) -> ScoredDoc: ...

    @overload
    def __getitem__(self, place: slice) -> RankedList: ...

    def __getitem__(self, place: int | slice) -> ScoredDoc | RankedList:
        if isinstance(place, slice):
            return RankedList(self.query_id, self.doc_ids[place], self.scores[place], self.ranks[place])
        return ScoredDoc(self.query_id, self.doc_ids[place], self.ranks[place], float(self.scores[place]))

    def __iter__(self) -> Iterator[ScoredDoc]:
        return map(_scored, zip(repeat(self.query_id), self.doc_ids, self.ranks, self.scores.tolist(), strict=False))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | RankedList) else NotImplemented

    def __add__(self, other: Iterable[ScoredDoc]) -> list[ScoredDoc]:
        return [*self, *other]

    def __radd__(self, other: Iterable[ScoredDoc]) -> list[ScoredDoc]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return RankedList, (self.query_id, self._doc_ids, self.scores, self.ranks)


def rank_hits(query_id: str, scored: Iterable[tuple[str, float]], hits: int | None = None) -> RankedList:
    """The ranked list of (doc_id, score) pairs, cut at `hits`; ranks count from 1."""
    return in_order(query_id, sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:hits])


def merge_lists(lists: Sequence[RankedList], hits: int) -> RankedList:
    """The best `hits` of several ranked lists of one query, each at least as long or complete.

    Impact scores need no statistics of a collection, so this is the list of one index of all documents.
    """
    import numpy as np

    scores = np.concatenate([listed.scores for listed in lists])
    least = np.partition(scores, len(scores) - hits)[len(scores) - hits] if len(scores) > hits else -np.inf
    best = [listed for listed in lists if len(listed) and listed.scores[0] >= least]
    # Often one list has them all, as of an index to which little was added.
    if len(best) == 1:
        return best[0] if len(best[0]) <= hits else best[0][:hits]
    pairs = (listed.down_to(least).pairs() for listed in best)
    return rank_hits(lists[0].query_id, chain.from_iterable(pairs), hits)


def in_order(query_id: str, scored: Sequence[tuple[str, float]]) -> RankedList:
    """The list of (doc_id, score) pairs that are in order already."""
    import numpy as np

    return RankedList(query_id, [doc_id for doc_id, _ in scored], np.array([score for _, score in scored], np.float64))


def select_top_positions(scores: np.ndarray, hits: int) -> np.ndarray:
    """Positions of the `hits` largest positive scores, in order, where documents ascend by their ids."""
    import numpy as np

    positions = np.flatnonzero(scores > 0)
    if len(positions) > hits:
        least = np.partition(scores[positions], len(positions) - hits)[len(positions) - hits]
        positions = positions[scores[positions] >= least]
    return positions[np.argsort(-scores[positions], kind="stable")][:hits]


def as_frame(rankings: Iterable[ScoredDoc] | Iterable[Iterable[ScoredDoc]]) -> DataFrame:
    """A list, or several, with the columns query_id, doc_id, rank (from 1) and score; one line per document."""
    from pandas import DataFrame

    check_type("rankings", rankings, Iterable, LISTS)
    rows: list[ScoredDoc] = []
    for ranking in rankings:
        check_type("a list of rankings", ranking, Iterable, LISTS)
        rows += [ranking] if isinstance(ranking, ScoredDoc) else ranking
    for row in rows:
        check_type("a document of rankings", row, tuple, "a ScoredDoc")
    return DataFrame(rows, columns=list(ScoredDoc._fields))


PIECE = 256  # queries whose documents are searched together
HELD = 1 << 20  # the passages that they hold at most
FIRST = 2  # passages of the first search for each hit
DEEPER = 4  # how many times as many the next search has
LOOKED_AT = 1000  # passages of the first search for those of some documents

# Ranked lists of passages, of some queries at a depth.
SearchPassages = Callable[[Sequence[Any], int], Iterable[RankedList]]


def read_best(passages: str | None) -> int:
    """How many passages make a document's score: of `max` 1, of `sum:N` N, of `sum` all; 0 for None."""
    if passages is None:
        return 0
    kind, colon, number = str(passages).partition(":")
    if kind == "sum" and colon and number.isascii() and number.isdigit() and 1 <= int(number[:11]) <= MOST:
        return int(number)
    if colon or kind not in ("max", "sum"):
        raise UsageError(f"passages {passages!r}: expected max, sum (of all passages), or sum:N (of the best N)")
    return 1 if kind == "max" else MOST


def group_by_documents(search: SearchPassages, queries: Iterable[Any], hits: int, best: int) -> Iterator[RankedList]:
    """The `hits` best documents of each query, by the sum of their `best` best passages; exact over any search.

    Passages are searched deeper until no deeper one can change the list; a list shorter than its depth has all of them.
    """
    for piece in make_batches(queries, PIECE):
        lists: list[Any] = [None] * len(piece)
        waiting, depth = list(range(len(piece))), min(FIRST * hits, MOST)
        while waiting:
            deeper, step = [], max(1, HELD // depth)
            for places in make_batches(waiting, step):
                for place, passages in zip(places, search([piece[p] for p in places], depth), strict=True):
                    documents = settle_documents(passages, hits, best, complete=len(passages) < depth or depth == MOST)
                    if documents is None:
                        deeper.append(place)
                    else:
                        lists[place] = documents
            waiting, depth = deeper, min(DEEPER * depth, MOST)
        yield from lists


def score_by_passages(search: SearchPassages, query: Any, doc_ids: Collection[str], best: int) -> dict[str, list[str]]:
    """The ids of the at most `best` best passages of each document for a query, best first."""
    depth = LOOKED_AT
    while True:
        [passages] = search([query], depth)
        taken: dict[str, list[str]] = {doc_id: [] for doc_id in doc_ids}
        for passage_id in passages.doc_ids:
            of_document = taken.get(get_document_id(passage_id))
            if of_document is not None and len(of_document) < best:
                of_document.append(passage_id)
        if len(passages) < depth or depth == MOST or all(len(part) == best for part in taken.values()):
            return taken
        depth = min(DEEPER * depth, MOST)


def settle_documents(passages: RankedList, hits: int, best: int, complete: bool) -> RankedList | None:
    """The documents of a ranked list of passages, `complete` or not; None where passages below could change them."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for passage_id, score in passages.pairs():
        document = get_document_id(passage_id)
        count = counts.get(document, 0)
        if count < best:
            sums[document] = sums.get(document, 0) + score
            counts[document] = count + 1
    documents = rank_hits(passages.query_id, sums.items(), hits)
    if complete:
        return documents
    # A passage below adds this at most, and a document of which none is there yet so many of them.
    most, least = max(passages.scores[-1], 0), documents.scores[-1]
    listed = set(documents.doc_ids)
    if len(listed) < hits or best * most >= least or any(counts[doc_id] < best for doc_id in listed):
        return None
    others = ((sums[name] + (best - count) * most, name) for name, count in counts.items() if count < best)
    return None if any(bound >= least for bound, name in others if name not in listed) else documents
