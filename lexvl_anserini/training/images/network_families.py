"""STAIR, LexLIP and FDT over networks, pretrained or with random weights: their heads, and the rows that make them.

The equations are those of `stair.py`, `lexlip.py` and `fdt.py` in `encoders/families/`; a side computes cells and
states as `pretrained_sides` does. Lexical vectors have not unit length here: FLOPS reads them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexvl_anserini.encoders.families.fdt import ATTENTIONS, QueryMap
from lexvl_anserini.encoders.parts.images.image_backbones import ImageBackbone
from lexvl_anserini.encoders.parts.network_pair import HEAD_EPS
from lexvl_anserini.encoders.parts.pooling import log1p_relu
from lexvl_anserini.encoders.parts.stair_network import TokenHead
from lexvl_anserini.training.common.inputs import Details, ImageBatch, TextBatch
from lexvl_anserini.training.common.tower_pair import WithCodebook, project_max
from lexvl_anserini.training.images.pretrained_sides import ImageOver, Networks, TextNetwork, TextOver, cells_settings
from lexvl_anserini.training.model_settings import CodebookSettings, ModelSettings
from lexvl_anserini.training.objectives.fdt_losses import relevance_temperature


class LexicalText(TextOver):
    """w = log(1 + relu(max_i <TRANSFORM(h_i), e_v> + b_v)); e are rows of its own, or those of the image side."""

    def __init__(self, text: TextNetwork, dropout: float, rows: nn.Parameter, shared: bool):
        super().__init__(text, dropout)
        self.head = TokenHead(self.config.hidden_size, rows.shape[1], len(rows), bridge=False, eps=HEAD_EPS)
        if not shared:
            self.proj = nn.Parameter(rows.detach().clone())
        self.shared = (rows,) if shared else ()  # in a tuple, so that it is a parameter of the image side alone

    @property
    def rows(self) -> Tensor:
        """The rows of the vocabulary, [V, D]."""
        return self.shared[0] if self.shared else self.proj

    def logits(self, states: Tensor) -> Tensor:
        """Logits of all positions, [B, L, V], of states [B, L, D]."""
        logits: Tensor = self.head(states) @ self.rows.T + self.head.bias
        return logits

    def details(self, batch: TextBatch) -> Details:
        """Weights and logits, [B, V]."""
        logits = project_max(self.head(self.states(batch)), self.rows, batch.attention == 0) + self.head.bias
        return Details(log1p_relu(logits), logits)

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        return self.details(batch).vectors


class LexicalImage(ImageOver):
    """w = log(1 + relu(max_p <TRANSFORM(s_p), e_v> + b_v)); e begin as the words' input embeddings."""

    def __init__(self, backbone: ImageBackbone, settings: Any, embeddings: Tensor):
        super().__init__(backbone, settings)
        self.head = TokenHead(backbone.width, embeddings.shape[1], len(embeddings), bridge=False, eps=HEAD_EPS)
        self.proj = nn.Parameter(normalize(embeddings, dim=1))

    def details(self, batch: ImageBatch) -> Details:
        """Weights and logits, [B, V]."""
        states = self.states(batch)
        logits = project_max(self.head(states), self.proj, self.left_out(states)) + self.head.bias
        return Details(log1p_relu(logits), logits)

    def forward(self, batch: ImageBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        return self.details(batch).vectors


class Codebook(nn.Module):
    """FDT's codebook, from queries of positions to weights over its rows.

    rows  [K, d], begin as N(0, 1)
    done  steps of training, from which T follows
    """

    done: Tensor

    def __init__(self, settings: CodebookSettings):
        super().__init__()
        self.settings = settings
        self.rows = nn.Parameter(torch.randn(settings.terms, settings.width))
        self.register_buffer("done", torch.zeros((), dtype=torch.long))

    @property
    def temperature(self) -> float:
        """T at this step."""
        about = self.settings
        return relevance_temperature(int(self.done), about.temperature, about.decay, about.every, about.least)

    def forward(self, queries: Tensor, left_out: Tensor | None = None) -> Tensor:
        """Weights [B, K] of queries [B, L, d]; positions that `left_out`, bool [B, L], marks do not count."""
        relevances = project_max(queries, self.rows, left_out) / self.rows.shape[1] ** 0.5 / self.temperature
        return ATTENTIONS[self.settings.attention](relevances)


class FdtText(TextOver):
    """w = attention(max_i <q_map(h_i), C_k> / (sqrt(d) T)) over the tokens of a text; padding does not count."""

    def __init__(self, text: TextNetwork, dropout: float, codebook: Codebook):
        super().__init__(text, dropout)
        self.head = QueryMap(self.config.hidden_size, codebook.settings.width)
        self.shared = (codebook,)  # in a tuple, so that it is a part of the image side alone

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights [B, K]."""
        weights: Tensor = self.shared[0](self.head(self.states(batch)), batch.attention == 0)
        return weights


class FdtImage(WithCodebook, ImageOver):
    """w = attention(max_p <q_map(s_p), C_k> / (sqrt(d) T)) over the cells of an image."""

    def __init__(self, backbone: ImageBackbone, settings: Any, codebook: Codebook):
        super().__init__(backbone, settings)
        self.head = QueryMap(backbone.width, codebook.settings.width)
        self.codebook = codebook

    def forward(self, batch: ImageBatch) -> Tensor:
        """Weights [B, K]."""
        states = self.states(batch)
        weights: Tensor = self.codebook(self.head(states), self.left_out(states))
        return weights

    @torch.no_grad()
    def settle(self, steps: int) -> None:
        """Counts steps of training."""
        self.codebook.done += steps


def lexical_sides(model: ModelSettings, networks: Networks, shared: bool) -> tuple[TextOver, ImageOver]:
    """The sides of STAIR, which share the rows of the vocabulary, or of LexLIP, which do not."""
    text, image = networks
    embeddings = text.bert.get_input_embeddings().weight.detach()[text.columns.tokens]
    images = LexicalImage(image, cells_settings(model.image), embeddings)
    return LexicalText(text, model.text.dropout, images.proj, shared), images


def stair_sides(model: ModelSettings, networks: Networks) -> tuple[TextOver, ImageOver]:
    """STAIR: one matrix of rows for both sides."""
    return lexical_sides(model, networks, shared=True)


def lexlip_sides(model: ModelSettings, networks: Networks) -> tuple[TextOver, ImageOver]:
    """LexLIP: two matrices, which begin equal."""
    return lexical_sides(model, networks, shared=False)


def fdt_sides(model: ModelSettings, networks: Networks) -> tuple[TextOver, ImageOver]:
    """FDT: one codebook for both sides."""
    codebook = Codebook(model.codebook)
    text = FdtText(networks.text, model.text.dropout, codebook)
    return text, FdtImage(networks.image, cells_settings(model.image), codebook)


Sides = Callable[[ModelSettings, Networks], tuple[TextOver, ImageOver]]
NETWORK_FAMILIES: Mapping[str, Sides] = {"stair": stair_sides, "lexlip": lexlip_sides, "fdt": fdt_sides}
