"""What a run over texts reads and writes: the sides and their tokenised texts, the inputs of stages, the checkpoint.

Validation of a pair that reads texts: nDCG and recall of queries over passages, as search would rank them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.ground.errors import UsageError
from lexvl_plugins.train.common.batches import TextStore, Tokenised, split_positions
from lexvl_plugins.train.common.evaluation import Examples, StageInputs, choose_examples, shorten
from lexvl_plugins.train.common.tower_pair import TowerPair, sparsify
from lexvl_plugins.train.model_settings import TextPairSettings
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.run_folder import WORDS
from lexvl_plugins.train.splits import TRAINING, VALIDATION, Sources
from lexvl_plugins.train.texts.families import FAMILIES, make_text_sides
from lexvl_plugins.train.texts.query_passages import QueriesWithPassages, QueryBatches
from lexvl_plugins.train.texts.sides import TrainableText


@dataclass(frozen=True)
class TextMaterial:
    """What all stages of a run over texts share.

    Attributes:
        data: queries with passages by role.
        query: the side of queries.
        document: the side of documents, which may be the same object.
        queries: tokenised, by role.
        passages: tokenised, by role.
    """

    data: Mapping[str, QueriesWithPassages]
    query: TrainableText
    document: TrainableText
    queries: Mapping[str, TextStore]
    passages: Mapping[str, TextStore]

    @classmethod
    def read(cls, recipe: Recipe, output: Path, sources: Sources) -> TextMaterial:
        """Loads or draws the sides and tokenises all texts."""
        model = recipe.model
        assert isinstance(model, TextPairSettings)
        queries_of = sources.queries
        torch.manual_seed(recipe.seed)
        query, document = make_text_sides(model, queries_of[TRAINING], output / WORDS)

        def store(side: TrainableText, rows: list[Tokenised]) -> TextStore:
            return TextStore.make(rows, side.columns, side.reader.pad_id)

        queries = {role: store(query, query.read_queries(items.queries)) for role, items in queries_of.items()}
        passages: dict[str, TextStore] = {}
        for role, items in queries_of.items():
            # Held-out queries have the passages of the training queries.
            same = next((other for other in passages if queries_of[other].passages is items.passages), None)
            passages[role] = passages[same] if same else store(document, document.read_passages(items.passages))
        return cls(queries_of, query, document, queries, passages)

    @property
    def columns(self) -> TokenColumns:
        """The dimension of each token."""
        return self.document.columns

    def make_pair(self, recipe: Recipe, device: torch.device) -> TowerPair:
        """The pair that the stages train."""
        of_bags = any(stage.objective.learn_bag_temperature for stage in recipe.stages)
        return TowerPair(self.query, self.document, recipe.stages[0].objective.temperature, of_bags).to(device)

    def make_stage_inputs(self, recipe: Recipe, number: int, pair: TowerPair) -> StageInputs:
        """The batches of a stage, and the queries that validate."""
        plan, device = recipe.stages[number].optimisation, pair.log_temperature.device
        queries, passages = (
            {role: replace(store, device=device) for role, store in stores.items()}
            for stores in (self.queries, self.passages)
        )
        data = self.data[TRAINING]
        batches = QueryBatches(
            data, queries[TRAINING], passages[TRAINING], plan.batch_size, plan.negatives, recipe.seed, plan.bucket
        )
        validation = None
        if VALIDATION in self.data:
            validation = TextValidation(self.data[VALIDATION], queries[VALIDATION], passages[VALIDATION])
        shown = VALIDATION if VALIDATION in self.data else TRAINING
        examples = pick_examples(self.data[shown], queries[shown], passages[shown])
        return StageInputs(batches, validation, examples)

    def save(self, recipe: Recipe, pair: TowerPair, folder: Path) -> None:
        """Writes the pair in the layout of its family."""
        model = recipe.model
        assert isinstance(model, TextPairSettings)
        query, document = pair.encoder_q.cpu().eval(), pair.encoder_p.cpu().eval()
        _, save = FAMILIES[model.kind]
        save(query, document, model, folder, getattr(torch, recipe.weights))


def pick_examples(data: QueriesWithPassages, queries: TextStore, passages: TextStore) -> Examples:
    """Some queries, each with its first positive."""
    chosen = choose_examples(len(data))
    positives = np.array([min(data.positives[place]) for place in chosen], dtype=np.int64)
    texts = [shorten(data.passages[place].contents) for place in positives]
    return Examples(
        queries.read_batch(chosen),
        passages.read_batch(positives),
        [shorten(data.queries[place]) for place in chosen],
        texts,
    )


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
        query_topk, topk = model.kept
        batches = [self.queries.read_batch(chosen) for chosen in split_positions(len(self.queries), BATCH)]
        encoded = torch.cat([pair.encoder_q(batch).float() for batch in batches])
        queries = sparsify(encoded, query_topk) if model.lexical else encoded
        bags = torch.cat([batch.bag.float() for batch in batches])
        modes: dict[str, list[Tensor]] = {}
        terms = 0
        for chosen in split_positions(len(self.passages), BATCH):
            batch = self.passages.read_batch(chosen)
            vectors = pair.encoder_p(batch).float()
            if model.lexical:
                vectors = sparsify(vectors, topk)
                terms += int((vectors > 0).sum())
                modes.setdefault("alpha_", []).append((bags @ vectors.T).cpu())
                modes.setdefault("beta_", []).append((queries @ batch.bag.float().T).cpu())
            modes.setdefault("", []).append((queries @ vectors.T).cpu())
        figures_by_name: dict[str, float] = {}
        for mode in sorted(modes):
            figures = self.compute_figures(torch.cat(modes[mode], dim=1))
            figures_by_name |= {
                f"{mode}{name}": value for name, value in figures.items() if not mode or name.startswith("nDCG")
            }
        if model.lexical:
            figures_by_name["mean_query_terms"] = round(float((queries > 0).sum(dim=1).float().mean()), 1)
            figures_by_name["mean_passage_terms"] = round(terms / len(self.passages), 1)
        return figures_by_name

    def score(self, figures: Mapping[str, float]) -> float:
        """nDCG@10."""
        return figures[f"nDCG@{NDCG_CUT}"]

    def compute_figures(self, scores: Tensor) -> dict[str, float]:
        """Means over queries, from scores [Q, n]; equal scores in the order of the passages' ids.

        A passage whose id is the query's does not count, as in BEIR.
        """
        if not torch.isfinite(scores).all():
            raise UsageError("validation: scores that are no numbers; lower the learning rate or the clip")
        place = {passage.doc_id: number for number, passage in enumerate(self.data.passages)}
        values: dict[str, list[float]] = {f"nDCG@{NDCG_CUT}": [], **{f"Recall@{k}": [] for k in RECALL_CUTS}}
        for row, query_id, relevant in zip(scores, self.data.ids, self.data.positives, strict=True):
            if query_id in place:
                row = row.index_fill(0, torch.tensor([place[query_id]]), -torch.inf)
            ranked = torch.argsort(row, descending=True, stable=True)[: max(NDCG_CUT, *RECALL_CUTS)].tolist()
            values[f"nDCG@{NDCG_CUT}"].append(
                compute_ndcg([relevant.get(number, 0) for number in ranked], relevant.values())
            )
            for k in RECALL_CUTS:
                values[f"Recall@{k}"].append(sum(number in relevant for number in ranked[:k]) / len(relevant))
        return {name: round(float(np.mean(of_queries)), 4) for name, of_queries in values.items()}


def compute_ndcg(gains: Iterable[int], relevant: Iterable[int]) -> float:
    """nDCG@10 with the relevance as gain, from the gains in rank order and the relevances of all relevant passages.

    >>> round(ndcg([0, 2, 1], [2, 1]), 4)
    0.67
    """
    discounts = 1 / np.log2(np.arange(2, NDCG_CUT + 2))
    ideal = np.array(sorted(relevant, reverse=True)[:NDCG_CUT], dtype=float)
    gains_at_cut = np.array(list(gains)[:NDCG_CUT], dtype=float)
    return float((gains_at_cut @ discounts[: len(gains_at_cut)]) / (ideal @ discounts[: len(ideal)]))
