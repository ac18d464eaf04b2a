"""Vectors of terms as other encoders store them: JSON lines (Anserini's JsonVectorCollection), and sparse matrices.

JSON lines   `{"id", "vector": {term: weight}}`, also with a list of [term, weight] pairs, as sentence-transformers'
             `decode` returns; `contents` and `metadata` are kept if the layout has them
matrices     .npz of scipy, .pt of torch (what `SparseEncoder.encode` returns): a row a document, a column a term
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from lexvl_anserini.data.checks import checked_id, shown
from lexvl_anserini.data.lines import Line, parse_object, plain_suffix, read_lines
from lexvl_anserini.ground.errors import DataError, LexvlError, UsageError, reason_of
from lexvl_anserini.ground.manifest import MANIFEST
from lexvl_anserini.ground.progress import Progress
from lexvl_anserini.ground.quantise import row_max
from lexvl_anserini.ground.records import Vocabulary, check_term
from lexvl_anserini.shards.layout import Shard
from lexvl_anserini.shards.reading import MAX_IMPACT

JSON_LINES = (".jsonl", ".json")
# Lines that an error names, of all that are damaged.
NAMED = 3
# Types of weights, and what none reaches.
NUMBERS = {int, float}
HUGE = 1e300
# Names of a document's id and text, of several tools.
IDS, TEXTS = ("id", "_id", "docid"), ("contents", "content", "text")


def files_of(source: Path) -> list[Path]:
    """The files of JSON lines that a name stands for: one, or those in a folder and below it, hidden ones left out."""
    if not source.is_dir():
        return [source]
    if (source / MANIFEST).is_file():
        raise UsageError(f"{source}: has a {MANIFEST}, so these are encoded documents already; index them")
    files = sorted(path for path in source.rglob("*") if path.is_file() and not path.name.startswith("."))
    if other := [path for path in files if plain_suffix(path) not in JSON_LINES]:
        raise DataError(
            f"{other[0]}: no JSON lines ({len(other)} such files); expected .jsonl or .json, plain or packed"
        )
    return files


class JsonVectors:
    """Documents as JSON lines; see `importing.Vectors`. They are read twice. Memory: a shard, and 8 bytes a document.

    Args:
        source: a file or a folder of files, plain or compressed.
        room: not used.
        span: documents that are read at once.

    Raises:
        DataError: lines that hold no document; the first are named, all are counted.
    """

    def __init__(self, source: Path, room: Path, span: int, escape_ids: bool = False):
        self._files, self._span, self._escape_ids = files_of(source), span, escape_ids
        self._dimensions: dict[str, int] = {}
        self._peaks, self.integers = array("d"), True
        problems: list[str] = []
        for line in self._lines():
            try:
                vector = self._vector(parse_object(line), line.where)[1]
            except LexvlError as error:
                problems.append(str(error))
                continue
            self.integers = self.integers and float not in map(type, vector.values())
            self._peaks.append(max(vector.values(), default=0))
            if not vector.keys() <= self._dimensions.keys():
                for term in vector:
                    self._dimensions.setdefault(term, len(self._dimensions))
        if problems:
            more = f"; and {len(problems) - NAMED:,} more" if len(problems) > NAMED else ""
            lines = len(self._peaks) + len(problems)
            raise DataError(
                f"{len(problems):,} of {lines:,} lines are no documents: {'; '.join(problems[:NAMED])}{more}"
            )
        if not self._peaks:
            raise DataError(f"{source}: no document in it")
        if self.integers and max(self._peaks) > MAX_IMPACT:
            raise DataError(
                f"{source}: an impact of {max(self._peaks):,.0f}, expected at most {MAX_IMPACT:,}, up to which scores "
                "are exact; quantise the weights with fewer bits"
            )
        self.documents = len(self._peaks)
        self.terms: Sequence[str] = tuple(self._dimensions)

    def _lines(self) -> Iterator[Line]:
        for path in self._files:
            yield from read_lines(path)

    def _vector(self, row: Mapping[str, Any], where: str) -> tuple[str, dict[str, float]]:
        """The id and the weights of a line."""
        doc_id = checked_id(next((row[name] for name in IDS if name in row), None), where, self._escape_ids)
        weights: Any = row.get("vector")
        if not isinstance(weights, dict):
            weights = _of_pairs(weights, where)
        values = weights.values()
        if values and (not set(map(type, values)) <= NUMBERS or min(values) < 0 or max(values) >= HUGE):
            term = next(t for t, w in weights.items() if type(w) not in NUMBERS or not 0 <= w < HUGE)
            raise DataError(
                f"{where}: weight {shown(weights[term])} of term {shown(term)}, expected a number from 0 on"
            )
        if not weights.keys() <= self._dimensions.keys():
            for term in weights:
                check_term(term, where)
        return doc_id, weights

    def peaks(self) -> np.ndarray:
        """The greatest weight of each document, float64 [documents]."""
        return np.asarray(self._peaks)

    def shards(self, progress: Progress) -> Iterator[Shard]:
        """The documents, `span` at a time."""
        rows: list[tuple[str, str, dict[str, float], Mapping[str, Any]]] = []
        for line in self._lines():
            row = parse_object(line)
            doc_id, vector = self._vector(row, line.where)
            text = next((row[name] for name in TEXTS if isinstance(row.get(name), str)), "")
            metadata = row.get("metadata")
            rows.append((doc_id, text, vector, metadata if isinstance(metadata, dict) else {}))
            if len(rows) == self._span:
                yield self._shard(rows)
                progress(len(rows))
                rows = []
        if rows:
            yield self._shard(rows)
            progress(len(rows))

    def _shard(self, rows: list[tuple[str, str, dict[str, float], Mapping[str, Any]]]) -> Shard:
        ids, texts, vectors, metadata = zip(*rows, strict=True)
        ends = np.cumsum([0, *map(len, vectors)])
        columns = np.array([self._dimensions[term] for vector in vectors for term in vector], np.int32)
        weights = np.array([weight for vector in vectors for weight in vector.values()], np.float64)
        shape = (len(ids), len(self.terms))
        return _sorted(sparse.csr_matrix((weights, columns, ends), shape=shape), ids, texts, metadata, self.integers)


class MatrixVectors:
    """The rows of a sparse matrix as documents; see `importing.Vectors`. Memory: the matrix.

    Args:
        source: .npz of scipy, or .pt of torch.
        room: not used.
        span: documents that are read at once.
        ids: a file of ids, one a line, in the order of the rows.
        terms: of the columns.

    Raises:
        DataError: no such matrix, or other numbers of rows and columns than of ids and terms.
    """

    def __init__(
        self, source: Path, room: Path, span: int, escape_ids: bool = False, ids: Path | None = None, terms: Any = None
    ):
        if ids is None or terms is None:
            raise UsageError(f"{source}: a matrix has neither ids nor terms; give --ids, and --vocabulary or --encoder")
        matrix = read_matrix(source)
        self._ids = [
            checked_id(line.data.decode("utf-8", "replace"), line.where, escape_ids) for line in read_lines(ids)
        ]
        if matrix.shape != (len(self._ids), len(terms)) or not self._ids:
            raise DataError(
                f"{source}: a matrix of {matrix.shape[0]:,} rows and {matrix.shape[1]:,} columns, expected "
                f"{len(self._ids):,} ({ids}) and {len(terms):,} (the vocabulary)"
            )
        if wrong := int((~(np.isfinite(matrix.data) & (matrix.data >= 0))).sum()):
            raise DataError(f"{source}: {wrong:,} weights that are no numbers from 0 on")
        self._matrix, self._span = matrix, span
        self.integers = bool(np.issubdtype(matrix.dtype, np.integer))
        if self.integers and matrix.nnz and matrix.data.max() > MAX_IMPACT:
            raise DataError(f"{source}: an impact of {matrix.data.max():,}, expected at most {MAX_IMPACT:,}")
        self.documents, self.terms = len(self._ids), terms

    def peaks(self) -> np.ndarray:
        """The greatest weight of each document, float64 [documents]."""
        return row_max(self._matrix)

    def shards(self, progress: Progress) -> Iterator[Shard]:
        """The documents, `span` at a time; without texts and metadata."""
        for first in range(0, self.documents, self._span):
            ids, rows = self._ids[first : first + self._span], self._matrix[first : first + self._span]
            yield _sorted(rows, ids, [""] * len(ids), [{}] * len(ids), self.integers)
            progress(len(ids))


def _of_pairs(pairs: Any, where: str) -> dict[str, float]:
    """The weights of a list of [term, weight]."""
    try:
        terms = [(term, weight) for term, weight in pairs]
        weights = dict(terms)
    except (TypeError, ValueError):
        terms, weights = [], {None: 0}
    if not set(map(type, weights)) <= {str}:
        raise DataError(f"{where}: vector {shown(pairs)}, expected an object of term and weight, or pairs")
    if len(weights) < len(terms):
        raise DataError(f"{where}: a term twice in vector {shown(pairs)}")
    return weights


def _sorted(
    rows: sparse.csr_matrix,
    ids: Sequence[str],
    texts: Sequence[str],
    metadata: Sequence[Mapping[str, Any]],
    integers: bool,
) -> Shard:
    """A shard of these rows without zeros; zeros among integers count as dropped, others when they are quantised."""
    if not integers:
        return Shard(ids, texts, rows, metadata=metadata)
    impacts, before = rows.astype(np.int64), rows.nnz
    impacts.eliminate_zeros()
    return Shard(ids, texts, impacts, dropped=before - impacts.nnz, metadata=metadata)


def read_matrix(source: Path) -> sparse.csr_matrix:
    """The matrix of a file, .npz of scipy or .pt of torch, as CSR; weights of one place are summed, integers as int64.

    Raises:
        DataError: no such matrix, or one with a weight outside of it, where scipy would write.
    """
    try:
        matrix = sparse.load_npz(source) if source.suffix == ".npz" else _of_tensor(source)
        if matrix.format in ("csr", "csc", "bsr"):  # the constructors of the others check
            matrix.check_format(full_check=True)
        if np.issubdtype(matrix.dtype, np.integer):
            matrix = matrix.astype(np.int64)
        rows = sparse.csr_matrix(matrix)
        rows.sum_duplicates()
        return rows
    except Exception as error:  # both libraries raise any error about a file that is another
        raise DataError(f"{source}: no sparse matrix [documents, terms] ({reason_of(error)})") from error


def _of_tensor(source: Path) -> sparse.coo_matrix:
    """The matrix of a file of torch; rows of a list are stacked."""
    import torch

    with torch.sparse.check_sparse_tensor_invariants(True):
        stored = torch.load(source, map_location="cpu", weights_only=True)
        tensor = torch.stack(list(stored)) if isinstance(stored, list | tuple) else stored
        tensor = tensor if tensor.layout == torch.sparse_coo else tensor.to_sparse_coo()
    values = tensor._values().float() if tensor.is_floating_point() else tensor._values()  # scipy has no bfloat16
    return sparse.coo_matrix((values.numpy(), tensor._indices().numpy()), shape=tensor.shape)


def read_terms(vocabulary: Path | None) -> Sequence[str] | None:
    """The terms of a vocabulary, one a line in the order of columns."""
    return None if vocabulary is None else Vocabulary.read(vocabulary)
