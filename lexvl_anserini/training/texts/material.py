"""What a run over texts reads and writes: the sides and their tokenised texts, the inputs of stages, the checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lexvl_anserini.encoders.parts.texts.tokens import TokenColumns
from lexvl_anserini.training.common.batches import TrainingBatch
from lexvl_anserini.training.common.examples import Examples, named, spread
from lexvl_anserini.training.common.stage import StageInputs
from lexvl_anserini.training.common.tower_pair import TowerPair
from lexvl_anserini.training.model_settings import TextPairSettings
from lexvl_anserini.training.recipe import Recipe
from lexvl_anserini.training.run_folder import WORDS
from lexvl_anserini.training.splits import TRAINING, VALIDATION, Sources
from lexvl_anserini.training.texts.batches import QueryBatches, TextStore
from lexvl_anserini.training.texts.families import FAMILIES, make_text_sides
from lexvl_anserini.training.texts.measuring import TextValidation
from lexvl_anserini.training.texts.query_passages import QueriesWithPassages
from lexvl_anserini.training.texts.sides import TrainableText

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextMaterial:
    """What all stages of a run over texts share.

    data      queries with passages by role
    query     the side of queries
    document  the side of documents, which may be the same object
    queries   tokenised, by role
    passages  tokenised, by role
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
        query, document = make_text_sides(model, queries_of[TRAINING].texts, output / WORDS)
        cpu = torch.device("cpu")

        def store(side: TrainableText, rows: list[tuple[list[int], list[int]]]) -> TextStore:
            return TextStore.of(rows, side.columns, side.reader.pad_id, cpu)

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

    def stage_inputs(self, recipe: Recipe, number: int, pair: TowerPair) -> StageInputs:
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
        examples = examples_of(self.data[shown], queries[shown], passages[shown])
        return StageInputs(batches, None, validation, None, examples)

    def listed(self, batch: TrainingBatch) -> list[dict[str, Any]]:
        """The queries of a batch with their positive and hard negatives, to look at."""
        data, size = self.data[TRAINING], len(batch.items)
        assert batch.passages is not None
        ids = [data.passages[place].doc_id for place in batch.passages]
        each = (len(ids) - size) // size  # hard negatives of a query
        rows = []
        for row, item in enumerate(batch.items):
            own = ids[size + row * each : size + (row + 1) * each]
            rows.append({"id": data.ids[item], "query": data.queries[item], "positive": ids[row], "negatives": own})
        return rows

    def save(self, recipe: Recipe, pair: TowerPair, folder: Path) -> None:
        """Writes the pair in the layout of its family."""
        model = recipe.model
        assert isinstance(model, TextPairSettings)
        query, document = pair.encoder_q.cpu().eval(), pair.encoder_p.cpu().eval()
        FAMILIES[model.kind].save(query, document, model, folder, getattr(torch, recipe.weights))


def examples_of(data: QueriesWithPassages, queries: TextStore, passages: TextStore) -> Examples:
    """Some queries, each with its first positive."""
    chosen = spread(len(data))
    positives = np.array([min(data.positives[place]) for place in chosen], dtype=np.int64)
    texts = [named(data.passages[place].contents) for place in positives]
    return Examples(
        queries.batch(chosen), passages.batch(positives), [named(data.queries[place]) for place in chosen], texts
    )
