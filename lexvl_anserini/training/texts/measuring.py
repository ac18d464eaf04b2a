"""Validation of a pair that reads texts: nDCG and recall of queries over passages, as search would rank them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.training.common.tower_pair import TowerPair, sparsified
from lexvl_anserini.training.model_settings import TextPairSettings
from lexvl_anserini.training.texts.batches import TextStore
from lexvl_anserini.training.texts.query_passages import QueriesWithPassages

# Texts of one forward pass.
BATCH = 128
NDCG_CUT, RECALL_CUTS = 10, (10, 100)


@dataclass(frozen=True)
class TextValidation:
    """Queries that do not train, over all passages of the data; their tokenised texts."""

    data: QueriesWithPassages
    queries: TextStore
    passages: TextStore

    @torch.inference_mode()
    def measure(self, pair: TowerPair, model: TextPairSettings) -> dict[str, float]:
        """nDCG@10 and recall; of a lexical pair also with bags of tokens as queries (alpha) or as passages (beta)."""
        pair.eval()
        query_topk, topk = model.kept
        queries, bags = self._queries(pair, query_topk, model.lexical)
        modes: dict[str, list[Tensor]] = {}
        terms = 0
        for start in range(0, len(self.passages), BATCH):
            batch = self.passages.batch(np.arange(start, min(start + BATCH, len(self.passages))))
            vectors = pair.encoder_p(batch).float()
            if model.lexical:
                vectors = sparsified(vectors, topk)
                terms += int((vectors > 0).sum())
                modes.setdefault("alpha_", []).append((bags @ vectors.T).cpu())
                modes.setdefault("beta_", []).append((queries @ batch.bag.float().T).cpu())
            modes.setdefault("", []).append((queries @ vectors.T).cpu())
        pair.train()
        found: dict[str, float] = {}
        for mode in sorted(modes):
            figures = self.figures(torch.cat(modes[mode], dim=1))
            found |= {f"{mode}{name}": value for name, value in figures.items() if not mode or name.startswith("nDCG")}
        if model.lexical:
            found["mean_query_terms"] = round(float((queries > 0).sum(dim=1).float().mean()), 1)
            found["mean_passage_terms"] = round(terms / len(self.passages), 1)
        return found

    def score(self, figures: Mapping[str, float]) -> float:
        """nDCG@10."""
        return figures[f"nDCG@{NDCG_CUT}"]

    def _queries(self, pair: TowerPair, topk: int | None, lexical: bool) -> tuple[Tensor, Tensor]:
        """Vectors of all queries for search, and their bags, [Q, V]."""
        vectors, bags = [], []
        for start in range(0, len(self.queries), BATCH):
            batch = self.queries.batch(np.arange(start, min(start + BATCH, len(self.queries))))
            encoded = pair.encoder_q(batch).float()
            vectors.append(sparsified(encoded, topk) if lexical else encoded)
            bags.append(batch.bag.float())
        return torch.cat(vectors), torch.cat(bags)

    def figures(self, scores: Tensor) -> dict[str, float]:
        """Means over queries, from scores [Q, n]; equal scores in the order of the passages' ids.

        A passage whose id is the query's does not count, as in BEIR.

        Raises:
            UsageError: a score is not finite.
        """
        if not torch.isfinite(scores).all():
            raise UsageError("validation: scores that are no numbers; lower the learning rate or the clip")
        place = {passage.doc_id: number for number, passage in enumerate(self.data.passages)}
        values: dict[str, list[float]] = {f"nDCG@{NDCG_CUT}": [], **{f"Recall@{k}": [] for k in RECALL_CUTS}}
        for row, query_id, relevant in zip(scores, self.data.ids, self.data.positives, strict=True):
            if query_id in place:
                row = row.index_fill(0, torch.tensor([place[query_id]]), -torch.inf)
            ranked = torch.argsort(row, descending=True, stable=True)[: max(NDCG_CUT, *RECALL_CUTS)].tolist()
            values[f"nDCG@{NDCG_CUT}"].append(ndcg([relevant.get(number, 0) for number in ranked], relevant.values()))
            for k in RECALL_CUTS:
                values[f"Recall@{k}"].append(sum(number in relevant for number in ranked[:k]) / len(relevant))
        return {name: round(float(np.mean(of_queries)), 4) for name, of_queries in values.items()}


def ndcg(gains: Iterable[int], relevant: Iterable[int]) -> float:
    """nDCG@10 with the relevance as gain, from the gains in rank order and the relevances of all relevant passages.

    >>> round(ndcg([0, 2, 1], [2, 1]), 4)
    0.67
    """
    discounts = 1 / np.log2(np.arange(2, NDCG_CUT + 2))
    ideal = np.array(sorted(relevant, reverse=True)[:NDCG_CUT], dtype=float)
    found = np.array(list(gains)[:NDCG_CUT], dtype=float)
    return float((found @ discounts[: len(found)]) / (ideal @ discounts[: len(ideal)]))
