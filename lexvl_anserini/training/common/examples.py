"""A few fixed queries and documents of a run, whose heaviest terms show what a lexical pair learns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lexvl_anserini.training.common.active import HEAVIEST, searched, shortened
from lexvl_anserini.training.common.inputs import ImageBatch, TextBatch
from lexvl_anserini.training.common.tower_pair import TowerPair
from lexvl_anserini.training.model_settings import ImagePairSettings, TextPairSettings
from lexvl_anserini.training.objectives.contrastive import Encoded

# The number of examples, and of the characters of a text that names one.
COUNT, NAME = 4, 60


class Examples(NamedTuple):
    """Queries and documents, the same number of each.

    queries, documents        as a side reads them
    query_names, document_names  a text, or the id of an image
    """

    queries: TextBatch
    documents: ImageBatch | TextBatch
    query_names: Sequence[str]
    document_names: Sequence[str]

    @torch.inference_mode()
    def rows(
        self, pair: TowerPair, model: ImagePairSettings | TextPairSettings, terms: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        """One row per example: its side and name, the number of its active terms, the heaviest with their weights.

        Args:
            pair: in evaluation mode.
            model: of the pair.
            terms: of the dimensions that search uses.
        """
        encoded = Encoded(pair.encoder_q(self.queries), pair.encoder_p(self.documents), self.queries.bag)
        vectors = searched(encoded, model)
        for side, names in (("query", self.query_names), ("document", self.document_names)):
            for name, weights in zip(names, getattr(vectors, side), strict=True):
                active = int((weights > 0).sum())
                top = weights.topk(min(HEAVIEST, active))
                heaviest = zip(top.indices.tolist(), top.values.tolist(), strict=True)
                terms_of_row = [[terms[place], shortened(weight)] for place, weight in heaviest]
                yield {"side": side, "name": name, "active": active, "terms": terms_of_row}


def spread(items: int) -> np.ndarray:
    """Positions of the examples among all items, evenly spread, int64."""
    return np.unique(np.linspace(0, items - 1, min(COUNT, items)).astype(np.int64))


def named(text: str) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= NAME else line[: NAME - 1] + "…"
