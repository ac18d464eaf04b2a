"""Sides of a pair of texts and images: each reads a network, whose states pass the head of the family's encoder.

VDR, its dense twin and STAIR have whole towers (`VdrText`, `StairText`, ...), or new heads over networks, as LexLIP and
FDT always have. Of networks only what a stage names changes; what a stage leaves frozen is not computed at each step: a
side goes on from what is stored (see `stores`). Lexical vectors of STAIR and LexLIP have not unit length here: FLOPS
reads them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize

from lexvl_anserini.encoders.families.dense_crossmodal import mean_state
from lexvl_anserini.encoders.families.fdt import ATTENTIONS, QueryMap
from lexvl_anserini.encoders.families.vdr import HEAD_EPS as VDR_EPS
from lexvl_anserini.encoders.parts.images.image_backbones import ImageBackbone
from lexvl_anserini.encoders.parts.images.vision import PatchTransformer
from lexvl_anserini.encoders.parts.network_pair import HEAD_EPS
from lexvl_anserini.encoders.parts.pooling import Head, elu1p, log1p_relu
from lexvl_anserini.encoders.parts.pretrained import (
    CellsOf,
    Standard,
    StatesHead,
    VectorHead,
    all_cells,
    fill_folded,
    layers_of,
)
from lexvl_anserini.encoders.parts.stair_network import Stair, TokenHead
from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_plugins.train.common.batches import Details, ImageBatch, TextBatch
from lexvl_plugins.train.common.tower_pair import DetailedSide, max_logits
from lexvl_plugins.train.images.networks import (
    INITIAL_STD,
    Networks,
    TextNetwork,
    cells_settings,
    new_bert,
    new_stair,
    pretrained_bert,
)
from lexvl_plugins.train.model_settings import (
    BpeTextSettings,
    CodebookSettings,
    ImageSettings,
    ModelSettings,
    PretrainedImage,
    PretrainedText,
    TextSettings,
)
from lexvl_plugins.train.objectives.contrastive import relevance_temperature


class OwnText(nn.Module):
    """A BERT without pooler, which trains with its own dropout; subclasses add the head. Keys as published."""

    def __init__(self, bert: Any, dropout: float):
        super().__init__()
        self.config, self.bert_model, self.dropout = bert.config, bert, dropout

    @classmethod
    def bert(cls, text: TextSettings | PretrainedText, tokens: int) -> tuple[Any, float]:
        """The BERT of such a side, over so many tokens, and the dropout of its states."""
        if isinstance(text, PretrainedText):
            return pretrained_bert(text), text.dropout
        return new_bert(text, tokens), 0.0

    def states(self, batch: TextBatch) -> Tensor:
        """Last hidden states [B, L, D]."""
        states = self.bert_model(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
        return dropout(states, self.dropout, self.training)


class OwnImage(PatchTransformer):
    """A patch transformer with random weights and `rows` rows of a projection; subclasses add the equation."""

    def __init__(self, settings: ImageSettings, rows: int, std: float):
        super().__init__(**settings.shape)
        self.proj = nn.Parameter(torch.randn(rows, settings.width) * std)
        nn.init.normal_(self.positional_embedding, std=INITIAL_STD)

    def states(self, batch: ImageBatch) -> Tensor:
        """Patch states [B, P, D]."""
        return PatchTransformer.forward(self, batch.values)


class OverNetwork(nn.Module):
    """A side whose network computes as in use: no dropout, batch norms with their own means."""

    network: nn.Module

    def train(self, mode: bool = True) -> OverNetwork:
        """As `nn.Module.train` for all but the network."""
        super().train(mode)
        self.network.eval()
        return self


class TextOver(OverNetwork):
    """The states of a BERT; subclasses add the head."""

    def __init__(self, text: TextNetwork, dropout: float):
        super().__init__()
        self.network, self.config, self.dropout = text.bert, text.bert.config, dropout

    def states(self, batch: TextBatch) -> Tensor:
        """Last hidden states [B, L, D], with dropout in training."""
        states = batch.states
        if states is None:
            states = self.network(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
        return dropout(states, self.dropout, self.training)


class ImageOver(OverNetwork):
    """The cells of an image network; subclasses add the head."""

    def __init__(self, backbone: ImageBackbone, settings: PretrainedImage):
        super().__init__()
        self.network, self.settings = backbone.network, settings
        self.standard = Standard(backbone.width)

    def frozen(self) -> CellsOf:
        """A copy of the network that gives the cells, not standardised, as fast as it can."""
        network = fill_folded(deepcopy(self.network)).eval()
        return CellsOf(network, self.settings.grid, Standard(len(self.standard.mean))).to(self.standard.mean.device)

    def states(self, batch: ImageBatch) -> Tensor:
        """Standardised cells [B, 1 + grid^2, D], the mean first, with dropout in training."""
        cells = batch.values if batch.computed else all_cells(layers_of(self.network, batch.values), self.settings.grid)
        return dropout(self.standard(cells), self.settings.dropout, self.training)

    def left_out(self, states: Tensor) -> Tensor | None:
        """The cells that a step of training leaves out, bool [B, 1 + grid^2]; None for none."""
        if not (self.training and self.settings.cells):
            return None
        left_out = torch.rand(states.shape[:2], device=states.device) < self.settings.cells
        left_out[:, 0] &= ~left_out.all(dim=1)  # one cell is always left, the mean
        return left_out


def vdr_weights(head: Head, states: Tensor, left_out: Tensor | None = None) -> Tensor:
    """Weights [B, V] of VDR before the sparsifier, w = elu1p(max_i <f(h_i), E_v> + b_v), of unit length."""
    return normalize(elu1p(max_logits(head, states, left_out)), dim=1)


class VdrText(OwnText):
    """`vdr_weights` with f = ln; E are the input embeddings of the words."""

    tokens: Tensor

    def __init__(self, text: TextSettings | PretrainedText, columns: TokenColumns):
        super().__init__(*self.bert(text, len(columns.of_token)))
        self.ln = nn.LayerNorm(self.config.hidden_size, eps=VDR_EPS)
        self.register_buffer("tokens", torch.from_numpy(columns.tokens), persistent=False)

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        embeddings = self.bert_model.embeddings.word_embeddings.weight[self.tokens]
        return vdr_weights(Head(self.ln, embeddings), self.states(batch), batch.attention == 0)


class VdrTextOver(TextOver):
    """`vdr_weights` with f(h) = ln(T h); T begins as the identity, E is the image side's."""

    def __init__(self, text: TextNetwork, dropout: float, rows: nn.Parameter):
        super().__init__(text, dropout)
        self.head = StatesHead(self.config.hidden_size, rows.shape[1])
        nn.init.eye_(self.head.linear.weight)
        self.bias = nn.Parameter(torch.zeros(len(rows)))
        self.rows = (rows,)  # in a tuple, so that it is a parameter of the image side alone

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        return vdr_weights(Head(self.head, self.rows[0], self.bias), self.states(batch), batch.attention == 0)


class VdrImage(OwnImage):
    """`vdr_weights` over the patches, whose states have no transform."""

    def forward(self, batch: ImageBatch) -> Tensor:  # type: ignore[override]
        """Weights before the sparsifier, [B, V]."""
        return vdr_weights(Head(nn.Identity(), self.proj), self.states(batch))


class VdrImageOver(ImageOver):
    """`vdr_weights` with f(s) = ln(W s) over the cells; E begins as the words' input embeddings."""

    def __init__(self, backbone: ImageBackbone, settings: PretrainedImage, embeddings: Tensor):
        super().__init__(backbone, settings)
        self.head = StatesHead(backbone.width, embeddings.shape[1])
        self.proj = nn.Parameter(normalize(embeddings, dim=1))
        self.bias = nn.Parameter(torch.zeros(len(embeddings)))

    def forward(self, batch: ImageBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        states = self.states(batch)
        return vdr_weights(Head(self.head, self.proj, self.bias), states, self.left_out(states))


class DenseText(OwnText):
    """v = W mean_i h_i over the tokens of a text, of unit length."""

    def __init__(self, settings: TextSettings, columns: TokenColumns, dimensions: int):
        super().__init__(*self.bert(settings, len(columns.of_token)))
        self.proj = nn.Parameter(torch.randn(dimensions, settings.width) * settings.width**-0.5)

    def forward(self, batch: TextBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(mean_state(self.states(batch), batch.attention) @ self.proj.T, dim=1)


class DenseTextOver(TextOver):
    """v = W_2 gelu(W_1 mean_i h_i), of unit length."""

    def __init__(self, text: TextNetwork, dropout: float, model: ModelSettings):
        super().__init__(text, dropout)
        self.head = VectorHead(self.config.hidden_size, model.hidden, model.dimensions)

    def forward(self, batch: TextBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(self.head(mean_state(self.states(batch), batch.attention)), dim=1)


class DenseImage(OwnImage):
    """v = W mean_p h_p over the patches, of unit length."""

    def forward(self, batch: ImageBatch) -> Tensor:  # type: ignore[override]
        """Vectors [B, D]."""
        return normalize(self.states(batch).mean(dim=1) @ self.proj.T, dim=1)


class DenseImageOver(ImageOver):
    """v = W_2 gelu(W_1 mean_p s_p), of unit length."""

    def __init__(self, backbone: ImageBackbone, settings: PretrainedImage, model: ModelSettings):
        super().__init__(backbone, settings)
        self.head = VectorHead(backbone.width, model.hidden, model.dimensions)

    def forward(self, batch: ImageBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(self.head(self.states(batch)[:, 0]), dim=1)


def lexical_details(head: Head, states: Tensor, left_out: Tensor | None) -> Details:
    """Weights [B, V] of STAIR and LexLIP, w = log(1 + relu(max_i <TRANSFORM(h_i), e_v> + b_v)), and their logits."""
    logits = max_logits(head, states, left_out)
    return Details(log1p_relu(logits), logits)


class StairText(DetailedSide):
    """`lexical_details` of the text encoder of a `Stair`; e are its token embeddings."""

    def __init__(self, stair: Stair, dropout: float):
        super().__init__()
        self.network, self.head, self.dropout = stair.text, stair.text_head, dropout

    def details(self, batch: TextBatch) -> Details:
        """Weights and logits, [B, V]."""
        states = dropout(self.network(batch.ids, batch.attention), self.dropout, self.training)
        head = Head(self.head, self.network.token_embedding.weight, self.head.bias)
        return lexical_details(head, states, batch.attention == 0)


class StairImage(DetailedSide):
    """`lexical_details` of the image encoder of a `Stair` over its class token and patches; e are the text side's."""

    def __init__(self, stair: Stair):
        super().__init__()
        self.network, self.head = stair.image, stair.image_head
        self.shared = (stair.embeddings,)  # in a tuple, so that it is a parameter of the text side alone

    def details(self, batch: ImageBatch) -> Details:
        """Weights and logits, [B, V]."""
        head = Head(self.head, self.shared[0], self.head.bias)
        return lexical_details(head, self.network(batch.values), None)


class LexicalText(DetailedSide, TextOver):
    """`lexical_details`; e are rows of its own, or those of the image side."""

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
        return lexical_details(Head(self.head, self.rows, self.head.bias), self.states(batch), batch.attention == 0)


class LexicalImage(DetailedSide, ImageOver):
    """`lexical_details` over the cells; e begin as the words' input embeddings."""

    def __init__(self, backbone: ImageBackbone, settings: PretrainedImage, embeddings: Tensor):
        super().__init__(backbone, settings)
        self.head = TokenHead(backbone.width, embeddings.shape[1], len(embeddings), bridge=False, eps=HEAD_EPS)
        self.proj = nn.Parameter(normalize(embeddings, dim=1))

    def details(self, batch: ImageBatch) -> Details:
        """Weights and logits, [B, V]."""
        states = self.states(batch)
        return lexical_details(Head(self.head, self.proj, self.head.bias), states, self.left_out(states))


class Codebook(nn.Module):
    """FDT's codebook: w = attention(max_i <q_map(h_i), C_k> / (sqrt(d) T)).

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
        chosen = self.settings
        return relevance_temperature(int(self.done), chosen.temperature, chosen.decay, chosen.every, chosen.least)

    def forward(
        self, head: QueryMap, states: Tensor, left_out: Tensor | None = None, floored: Tensor | None = None
    ) -> Tensor:
        """Weights [B, K] of states [B, L, D].

        Positions that `left_out`, bool [B, L], marks do not count. Items that `floored`, bool [B], marks have one more
        position, whose relevances are 0.
        """
        relevances = max_logits(Head(head, self.rows), states, left_out)
        if floored is not None:
            relevances = torch.where(floored[:, None], relevances.clamp(min=0), relevances)
        scaled = relevances / self.rows.shape[1] ** 0.5 / self.temperature
        return ATTENTIONS[self.settings.attention](scaled)


class FdtText(TextOver):
    """The weights of `Codebook` over the tokens of a text; padding does not count."""

    def __init__(self, text: TextNetwork, dropout: float, codebook: Codebook):
        super().__init__(text, dropout)
        self.head = QueryMap(self.config.hidden_size, codebook.settings.width)
        self.shared = (codebook,)  # in a tuple, so that it is a part of the image side alone

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights [B, K]."""
        weights: Tensor = self.shared[0](self.head, self.states(batch), batch.attention == 0)
        return weights


class FdtImage(ImageOver):
    """The weights of `Codebook` over the cells of an image."""

    def __init__(self, backbone: ImageBackbone, settings: PretrainedImage, codebook: Codebook):
        super().__init__(backbone, settings)
        self.head = QueryMap(backbone.width, codebook.settings.width)
        self.codebook = codebook

    def forward(self, batch: ImageBatch) -> Tensor:
        """Weights [B, K]."""
        states = self.states(batch)
        weights: Tensor = self.codebook(self.head, states, self.left_out(states))
        return weights


class BpeFdtText(FdtText):
    """`FdtText` over CLIP's texts, whose padding has the relevance 0, as in the published code; the paper has none."""

    def __init__(self, text: TextNetwork, codebook: Codebook):
        super().__init__(text, 0.0, codebook)

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights [B, K]."""
        padded = batch.attention.sum(dim=1) < self.config.max_position_embeddings
        weights: Tensor = self.shared[0](self.head, self.states(batch), batch.attention == 0, padded)
        return weights


class PatchFdtImage(FdtImage):
    """`FdtImage` over patches alone, without their mean."""

    def train(self, mode: bool = True) -> PatchFdtImage:
        """With the network, which leaves out blocks in training."""
        nn.Module.train(self, mode)
        return self

    def states(self, batch: ImageBatch) -> Tensor:
        """Patch states [B, P, D]."""
        states: Tensor = self.network(batch.values)
        return states


# The sides of texts and of images, whose new weights are drawn from the random state of torch in this order.
Sides = tuple[nn.Module, nn.Module]


def vdr_sides(model: ModelSettings, columns: TokenColumns, networks: Networks | None) -> Sides:
    """VDR: over networks, the sides share the rows of the vocabulary."""
    if networks is None:
        assert isinstance(model.image, ImageSettings) and not isinstance(model.text, BpeTextSettings)
        return VdrText(model.text, columns), VdrImage(model.image, len(columns.vocabulary), INITIAL_STD)
    images = VdrImageOver(networks.image, cells_settings(model.image), word_embeddings(networks.text))
    return VdrTextOver(networks.text, model.text.dropout, images.proj), images


def dense_sides(model: ModelSettings, columns: TokenColumns, networks: Networks | None) -> Sides:
    """VDR's dense twin."""
    if networks is None:
        text, image = model.text, model.image
        assert isinstance(text, TextSettings) and isinstance(image, ImageSettings)
        return DenseText(text, columns, model.dimensions), DenseImage(image, model.dimensions, image.width**-0.5)
    texts = DenseTextOver(networks.text, model.text.dropout, model)
    return texts, DenseImageOver(networks.image, cells_settings(model.image), model)


def lexical_sides(model: ModelSettings, columns: TokenColumns, networks: Networks | None) -> Sides:
    """STAIR, whose sides share the rows of the vocabulary, or LexLIP, whose two matrices begin equal."""
    if networks is None:
        stair = new_stair(model, len(columns.of_token))
        return StairText(stair, model.text.dropout), StairImage(stair)
    images = LexicalImage(networks.image, cells_settings(model.image), word_embeddings(networks.text))
    return LexicalText(networks.text, model.text.dropout, images.proj, shared=model.kind == "stair"), images


def fdt_sides(model: ModelSettings, columns: TokenColumns, networks: Networks | None) -> Sides:
    """FDT: one codebook for both sides."""
    assert networks is not None
    codebook, cells = Codebook(model.codebook), cells_settings(model.image)
    if isinstance(model.text, BpeTextSettings):
        return BpeFdtText(networks.text, codebook), PatchFdtImage(networks.image, cells, codebook)
    texts = FdtText(networks.text, model.text.dropout, codebook)
    return texts, FdtImage(networks.image, cells, codebook)


def word_embeddings(text: TextNetwork) -> Tensor:
    """The input embeddings of the terms, [V, D]."""
    embeddings: Tensor = text.bert.get_input_embeddings().weight.detach()[text.columns.tokens]
    return embeddings


SIDES: Mapping[str, Callable[[ModelSettings, TokenColumns, Networks | None], Sides]] = {
    "vdr-crossmodal": vdr_sides,
    "dense-crossmodal": dense_sides,
    "stair": lexical_sides,
    "lexlip": lexical_sides,
    "fdt": fdt_sides,
}
