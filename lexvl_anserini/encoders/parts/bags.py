"""Bags of tokens with a weight for each: the towers without a network. Loads no model library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from lexvl_anserini.data.pictures.images import FAIL, OnError
from lexvl_anserini.encoders.encoder import Kind, ReadsTexts
from lexvl_anserini.encoders.parts.sparsify import WeightsOfRows, join_rows
from lexvl_anserini.encoders.parts.tokens import OwnTokens, TextReader, TokenColumns
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.ground.quantise import CsrRows
from lexvl_anserini.ground.records import Vocabulary


class BagTower(WeightsOfRows, ReadsTexts):
    """w_j = n_j weight_j over a text's own tokens: no network (SVDR's non-parametric side, inference-free queries).

    Attributes:
        weight: [V], a table of weights (`tables.py`, or one that is stored); None for ones.
        normalise: divide by the L2 norm (VDR checkpoints with `norm: true`).
        topk: keep only the largest weights; None keeps all.
        adds: n_j is how often token j occurs (Li-LSR, V-SPLADE); else 1 if it occurs (SPLADE-doc, a table of IDF).
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

    def csr_rows(
        self, inputs: Sequence[str], batch_size: int = 32, progress: Progress = silent, on_error: OnError = FAIL
    ) -> CsrRows:
        """As `weights`, without scipy."""
        rows = [self._weigh(own) for own in self.columns.count_own(self.reader(inputs))]
        progress(len(inputs))
        return join_rows([dims for dims, _ in rows], [values for _, values in rows], len(self.vocabulary))

    def _weigh(self, own: OwnTokens) -> tuple[np.ndarray, np.ndarray]:
        """The dimensions of a text and their weights; among equal weights the lowest dimensions are kept."""
        values = own.counts if self.adds else np.ones_like(own.counts)
        if self.weight is not None:
            values = values * np.fmax(self.weight[own.dims], 0)  # which is 0 of NaN too
        places = np.flatnonzero(values)
        if self.topk is not None:
            places = np.sort(places[np.argsort(-values[places], kind="stable")[: self.topk]])
        dims, values = own.dims[places], values[places]
        return dims, values / np.sqrt((values * values).sum()) if self.normalise else values
