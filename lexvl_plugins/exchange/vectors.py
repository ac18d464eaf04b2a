"""Vectors of terms as other encoders store them: JSON lines (Anserini's JsonVectorCollection), and sparse matrices.

JSON lines   `{"id", "vector": {term: weight}}`, also with a list of [term, weight] pairs; texts and metadata stay
matrices     .npz of scipy, .pt of torch (what `SparseEncoder.encode` returns): a row a document, a column a term
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np
from scipy import sparse

from lexvl_anserini.data.checks import check_id, parse_weights
from lexvl_anserini.data.lines import (
    MOST_LINE,
    MOST_UNPACKED,
    PACKED,
    Line,
    choose_files,
    get_plain_suffix,
    log_once,
    parse_object,
    read_entries,
    read_lines,
)
from lexvl_anserini.ground.errors import DataError, LexvlError, UsageError, describe_error, refuse_pointer
from lexvl_anserini.ground.manifest import MANIFEST
from lexvl_anserini.ground.progress import Progress
from lexvl_anserini.ground.quantise import compute_row_max
from lexvl_anserini.ground.records import check_term
from lexvl_anserini.shards.layout import Shard
from lexvl_anserini.shards.reading import MAX_IMPACT

JSON_LINES = (".jsonl", ".json")
# Damaged lines that an error names.
NAMED = 3
# Names that several tools give a document's id and text.
IDS, TEXTS = ("id", "_id", "docid"), ("contents", "content", "text")


def list_files(source: Path) -> list[Path]:
    """Lists the files of JSON lines that a name means: a file, or those in and below a folder but for hidden ones."""
    if not source.is_dir():
        return [source]
    if (source / MANIFEST).is_file():
        raise UsageError(f"{source}: has a {MANIFEST}, so these are encoded documents already; index them")
    files = choose_files(source, "", "**/*")
    if other := [path for path in files if get_plain_suffix(path) not in JSON_LINES]:
        raise DataError(f"{other[0]}: no JSON lines ({len(other)} such files); expected .jsonl or .json, also packed")
    return files


class JsonVectors:
    """Documents as JSON lines; see `importing.Vectors`. They are read twice. Memory: a shard, 8 bytes a document."""

    def __init__(self, source: Path, room: Path, span: int, escape_ids: bool = False, tokens: bool = False):
        self._files, self._span, self._escape_ids, self._tokens = list_files(source), span, escape_ids, tokens
        self._dimensions: dict[str, int] = {}
        peaks, self.integers = array("d"), True
        problems: list[str] = []
        for line in chain.from_iterable(map(read_lines, self._files)):
            try:
                _, vector, _ = self._parse(line)
            except LexvlError as error:
                problems.append(str(error))
                continue
            self.integers = self.integers and float not in map(type, vector.values())
            peaks.append(max(vector.values(), default=0))
            if not vector.keys() <= self._dimensions.keys():
                for term in vector:
                    self._dimensions.setdefault(term, len(self._dimensions))
        if problems:
            more = f"; and {len(problems) - NAMED:,} more" if len(problems) > NAMED else ""
            which = f"{len(problems):,} of {len(peaks) + len(problems):,} lines"
            raise DataError(f"{which} are no documents: {'; '.join(problems[:NAMED])}{more}")
        if not peaks:
            raise DataError(f"{source}: no document in it")
        if self.integers:
            check_impact(source, int(max(peaks)))
        self.documents, self.peaks = len(peaks), np.asarray(peaks)
        self.terms: Sequence[str] = tuple(self._dimensions)

    def _parse(self, line: Line) -> tuple[str, dict[str, float], Mapping[str, Any]]:
        """Returns the id, the weights and all fields of a line."""
        row, where = parse_object(line), line.where
        doc_id = check_id(next((row[name] for name in IDS if name in row), None), where, self._escape_ids)
        weights = parse_weights(row.get("vector"), where, self._tokens)
        if not weights.keys() <= self._dimensions.keys():
            for term in weights:
                check_term(term, where)
        return doc_id, weights, row

    def read_shards(self, progress: Progress) -> Iterator[Shard]:
        """Yields the documents, `span` at a time."""
        rows = map(self._parse, chain.from_iterable(map(read_lines, self._files)))
        while batch := list(islice(rows, self._span)):
            ids, vectors, fields = zip(*batch, strict=True)
            texts = [next((row[name] for name in TEXTS if isinstance(row.get(name), str)), "") for row in fields]
            metadata = [row["metadata"] if isinstance(row.get("metadata"), dict) else {} for row in fields]
            ends = np.cumsum([0, *map(len, vectors)])
            columns = np.array([self._dimensions[term] for vector in vectors for term in vector], np.int32)
            weights = np.array([weight for vector in vectors for weight in vector.values()], np.float64)
            matrix = sparse.csr_matrix((weights, columns, ends), shape=(len(ids), len(self.terms)))
            yield _build_shard(matrix, ids, texts, metadata, self.integers)
            progress(len(ids))


class MatrixVectors:
    """The rows of a sparse matrix as documents, with a file of their ids; see `importing.Vectors`."""

    def __init__(
        self,
        source: Path,
        room: Path,
        span: int,
        escape_ids: bool = False,
        tokens: bool = False,
        ids: Path | None = None,
        terms: Any = None,
    ):
        if ids is None or terms is None:
            raise UsageError(f"{source}: a matrix has neither ids nor terms; give --ids, and --vocabulary or --encoder")
        matrix, listed = read_matrix(source), read_entries(ids, "id")
        if tokens:  # encoders read a matrix of theirs with rows of padding after them
            from lexvl_anserini.encoders.families.splade import is_padded

            if is_padded(width := matrix.shape[1], len(terms)):
                which = f"{len(terms):,} of {width:,} columns are tokens"
                log_once(f"{source}: {which}; the others are padding and left out")
                matrix = matrix[:, : len(terms)]
        self._ids = [check_id(name, f"{ids} line {number}", escape_ids) for number, name in listed.items()]
        if matrix.shape != (len(self._ids), len(terms)):
            shape = f"a matrix of {matrix.shape[0]:,} rows and {matrix.shape[1]:,} columns"
            expected = f"expected {len(self._ids):,} ({ids}) and {len(terms):,}, the vocabulary"
            raise DataError(f"{source}: {shape}, {expected}")
        if wrong := int((~(np.isfinite(matrix.data) & (matrix.data >= 0))).sum()):
            raise DataError(f"{source}: {wrong:,} weights that are no numbers from 0 on")
        self._matrix, self._span = matrix, span
        self.integers = bool((matrix.data == np.rint(matrix.data)).all())
        if self.integers:
            check_impact(source, int(matrix.data.max(initial=0)))
        self.documents, self.terms, self.peaks = len(self._ids), terms, compute_row_max(matrix)

    def read_shards(self, progress: Progress) -> Iterator[Shard]:
        """Yields the documents, `span` at a time; without texts and metadata."""
        for first in range(0, self.documents, self._span):
            ids, rows = self._ids[first : first + self._span], self._matrix[first : first + self._span]
            yield _build_shard(rows, ids, [""] * len(ids), [{}] * len(ids), self.integers)
            progress(len(ids))


def check_impact(source: Path, most: int) -> None:
    """Refuses a greatest impact that has no exact scores."""
    if most > MAX_IMPACT:
        raise DataError(f"{source}: an impact of {most:,}, expected at most {MAX_IMPACT:,}; quantise with fewer bits")


def _build_shard(rows: sparse.csr_matrix, ids: Any, texts: Any, metadata: Any, integers: bool) -> Shard:
    """Makes a shard without zeros; zeros among integers count as dropped, others when they are quantised."""
    if not integers:
        return Shard(ids, texts, rows, metadata=metadata)
    impacts, before = rows.astype(np.int64), rows.nnz
    impacts.eliminate_zeros()
    return Shard(ids, texts, impacts, dropped=before - impacts.nnz, metadata=metadata)


def read_matrix(source: Path) -> sparse.csr_matrix:
    """Reads a matrix, .npz of scipy or .pt of torch, as CSR, see `check_matrix`."""
    refuse_pointer(source)
    if source.suffix.lower() in PACKED:
        raise UsageError(f"{source}: a packed matrix; unpack it ({source.suffix} is for JSON lines and CIFF)")
    try:
        if is_zipfile(source):
            with ZipFile(source) as parts:
                unpacked = sum(part.file_size for part in parts.infolist())
            if unpacked > (most := max(MOST_LINE, MOST_UNPACKED * source.stat().st_size)):
                raise ValueError(f"it unpacks to {unpacked:,} bytes, expected at most {most:,}")
        if source.suffix.lower() != ".npz":
            return check_matrix(_read_tensor(source))
        if not is_zipfile(source):  # of which NumPy says that it holds objects, and how to load them unsafely
            raise ValueError("no .npz of scipy.sparse.save_npz, or a damaged one")
        return check_matrix(sparse.load_npz(source))
    except Exception as error:  # both libraries raise any error about a file that is another
        raise DataError(f"{source}: no sparse matrix [documents, terms] ({describe_error(error)})") from error


def check_matrix(matrix: Any) -> sparse.csr_matrix:
    """CSR of a scipy matrix of others; weights of one place are summed, integers as int64; ValueError for no such."""
    if len(matrix.shape) != 2:
        raise ValueError(f"dimensions: {len(matrix.shape)}, expected documents and terms")
    if matrix.dtype.kind not in "iuf":
        raise ValueError(f"weights of type {matrix.dtype}, expected integers or floats")
    if matrix.format in ("csr", "csc", "bsr"):  # the constructors of the others check
        if (matrix.indptr[1:] < matrix.indptr[:-1]).any():  # of which scipy checks nothing if the last is below 0
            raise ValueError("index pointers that fall")
        matrix.check_format(full_check=True)
    rows = sparse.csr_matrix(matrix.astype(matrix.dtype if matrix.dtype.kind == "f" else np.int64))
    rows.sum_duplicates()
    return rows


def _read_tensor(source: Path) -> sparse.coo_matrix:
    """Reads the matrix of a file of torch; rows of a list are stacked."""
    import torch

    with torch.sparse.check_sparse_tensor_invariants(True):
        stored = torch.load(source, map_location="cpu", weights_only=True)
        return convert_tensor(torch.stack(list(stored)) if isinstance(stored, list | tuple) else stored)


def convert_tensor(tensor: Any) -> sparse.coo_matrix:
    """The matrix of a tensor of torch, weights of one place unsummed."""
    tensor = tensor if str(tensor.layout) == "torch.sparse_coo" else tensor.to_sparse_coo()
    values = tensor._values().float() if tensor.is_floating_point() else tensor._values()  # scipy has no bfloat16
    return sparse.coo_matrix((values.numpy(), tensor._indices().numpy()), shape=tensor.shape)
