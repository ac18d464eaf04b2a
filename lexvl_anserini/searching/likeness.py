"""Near-duplicates: documents of an index whose vectors have a cosine of a threshold or more.

The cosine is that of the stored impacts, integers, so that it is the same on every machine. The join of the index with
itself is exact: bounds leave pairs out that cannot reach the threshold, and what remains is computed.

A bound: let h be the heaviest impacts of a document x of unit length, and r the length of the others. Then x·y is at
most h·y + r for every y of unit length, so that a pair at the threshold t has h·y of t - r at least (the bound of
L2AP: Anastasiu and Karypis, ICDE 2014).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lexvl_anserini.engines.index_folder import BuiltIndex
from lexvl_anserini.engines.lucene.vectors import IndexVectors, read_vectors
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.manifest import expect_lexical
from lexvl_anserini.ground.records import ScoredDoc

# Chosen on photos, see docs/photos.md.
THRESHOLD = 0.93

# The length of what is not among a document's heaviest impacts, as a share of the threshold.
REST = 0.65

# Pairs whose bound is computed together, and those that are computed together.
CHUNK = 1 << 22
PAIRS = 1 << 12

# Hits that are read for each that is shown; as many times more, if they are too few.
MORE = 4

# Around the threshold floats do not decide.
UNSURE = 1e-9


class Pair(NamedTuple):
    """Two documents, in the order of their ids, and their cosine."""

    first: str
    second: str
    cosine: float


class Alike(NamedTuple):
    """A document of a list, and all near-duplicates of it in the index, in the order of ids."""

    doc_id: str
    others: tuple[str, ...]


def checked_threshold(threshold: float) -> float:
    """A cosine above 0.

    Raises:
        UsageError: no such number.
    """
    if not 0 < threshold <= 1:
        raise UsageError(f"threshold {threshold}: expected a cosine above 0 and at most 1, such as {THRESHOLD}")
    return threshold


@dataclass(frozen=True)
class Likeness:
    """Which documents of an index are near-duplicates."""

    vectors: IndexVectors
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        checked_threshold(self.threshold)

    @classmethod
    def of(cls, index: BuiltIndex, threshold: float = THRESHOLD) -> Likeness:
        """Reads an impact index.

        Raises:
            UsageError: an index without impacts, or a threshold that is no cosine.
            ArtefactError: no Lucene index.
        """
        checked_threshold(threshold)
        expect_lexical(index.path, index.manifest.kind, "near-duplicates have the same terms")
        return cls(read_vectors(index.path), threshold)

    @cached_property
    def squares(self) -> np.ndarray:
        """The squared lengths, int64 [documents]."""
        impacts = self.vectors.impacts
        return np.asarray(impacts.multiply(impacts).sum(axis=1), np.int64).ravel()

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each document."""
        return {doc_id: row for row, doc_id in enumerate(self.vectors.ids)}

    def pairs(self) -> Iterator[Pair]:
        """All pairs at the threshold, in the order of ids."""
        for first, second, dots in self._joined():
            lengths = np.sqrt(self.squares[first].astype(float) * self.squares[second])
            cosines = np.minimum(dots / lengths, 1.0)
            for x, y, cosine in zip(first.tolist(), second.tolist(), cosines.tolist(), strict=True):
                yield Pair(self.vectors.ids[x], self.vectors.ids[y], round(cosine, 6))

    def groups(self) -> list[list[str]]:
        """The documents that pairs connect, the largest group first; ids in order."""
        from scipy import sparse
        from scipy.sparse.csgraph import connected_components

        count = len(self.vectors.ids)
        joined = list(self._joined())
        first = np.concatenate([np.zeros(0, np.int64), *(part[0] for part in joined)])
        second = np.concatenate([np.zeros(0, np.int64), *(part[1] for part in joined)])
        graph = sparse.coo_matrix((np.ones(len(first), bool), (first, second)), shape=(count, count))
        members: dict[int, list[str]] = {}
        labels = connected_components(graph, directed=False)[1] if count else []
        for doc_id, label in zip(self.vectors.ids, labels, strict=True):
            members.setdefault(int(label), []).append(doc_id)
        return sorted((ids for ids in members.values() if len(ids) > 1), key=lambda ids: (-len(ids), ids[0]))

    def like(self, doc_id: str) -> tuple[str, ...]:
        """The other documents at the threshold; none of a document that the index does not have."""
        row = self.rows.get(doc_id)
        if row is None or not self.squares[row]:
            return ()
        dots = self.vectors.impacts @ self.vectors.impacts[[row]].toarray().ravel()
        fits = self._fits(dots, np.arange(len(dots)), row)
        return tuple(self.vectors.ids[other] for other in np.flatnonzero(fits).tolist() if other != row)

    def collapsed(self, doc_ids: Sequence[str], most: int | None = None) -> list[Alike]:
        """A list without the near-duplicates of documents before them, at most `most` documents."""
        hidden, shown = set[str](), list[Alike]()
        for doc_id in doc_ids:
            if len(shown) == most:
                break
            if doc_id not in hidden:
                shown.append(Alike(doc_id, self.like(doc_id)))
                hidden.update(shown[-1].others)
        return shown

    def found(
        self, search: Callable[[int], Sequence[ScoredDoc]], most: int
    ) -> tuple[dict[str, ScoredDoc], list[Alike]]:
        """The first `most` hits that are no near-duplicates of hits before them; and all hits that were read, by id.

        Args:
            search: returns so many hits, the best first; it is called with more until there are enough.
        """
        depth = most * MORE
        while True:
            hits = {hit.doc_id: hit for hit in search(depth)}
            shown = self.collapsed(list(hits), most)
            if len(shown) == most or len(hits) < depth:
                return hits, shown
            depth *= MORE

    def _joined(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Rows of pairs at the threshold, the first below the second, and their dot products; some at a time."""
        impacts, count = self.vectors.impacts, len(self.vectors.ids)
        unit, heavy, rest = self._bounds()
        turned, span = heavy.T.tocsr(), max(1, CHUNK // max(count, 1))
        for start in range(0, count, span):
            partial = (unit[start : start + span] @ turned).tocoo()
            # The bound holds in both orders, so that one of them finds each pair.
            near = (partial.data >= self.threshold - rest[partial.col] - UNSURE) & (partial.row + start < partial.col)
            x, y = partial.row[near].astype(np.int64) + start, partial.col[near].astype(np.int64)
            for some in range(0, len(x), PAIRS):
                first, second = x[some : some + PAIRS], y[some : some + PAIRS]
                dots = np.asarray(impacts[first].multiply(impacts[second]).sum(axis=1), np.int64).ravel()
                fits = self._fits(dots, first, second)
                order = np.lexsort((second[fits], first[fits]))
                yield first[fits][order], second[fits][order], dots[fits][order]

    def _fits(self, dots: np.ndarray, first: Any, second: Any) -> np.ndarray:
        """Whether pairs of rows with these dot products are at the threshold; integers decide the close cases."""
        ones, others = np.broadcast_arrays(self.squares[first], self.squares[second])
        cosines = dots / np.sqrt(np.maximum(ones.astype(float) * others, 1))
        fits: np.ndarray = cosines >= self.threshold
        least = Fraction(str(self.threshold)) ** 2
        for pair in np.flatnonzero(np.abs(cosines - self.threshold) < UNSURE).tolist():
            fits[pair] = int(dots[pair]) ** 2 >= least * int(ones[pair]) * int(others[pair]) > 0
        return fits

    def _bounds(self) -> tuple[Any, Any, np.ndarray]:
        """Vectors of unit length, their heaviest impacts, and the length of what is left of each."""
        from scipy import sparse

        impacts = self.vectors.impacts
        lengths = np.sqrt(np.maximum(self.squares, 1).astype(float))
        unit = sparse.diags(1 / lengths) @ impacts.astype(float)
        among, rest = np.zeros(unit.nnz, bool), np.zeros(len(lengths))
        for row in range(len(lengths)):
            part = slice(unit.indptr[row], unit.indptr[row + 1])
            order = np.argsort(-unit.data[part], kind="stable")
            left = np.append(np.cumsum((unit.data[part] ** 2)[order][::-1])[::-1], 0.0)
            count = int(np.argmax(left <= (REST * self.threshold) ** 2))
            among[part.start + order[:count]] = True
            rest[row] = np.sqrt(left[count])
        heavy = unit.copy()
        heavy.data = np.where(among, heavy.data, 0)
        heavy.eliminate_zeros()
        return unit.tocsr(), heavy, rest
