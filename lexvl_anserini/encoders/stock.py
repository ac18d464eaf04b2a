"""Our encoders inside stock Pyserini: the methods that its `LuceneImpactSearcher` calls on a query encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lexvl_anserini.quantise import Quantiser

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import LexicalSide


@dataclass(frozen=True)
class StockQueryEncoder:
    """Queries to `{term: integer weight}`, quantised as in our own search.

    Stock Pyserini drops terms that every document has, unless its searcher is created with `min_idf=-1`.
    """

    tower: LexicalSide
    quantiser: Quantiser
    max_impact: int | None = None
    batch_size: int = 32

    def encode(self, query: Any, **_: Any) -> dict[str, int]:
        """One query (a text, or an image where the query side reads images): its terms and weights >= 1."""
        return self.encode_all([query])[0]

    def encode_all(self, queries: Sequence[Any]) -> list[dict[str, int]]:
        """Several queries at once."""
        impacts = self.quantiser.queries(self.tower.weights(queries, self.batch_size), self.max_impact)
        return impacts.by_term(self.tower.vocabulary.terms)
