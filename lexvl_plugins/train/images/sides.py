"""Sides of a pair of texts and images: each reads a network, whose states pass the head of the family's encoder.

VDR, its dense twin and STAIR have whole towers (`VdrText`, `StairText`, ...), or new heads over networks, as LexLIP and
FDT always have. A side whose network is frozen goes on from what is stored. Vectors of STAIR and LexLIP are not of unit
length here: FLOPS reads them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize

from lexvl_anserini.encoders.families.dense_crossmodal import compute_mean_state
from lexvl_anserini.encoders.families.fdt import ATTENTIONS, QueryMap
from lexvl_anserini.encoders.families.stair import Stair
from lexvl_anserini.encoders.families.vdr import HEAD_EPS as VDR_EPS
from lexvl_anserini.encoders.parts import pretrained
from lexvl_anserini.encoders.parts.images.image_backbones import ImageBackbone
from lexvl_anserini.encoders.parts.images.vision import PatchTransformer
from lexvl_anserini.encoders.parts.pretrained import HEAD_EPS, TokenHead
from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.encoders.parts.towers import Head, compute_decay, elu1p, log1p_relu
from lexvl_plugins.train import model_settings
from lexvl_plugins.train.common.tower_pair import DetailedSide, Details, ImageBatch, TextBatch, compute_logits
from lexvl_plugins.train.images.networks import (
    INITIAL_STD,
    Networks,
    TextNetwork,
    choose_cells,
    load_bert,
    make_bert,
    make_stair,
)


class OwnText(nn.Module):
    """A BERT without pooler, which trains with its own dropout; subclasses add the head. Keys as published."""

    def __init__(self, bert: Any, dropout: float):
        super().__init__()
        self.config, self.bert_model, self.dropout = bert.config, bert, dropout

    @classmethod
    def start_bert(
        cls, text: model_settings.TextSettings | model_settings.PretrainedText, tokens: int
    ) -> tuple[Any, float]:
        """The BERT of such a side, over so many tokens, and the dropout of its states."""
        if isinstance(text, model_settings.PretrainedText):
            return load_bert(text), text.dropout
        return make_bert(text, tokens), 0.0

    def compute_states(self, batch: TextBatch) -> Tensor:
        """Last hidden states [B, L, D]."""
        states = self.bert_model(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
        return dropout(states, self.dropout, self.training)


class OwnImage(PatchTransformer):
    """A patch transformer with random weights, and the rows of a projection with the equation that reads them."""

    def __init__(
        self,
        settings: model_settings.ImageSettings,
        rows: int,
        std: float,
        equation: Callable[[Tensor, Tensor], Tensor],
    ):
        super().__init__(**settings.shape)
        self.proj = nn.Parameter(torch.randn(rows, settings.width) * std)
        nn.init.normal_(self.positional_embedding, std=INITIAL_STD)
        self.equation = equation

    def forward(self, batch: ImageBatch) -> Tensor:  # type: ignore[override]
        """Vectors before the sparsifier, [B, V] or [B, D]."""
        return self.equation(self.proj, super().forward(batch.values))


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

    def compute_states(self, batch: TextBatch) -> Tensor:
        """Last hidden states [B, L, D], with dropout in training."""
        states = batch.states
        if states is None:
            states = self.network(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
        return dropout(states, self.dropout, self.training)


class ImageOver(OverNetwork):
    """The cells of an image network; subclasses add the head."""

    def __init__(self, backbone: ImageBackbone, settings: model_settings.PretrainedImage):
        super().__init__()
        self.network, self.settings = backbone.network, settings
        self.standard = pretrained.Standard(backbone.width)

    def copy_frozen(self) -> pretrained.CellsOf:
        """A copy of the network that gives the cells, not standardised, as fast as it can."""
        network = pretrained.fill_folded(deepcopy(self.network)).eval()
        mean = self.standard.mean
        return pretrained.CellsOf(network, self.settings.grid, pretrained.Standard(len(mean))).to(mean.device)

    def compute_states(self, batch: ImageBatch) -> Tensor:
        """Standardised cells [B, 1 + grid^2, D], the mean first, with dropout in training."""
        cells = (
            batch.values
            if batch.values.dim() == 3  # they are cells
            else pretrained.all_cells(pretrained.list_layers(self.network, batch.values), self.settings.grid)
        )
        return dropout(self.standard(cells), self.settings.dropout, self.training)

    def drop_cells(self, states: Tensor) -> Tensor | None:
        """The cells that a step of training leaves out, bool [B, 1 + grid^2]; None for none."""
        if not (self.training and self.settings.cells):
            return None
        left_out = torch.rand(states.shape[:2], device=states.device) < self.settings.cells
        left_out[:, 0] &= ~left_out.all(dim=1)  # one cell is always left, the mean
        return left_out


def compute_vdr_weights(head: Head, states: Tensor, left_out: Tensor | None = None) -> Tensor:
    """Weights [B, V] of VDR before the sparsifier, w = elu1p(max_i <f(h_i), E_v> + b_v), of unit length."""
    return normalize(elu1p(compute_logits(head, states, left_out)), dim=1)


class VdrText(OwnText):
    """`vdr_weights` with f = ln; E are the input embeddings of the words."""

    tokens: Tensor

    def __init__(self, text: model_settings.TextSettings | model_settings.PretrainedText, columns: TokenColumns):
        super().__init__(*self.start_bert(text, len(columns.of_token)))
        self.ln = nn.LayerNorm(self.config.hidden_size, eps=VDR_EPS)
        self.register_buffer("tokens", torch.from_numpy(columns.tokens), persistent=False)

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        embeddings = self.bert_model.embeddings.word_embeddings.weight[self.tokens]
        return compute_vdr_weights(Head(self.ln, embeddings), self.compute_states(batch), batch.attention == 0)


class VdrTextOver(TextOver):
    """`vdr_weights` with f(h) = ln(T h); T begins as the identity, E is the image side's."""

    def __init__(self, text: TextNetwork, dropout: float, rows: nn.Parameter):
        super().__init__(text, dropout)
        self.head = pretrained.StatesHead(self.config.hidden_size, rows.shape[1])
        nn.init.eye_(self.head.linear.weight)
        self.bias = nn.Parameter(torch.zeros(len(rows)))
        self.rows = (rows,)  # in a tuple, so that it is a parameter of the image side alone

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        head = Head(self.head, self.rows[0], self.bias)
        return compute_vdr_weights(head, self.compute_states(batch), batch.attention == 0)


class VdrImageOver(ImageOver):
    """`vdr_weights` with f(s) = ln(W s) over the cells; E begins as the words' input embeddings."""

    def __init__(self, backbone: ImageBackbone, settings: model_settings.PretrainedImage, embeddings: Tensor):
        super().__init__(backbone, settings)
        self.head = pretrained.StatesHead(backbone.width, embeddings.shape[1])
        self.proj = nn.Parameter(normalize(embeddings, dim=1))
        self.bias = nn.Parameter(torch.zeros(len(embeddings)))

    def forward(self, batch: ImageBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        states = self.compute_states(batch)
        return compute_vdr_weights(Head(self.head, self.proj, self.bias), states, self.drop_cells(states))


class DenseText(OwnText):
    """v = W mean_i h_i over the tokens of a text, of unit length."""

    def __init__(self, settings: model_settings.TextSettings, columns: TokenColumns, dimensions: int):
        super().__init__(*self.start_bert(settings, len(columns.of_token)))
        self.proj = nn.Parameter(torch.randn(dimensions, settings.width) * settings.width**-0.5)

    def forward(self, batch: TextBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(compute_mean_state(self.compute_states(batch), batch.attention) @ self.proj.T, dim=1)


class DenseTextOver(TextOver):
    """v = W_2 gelu(W_1 mean_i h_i), of unit length."""

    def __init__(self, text: TextNetwork, dropout: float, model: model_settings.ModelSettings):
        super().__init__(text, dropout)
        self.head = pretrained.VectorHead(self.config.hidden_size, model.hidden, model.dimensions)

    def forward(self, batch: TextBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(self.head(compute_mean_state(self.compute_states(batch), batch.attention)), dim=1)


class DenseImageOver(ImageOver):
    """v = W_2 gelu(W_1 mean_p s_p), of unit length."""

    def __init__(
        self, backbone: ImageBackbone, settings: model_settings.PretrainedImage, model: model_settings.ModelSettings
    ):
        super().__init__(backbone, settings)
        self.head = pretrained.VectorHead(backbone.width, model.hidden, model.dimensions)

    def forward(self, batch: ImageBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(self.head(self.compute_states(batch)[:, 0]), dim=1)


class StairTwinText(nn.Module):
    """The vectors of a `StairTwin`'s texts."""

    def __init__(self, twin: Stair, dropout: float):
        super().__init__()
        self.network, self.head, self.dropout = twin.text, twin.text_head, dropout

    def forward(self, batch: TextBatch) -> Tensor:
        """Vectors [B, D]."""
        states = dropout(self.network(batch.ids, batch.attention), self.dropout, self.training)
        vectors: Tensor = self.head(states, batch.attention)
        return vectors


class StairTwinImage(nn.Module):
    """The vectors of a `StairTwin`'s images."""

    def __init__(self, twin: Stair):
        super().__init__()
        self.network, self.head = twin.image, twin.image_head

    def forward(self, batch: ImageBatch) -> Tensor:
        """Vectors [B, D]."""
        vectors: Tensor = self.head(self.network(batch.values))
        return vectors


class ClipText(nn.Module):
    """v = W h_end + b of CLIP's texts, of unit length (FDT, equation 3)."""

    def __init__(self, text: TextNetwork):
        super().__init__()
        self.network = text.bert

    def forward(self, batch: TextBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(self.network(batch.ids, batch.attention).text_embeds, dim=1)


class ClipImage(nn.Module):
    """v = W h of a ViT's class token, or of the mean of a Swin's cells, of unit length (FDT, equations 1 and 2)."""

    def __init__(self, image: ImageBackbone):
        super().__init__()
        self.network: Any = image.network

    def forward(self, batch: ImageBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(self.network.model(batch.values)[0], dim=1)


def compute_lexical_details(head: Head, states: Tensor, left_out: Tensor | None) -> Details:
    """Weights [B, V] of STAIR and LexLIP, w = log(1 + relu(max_i <TRANSFORM(h_i), e_v> + b_v)), and their logits."""
    logits = compute_logits(head, states, left_out)
    return Details(log1p_relu(logits), logits)


class StairText(DetailedSide):
    """`lexical_details` of the text encoder of a `Stair`; e are its token embeddings."""

    def __init__(self, stair: Stair, dropout: float):
        super().__init__()
        self.network, self.head, self.dropout = stair.text, stair.text_head, dropout

    def compute(self, batch: TextBatch) -> Details:
        """Weights and logits, [B, V]."""
        states = dropout(self.network(batch.ids, batch.attention), self.dropout, self.training)
        head = Head(self.head, self.network.token_embedding.weight, self.head.bias)
        return compute_lexical_details(head, states, batch.attention == 0)


class StairImage(DetailedSide):
    """`lexical_details` of the image encoder of a `Stair` over its class token and patches; e are the text side's."""

    def __init__(self, stair: Stair):
        super().__init__()
        self.network, self.head = stair.image, stair.image_head
        self.shared = (stair.embeddings,)  # in a tuple, so that it is a parameter of the text side alone

    def compute(self, batch: ImageBatch) -> Details:
        """Weights and logits, [B, V]."""
        head = Head(self.head, self.shared[0], self.head.bias)
        return compute_lexical_details(head, self.network(batch.values), None)


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

    def compute(self, batch: TextBatch) -> Details:
        """Weights and logits, [B, V]."""
        head = Head(self.head, self.rows, self.head.bias)
        return compute_lexical_details(head, self.compute_states(batch), batch.attention == 0)


class LexicalImage(DetailedSide, ImageOver):
    """`lexical_details` over the cells; e begin as the words' input embeddings."""

    def __init__(self, backbone: ImageBackbone, settings: model_settings.PretrainedImage, embeddings: Tensor):
        super().__init__(backbone, settings)
        self.head = TokenHead(backbone.width, embeddings.shape[1], len(embeddings), bridge=False, eps=HEAD_EPS)
        self.proj = nn.Parameter(normalize(embeddings, dim=1))

    def compute(self, batch: ImageBatch) -> Details:
        """Weights and logits, [B, V]."""
        states = self.compute_states(batch)
        return compute_lexical_details(Head(self.head, self.proj, self.head.bias), states, self.drop_cells(states))


class Codebook(nn.Module):
    """FDT's codebook [K, d]: w = attention(max_i <q_map(h_i), C_k> / (sqrt(d) T); T follows from the steps done."""

    done: Tensor

    def __init__(self, settings: model_settings.CodebookSettings):
        super().__init__()
        self.settings = settings
        self.rows = nn.Parameter(torch.randn(settings.terms, settings.width))
        self.register_buffer("done", torch.zeros((), dtype=torch.long))

    @property
    def temperature(self) -> float:
        """T at this step."""
        chosen = self.settings
        return compute_decay(chosen.temperature, chosen.decay, int(self.done) // chosen.every, chosen.least)

    def forward(
        self, head: QueryMap, states: Tensor, left_out: Tensor | None = None, floored: Tensor | None = None
    ) -> Tensor:
        """Weights [B, K] of states [B, L, D].

        Positions that `left_out`, bool [B, L], marks do not count. Items that `floored`, bool [B], marks have one more
        position, whose relevances are 0.
        """
        relevances = compute_logits(Head(head, self.rows), states, left_out)
        if floored is not None:
            relevances = torch.where(floored[:, None], relevances.clamp(min=0), relevances)
        scaled = relevances / self.rows.shape[1] ** 0.5 / self.temperature
        return ATTENTIONS[self.settings.attention](scaled)


class FdtText(TextOver):
    """The weights of `Codebook` over a text; with `floors`, padding has the relevance 0, as in the published code."""

    def __init__(self, text: TextNetwork, dropout: float, codebook: Codebook, floors: bool = False):
        super().__init__(text, dropout)
        self.head = QueryMap(self.config.hidden_size, codebook.settings.width)
        self.shared = (codebook,)  # in a tuple, so that it is a part of the image side alone
        self.floors = floors

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights [B, K]."""
        floored = batch.attention.sum(dim=1) < self.config.max_position_embeddings if self.floors else None
        weights: Tensor = self.shared[0](self.head, self.compute_states(batch), batch.attention == 0, floored)
        return weights


class FdtImage(ImageOver):
    """The weights of `Codebook` over the cells of an image."""

    def __init__(self, backbone: ImageBackbone, settings: model_settings.PretrainedImage, codebook: Codebook):
        super().__init__(backbone, settings)
        self.head = QueryMap(backbone.width, codebook.settings.width)
        self.codebook = codebook

    def forward(self, batch: ImageBatch) -> Tensor:
        """Weights [B, K]."""
        states = self.compute_states(batch)
        weights: Tensor = self.codebook(self.head, states, self.drop_cells(states))
        return weights


class PatchFdtImage(FdtImage):
    """`FdtImage` over patches alone, without their mean."""

    def train(self, mode: bool = True) -> PatchFdtImage:
        """With the network, which leaves out blocks in training."""
        nn.Module.train(self, mode)
        return self

    def compute_states(self, batch: ImageBatch) -> Tensor:
        """Patch states [B, P, D]."""
        states: Tensor = self.network(batch.values)
        return states


# The sides of texts and of images, whose new weights are drawn from the random state of torch in this order.
Sides = tuple[nn.Module, nn.Module]


def make_vdr_sides(model: model_settings.ModelSettings, columns: TokenColumns, networks: Networks | None) -> Sides:
    """VDR: over networks, the sides share the rows of the vocabulary."""
    if networks is None:
        assert isinstance(model.image, model_settings.ImageSettings)
        assert not isinstance(model.text, model_settings.BpeTextSettings)

        def weigh(rows: Tensor, states: Tensor) -> Tensor:
            return compute_vdr_weights(Head(nn.Identity(), rows), states)

        return VdrText(model.text, columns), OwnImage(model.image, len(columns.vocabulary), INITIAL_STD, weigh)
    images = VdrImageOver(networks.image, choose_cells(model.image), get_word_embeddings(networks.text))
    return VdrTextOver(networks.text, model.text.dropout, images.proj), images


def make_dense_sides(model: model_settings.ModelSettings, columns: TokenColumns, networks: Networks | None) -> Sides:
    """The dense twins of VDR, STAIR and FDT."""
    if model.pooling:
        twin = make_stair(model, len(columns.of_token))
        return StairTwinText(twin, model.text.dropout), StairTwinImage(twin)
    if networks is None:
        text, image = model.text, model.image
        assert isinstance(text, model_settings.TextSettings) and isinstance(image, model_settings.ImageSettings)

        def project(rows: Tensor, states: Tensor) -> Tensor:
            return normalize(states.mean(dim=1) @ rows.T, dim=1)

        images = OwnImage(image, model.dimensions, image.width**-0.5, project)
        return DenseText(text, columns, model.dimensions), images
    if isinstance(model.text, model_settings.BpeTextSettings):
        return ClipText(networks.text), ClipImage(networks.image)
    texts = DenseTextOver(networks.text, model.text.dropout, model)
    return texts, DenseImageOver(networks.image, choose_cells(model.image), model)


def make_lexical_sides(model: model_settings.ModelSettings, columns: TokenColumns, networks: Networks | None) -> Sides:
    """STAIR, whose sides share the rows of the vocabulary, or LexLIP, whose two matrices begin equal."""
    if networks is None:
        stair = make_stair(model, len(columns.of_token))
        return StairText(stair, model.text.dropout), StairImage(stair)
    images = LexicalImage(networks.image, choose_cells(model.image), get_word_embeddings(networks.text))
    return LexicalText(networks.text, model.text.dropout, images.proj, shared=model.kind == "stair"), images


def make_fdt_sides(model: model_settings.ModelSettings, columns: TokenColumns, networks: Networks | None) -> Sides:
    """FDT: one codebook for both sides."""
    assert networks is not None
    codebook, cells = Codebook(model.codebook), choose_cells(model.image)
    if isinstance(model.text, model_settings.BpeTextSettings):
        return FdtText(networks.text, 0.0, codebook, True), PatchFdtImage(networks.image, cells, codebook)
    texts = FdtText(networks.text, model.text.dropout, codebook)
    return texts, FdtImage(networks.image, cells, codebook)


def get_word_embeddings(text: TextNetwork) -> Tensor:
    """The input embeddings of the terms, [V, D]."""
    embeddings: Tensor = text.bert.get_input_embeddings().weight.detach()[text.columns.tokens]
    return embeddings


SIDES: Mapping[str, Callable[[model_settings.ModelSettings, TokenColumns, Networks | None], Sides]] = {
    "vdr-crossmodal": make_vdr_sides,
    "dense-crossmodal": make_dense_sides,
    "stair": make_lexical_sides,
    "lexlip": make_lexical_sides,
    "fdt": make_fdt_sides,
}
