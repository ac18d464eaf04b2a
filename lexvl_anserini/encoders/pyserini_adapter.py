"""The adapter for stock Pyserini: a query encoder with the interface that its `LuceneImpactSearcher` calls.

`Encoder.as_pyserini` returns it. Our own search does not use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import LexicalSide
    from lexvl_anserini.ground.quantise import Quantiser


@dataclass(frozen=True)
class StockQueryEncoder:
    """Queries to `{term: integer weight}`, quantised as in our own search.

    Stock drops terms that all documents have, unless its searcher has `min_idf=-1`.

    tower       of queries
    quantiser   of the index
    max_impact  the largest impact of a document in the index, for the bound on scores; None if unknown
    batch_size  queries per forward pass
    """

    tower: LexicalSide
    quantiser: Quantiser
    max_impact: int | None = None
    batch_size: int = 32

    def encode(self, query: Any, **_: Any) -> dict[str, int]:
        """One query (a text, or an image if the query side reads images): its terms and weights >= 1."""
        return self.encode_all([query])[0]

    def encode_all(self, queries: Sequence[Any]) -> list[dict[str, int]]:
        """The terms and weights of several queries."""
        impacts = self.quantiser.queries(self.tower.weights(queries, self.batch_size), self.max_impact)
        return impacts.by_term(self.tower.vocabulary.terms)
