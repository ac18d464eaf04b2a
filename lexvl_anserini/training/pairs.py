"""Pairs of towers that training changes: from random weights, or over pretrained networks (`pretrained_sides`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.families.dense.dense_crossmodal import mean_state
from lexvl_anserini.encoders.families.vdr import HEAD_EPS
from lexvl_anserini.encoders.parts.images.vision import PatchTransformer
from lexvl_anserini.encoders.parts.pooling import elu1p
from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.training.common.inputs import ImageBatch, TextBatch
from lexvl_anserini.training.common.tower_pair import TowerPair, project_max
from lexvl_anserini.training.images.lexlip_parts import parts_of
from lexvl_anserini.training.images.network_families import NETWORK_FAMILIES
from lexvl_anserini.training.images.pretrained_sides import INITIAL_STD, Networks, bert_config, dense_sides, vdr_sides
from lexvl_anserini.training.model_settings import ModelSettings, TextSettings, vision_shape
from lexvl_anserini.training.recipe import Recipe


class TextSide(nn.Module):
    """A BERT without pooler; subclasses add the head. Keys as in published checkpoints."""

    def __init__(self, model: ModelSettings, columns: TokenColumns):
        super().__init__()
        import transformers

        assert isinstance(model.text, TextSettings)
        self.config = bert_config(model.text, len(columns.of_token))
        self.bert_model = transformers.BertModel(self.config, add_pooling_layer=False)

    def states(self, batch: TextBatch) -> Tensor:
        """Last hidden states [B, L, D]."""
        states: Tensor = self.bert_model(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
        return states


class VdrText(TextSide):
    """w = elu1p(max_i <ln(h_i), E_v>), of unit length."""

    tokens: Tensor

    def __init__(self, model: ModelSettings, columns: TokenColumns):
        super().__init__(model, columns)
        self.ln = nn.LayerNorm(self.config.hidden_size, eps=HEAD_EPS)
        self.register_buffer("tokens", torch.from_numpy(columns.tokens), persistent=False)

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        embeddings = self.bert_model.embeddings.word_embeddings.weight[self.tokens]
        pooled = project_max(self.ln(self.states(batch)), embeddings, batch.attention == 0)
        return normalize(elu1p(pooled), dim=1)


class VdrImage(PatchTransformer):
    """w = elu1p(max_p <h_p, P_v>), of unit length."""

    def __init__(self, model: ModelSettings, columns: TokenColumns):
        super().__init__(**vision_shape(model))
        self.proj = nn.Parameter(torch.randn(len(columns.vocabulary), vision_shape(model)["width"]) * INITIAL_STD)
        nn.init.normal_(self.positional_embedding, std=INITIAL_STD)

    def forward(self, batch: ImageBatch) -> Tensor:  # type: ignore[override]
        """Weights before the sparsifier, [B, V]."""
        return normalize(elu1p(project_max(super().forward(batch.values), self.proj)), dim=1)


class DenseText(TextSide):
    """v = W mean_i h_i over the tokens of a text, of unit length."""

    def __init__(self, model: ModelSettings, columns: TokenColumns):
        super().__init__(model, columns)
        self.proj = nn.Parameter(torch.randn(model.dimensions, self.config.hidden_size) * self.config.hidden_size**-0.5)

    def forward(self, batch: TextBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(mean_state(self.states(batch), batch.attention) @ self.proj.T, dim=1)


class DenseImage(PatchTransformer):
    """v = W mean_p h_p over the patches, of unit length."""

    def __init__(self, model: ModelSettings, columns: TokenColumns):
        super().__init__(**vision_shape(model))
        width = vision_shape(model)["width"]
        self.proj = nn.Parameter(torch.randn(model.dimensions, width) * width**-0.5)
        nn.init.normal_(self.positional_embedding, std=INITIAL_STD)

    def forward(self, batch: ImageBatch) -> Tensor:  # type: ignore[override]
        """Vectors [B, D]."""
        return normalize(super().forward(batch.values).mean(dim=1) @ self.proj.T, dim=1)


class PairKind(NamedTuple):
    """The classes of the two sides of a pair with fresh towers of its own."""

    text: Callable[[ModelSettings, TokenColumns], TextSide]
    image: Callable[[ModelSettings, TokenColumns], PatchTransformer]


KINDS: Mapping[str, PairKind] = {
    "vdr-crossmodal": PairKind(VdrText, VdrImage),
    "dense-crossmodal": PairKind(DenseText, DenseImage),
}


# The sides of a pair over networks, which are pretrained or, for families without a row in `KINDS`, may be new.
OVER_NETWORKS = {"vdr-crossmodal": vdr_sides, "dense-crossmodal": dense_sides, **NETWORK_FAMILIES}


def make_pair(
    recipe: Recipe, model: ModelSettings, columns: TokenColumns, networks: Networks | None = None
) -> TowerPair:
    """A pair whose new weights are drawn from the random state of torch; over networks if the model has some."""
    first = recipe.stages[0].objective
    of_bags = any(stage.objective.learn_bag_temperature for stage in recipe.stages)
    if networks is not None:
        pair = TowerPair(*OVER_NETWORKS[model.kind](model, networks), first.temperature, of_bags)
        pair.parts.update(parts_of(pair, recipe.stages, networks.text))
        return pair
    kind = KINDS[model.kind]
    return TowerPair(kind.text(model, columns), kind.image(model, columns), first.temperature, of_bags)
