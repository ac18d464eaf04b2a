"""Binary bags of tokens as lexical vectors: the towers without a network. Loads no model library."""

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
    """Binary bag of a text's own tokens: no network (SVDR's non-parametric side, SPLADE-doc queries).

    weight     [V] instead of ones (inference-free queries with IDF weights); None for ones
    normalise  divide by the L2 norm (VDR checkpoints with `norm: true`)
    counted    a token counts as often as the text has it
    topk       keep only the largest weights; None keeps all
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
        counted: bool = False,
    ):
        self.reader, self.columns, self.joiner, self.normalise, self.topk = reader, columns, joiner, normalise, topk
        self.counted = counted
        self.weight = None if weight is None else weight.astype(np.float32)

    @property
    def binary(self) -> bool:
        """True if all weights are 1, so that quantising must not scale them."""
        if self.normalise or self.counted:
            return False
        return self.weight is None or bool((self.weight == 1).all())

    @property
    def vocabulary(self) -> Vocabulary:
        """Maps a column of `weights` to its term."""
        return self.columns.vocabulary

    def weights(
        self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> sparse.csr_matrix:
        """CSR [n, V] float32, > 0, dimensions ascending."""
        bags = self.columns.counts(self.reader(inputs))
        rows = [dims.astype(np.int32) for dims, _ in bags]
        counts = [count if self.counted else np.ones(len(count)) for _, count in bags]
        matrix = matrix_of(rows, [count.astype(np.float32) for count in counts], len(self.vocabulary))
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
