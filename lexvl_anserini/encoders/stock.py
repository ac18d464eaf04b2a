"""Our encoders inside stock Pyserini: what its `LuceneImpactSearcher` asks of a query encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lexvl_anserini.encoders.encoder import as_lexical
from lexvl_anserini.errors import UsageError
from lexvl_anserini.quantise import Quantiser

if TYPE_CHECKING:
    from lexvl_anserini.encoders.encoder import Encoder
    from lexvl_anserini.manifest import Manifest


@dataclass(frozen=True)
class StockQueryEncoder:
    """Queries to `{term: integer weight}`, quantised as our own search quantises them.

    Stock drops terms that every document has unless its searcher is made with `min_idf=-1`.
    """

    model: Encoder
    quantiser: Quantiser
    max_impact: int | None = None
    batch_size: int = 32

    @classmethod
    def of(cls, model: Encoder, manifest: Manifest | None = None, batch_size: int = 32) -> StockQueryEncoder:
        """With the quantiser of a manifest, else the default one.

        Raises:
            UsageError: the model is not lexical.
        """
        if model.kind != "impact":
            raise UsageError(f"encoder {model.name!r} is {model.kind}; an impact index is asked with lexical queries")
        if manifest is not None and manifest.quantiser:
            quantiser = Quantiser.from_json(manifest.quantiser)
        else:
            quantiser = Quantiser().for_towers(as_lexical(model.query).binary, as_lexical(model.document).binary)
        return cls(model, quantiser, manifest.counts.get("max_impact") if manifest else None, batch_size)

    def encode(self, query: Any, **_: Any) -> dict[str, int]:
        """One query (a text, or an image where the query side reads images): its terms and weights >= 1."""
        return self.encode_all([query])[0]

    def encode_all(self, queries: Sequence[Any]) -> list[dict[str, int]]:
        """Several queries at once."""
        tower = as_lexical(self.model.query)
        impacts = self.quantiser.queries(tower.weights(queries, self.batch_size), self.max_impact)
        return impacts.by_term(tower.vocabulary.terms)
