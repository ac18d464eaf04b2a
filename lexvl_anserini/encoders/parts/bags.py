"""Bags of tokens with a weight for each: the towers without a network. Loads no model library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.encoder import Kind, ReadsTexts
from lexvl_anserini.encoders.parts.sparsify import matrix_of
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.vocabulary import Vocabulary

if TYPE_CHECKING:
    from scipy import sparse


class BagTower(ReadsTexts):
    """w_j = n_j weight_j over a text's own tokens: no network (SVDR's non-parametric side, inference-free queries).

    weight     [V], a table of weights (`tables.py`, or one that is stored); None for ones
    normalise  divide by the L2 norm (VDR checkpoints with `norm: true`)
    topk       keep only the largest weights; None keeps all
    adds       n_j is how often token j occurs (Li-LSR, V-SPLADE); else 1 if it occurs (SPLADE-doc, OpenSearch's IDF)
    """

    kind: ClassVar[Kind] = "impact"

    def __init__(
        self,
        reader: TextReader,
        columns: TokenColumns,
        weight: np.ndarray | None = None,
        joiner: str = " ",
        normalise: bool = False,
        topk: int | None = None,
        adds: bool = False,
    ):
        self.reader, self.columns, self.joiner, self.normalise = reader, columns, joiner, normalise
        self.topk, self.adds = topk, adds
        self.weight = None if weight is None else weight.astype(np.float32)

    @property
    def binary(self) -> bool:
        """True if all weights are 1, so that quantising must not scale them."""
        return not (self.normalise or self.adds) and (self.weight is None or bool((self.weight == 1).all()))

    @property
    def vocabulary(self) -> Vocabulary:
        """Maps a column of `weights` to its term."""
        return self.columns.vocabulary

    def weights(
        self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """CSR [n, V] float32, > 0, dimensions ascending."""
        rows = self.columns.counted(self.reader(inputs))
        counts = [row.counts if self.adds else np.ones_like(row.counts) for row in rows]
        matrix = matrix_of([row.dims for row in rows], counts, len(self.vocabulary))
        if self.weight is not None:
            matrix.data *= np.fmax(self.weight[matrix.indices], 0)  # which is 0 of NaN too
            matrix.eliminate_zeros()
        if self.topk is not None:
            matrix = largest(matrix, self.topk)
        if self.normalise:
            lengths = np.sqrt(matrix.multiply(matrix).sum(axis=1)).A1
            matrix.data /= np.repeat(lengths, np.diff(matrix.indptr)).astype(np.float32)
        progress(len(inputs))
        return matrix

    def dense_weights(self, inputs: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """float32 [n, V]; the same weights as `weights`."""
        return self.weights(inputs, batch_size).toarray()


def largest(matrix: sparse.csr_matrix, k: int) -> sparse.csr_matrix:
    """The k largest weights of each row; among equals the lowest dimensions."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, rows))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - matrix.indptr[rows[order]]
    matrix.data[rank >= k] = 0
    matrix.eliminate_zeros()
    return matrix
