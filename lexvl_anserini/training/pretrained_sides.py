"""Sides over pretrained networks: the heads are new, and of the networks only what a stage names changes.

What a stage leaves frozen is not computed at each step: a side goes on from what is stored (see `inputs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, normalize

from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.dense_crossmodal import mean_state
from lexvl_anserini.encoders.parts.activations import elu1p
from lexvl_anserini.encoders.parts.backbones import bert_from_weights, read_config
from lexvl_anserini.encoders.parts.image_backbones import ImageBackbone, load_image_backbone
from lexvl_anserini.encoders.parts.pretrained import (
    CellsOf,
    Standard,
    StatesHead,
    VectorHead,
    all_cells,
    bert_weights,
    folded,
    layers_of,
)
from lexvl_anserini.encoders.parts.tokens import TokenColumns, columns_of_terms, load_tokenizer
from lexvl_anserini.errors import UsageError
from lexvl_anserini.files import file_sha256
from lexvl_anserini.training.inputs import ImageBatch, TextBatch
from lexvl_anserini.training.model_settings import ModelSettings, PretrainedImage, PretrainedText
from lexvl_anserini.training.projection import project_max
from lexvl_anserini.training.words import learn_terms, read_class_names, save_core, with_words, words_of_classes
from lexvl_anserini.vocabulary import Vocabulary


class TextNetwork(NamedTuple):
    """A pretrained BERT whose tokens gained the words of the training captions.

    checkpoint  of the network
    digest      SHA-256 (hex) of its weights
    bert        the network, with a row of its input embeddings for each new token: the mean of its pieces' rows
    tokenizer   with the new tokens
    columns     the dimension of each token, of the terms of the captions
    classes     the classes of each class word, which is a token and no term of the captions
    """

    checkpoint: Checkpoint
    digest: str
    bert: Any
    tokenizer: Any
    columns: TokenColumns
    classes: Mapping[str, list[int]]


class Networks(NamedTuple):
    """The pretrained networks of a pair."""

    text: TextNetwork
    image: ImageBackbone


def load_text_network(
    settings: PretrainedText, class_names: str | None, captions: Sequence[str], folder: Path
) -> TextNetwork:
    """A pretrained BERT and the terms of the training captions; writes the tokenizer into a folder.

    Raises:
        CheckpointError: the checkpoint is no BERT, or lacks a tokenizer.
        UsageError: its tokenizer is not WordPiece, or no word is frequent enough.
    """
    checkpoint = find_checkpoint(settings.checkpoint)
    config = read_config(checkpoint.folder)
    terms = learn_terms(captions, settings.least)
    classes = words_of_classes(read_class_names(Path(class_names)), terms) if class_names else {}
    core, pieces = with_words(load_tokenizer(checkpoint.folder, config.vocab_size), [*terms, *classes])
    tokenizer = save_core(core, folder, settings.max_length)
    config.vocab_size += len(pieces)
    (weights, digest), key = bert_weights(checkpoint), "embeddings.word_embeddings.weight"
    rows = [weights[key][list(ids)].mean(dim=0) for ids in pieces]
    weights[key] = torch.cat([weights[key], torch.stack(rows)]) if rows else weights[key]
    bert = bert_from_weights(config, weights, str(checkpoint.folder), torch.device("cpu"))
    columns = columns_of_terms(tokenizer, Vocabulary(terms, "the terms of the captions"), settings.checkpoint)
    return TextNetwork(checkpoint, digest, bert, tokenizer, columns, classes)


class FrozenByDefault(nn.Module):
    """A side whose pretrained network computes as in use: no dropout, batch norms with their own means."""

    network: nn.Module

    def train(self, mode: bool = True) -> FrozenByDefault:
        """As `nn.Module.train` for all but the network."""
        super().train(mode)
        self.network.eval()
        return self


class TextOver(FrozenByDefault):
    """The states of a pretrained BERT; subclasses add the head."""

    def __init__(self, text: TextNetwork, settings: PretrainedText):
        super().__init__()
        self.network, self.config, self.dropout = text.bert, text.bert.config, settings.dropout

    def states(self, batch: TextBatch) -> Tensor:
        """Last hidden states [B, L, D], with dropout in training."""
        states = batch.states
        if states is None:
            states = self.network(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
        return dropout(states, self.dropout, self.training)


class VdrTextOver(TextOver):
    """w = elu1p(max_i <ln(T h_i), P_v> + b_v), of unit length; T begins as the identity, P is the image side's."""

    def __init__(self, text: TextNetwork, settings: PretrainedText, rows: nn.Parameter):
        super().__init__(text, settings)
        self.head = StatesHead(self.config.hidden_size, rows.shape[1])
        nn.init.eye_(self.head.linear.weight)
        self.bias = nn.Parameter(torch.zeros(len(rows)))
        self.rows = (rows,)  # in a tuple, so that it is a parameter of the image side alone

    def forward(self, batch: TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        pooled = project_max(self.head(self.states(batch)), self.rows[0], batch.attention == 0)
        return normalize(elu1p(pooled + self.bias), dim=1)


class DenseTextOver(TextOver):
    """v = W_2 gelu(W_1 mean_i h_i), of unit length."""

    def __init__(self, text: TextNetwork, settings: PretrainedText, model: ModelSettings):
        super().__init__(text, settings)
        self.head = VectorHead(self.config.hidden_size, model.hidden, model.dimensions)

    def forward(self, batch: TextBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(self.head(mean_state(self.states(batch), batch.attention)), dim=1)


class ImageOver(FrozenByDefault):
    """The cells of a pretrained image network; subclasses add the head."""

    def __init__(self, backbone: ImageBackbone, settings: PretrainedImage):
        super().__init__()
        self.network, self.settings = backbone.network, settings
        self.standard = Standard(backbone.width)

    def cells(self, pixels: Tensor) -> Tensor:
        """Cells [B, 1 + grid^2, D] of pixels [B, 3, R, R], the mean first, not standardised."""
        return all_cells(layers_of(self.network, pixels), self.settings.grid)

    def frozen(self) -> CellsOf:
        """A copy of the network that gives the cells, not standardised, as fast as it can."""
        network = folded(deepcopy(self.network)).eval()
        return CellsOf(network, self.settings.grid, Standard(len(self.standard.mean))).to(self.standard.mean.device)

    def states(self, batch: ImageBatch) -> Tensor:
        """Standardised cells [B, 1 + grid^2, D], with dropout in training."""
        cells = batch.values if batch.computed else self.cells(batch.values)
        return dropout(self.standard(cells), self.settings.dropout, self.training)


class VdrImageOver(ImageOver):
    """w = elu1p(max_p <ln(W s_p), P_v> + b_v), of unit length; P begins as the words' input embeddings."""

    def __init__(self, backbone: ImageBackbone, settings: PretrainedImage, embeddings: Tensor):
        super().__init__(backbone, settings)
        self.head = StatesHead(backbone.width, embeddings.shape[1])
        self.proj = nn.Parameter(normalize(embeddings, dim=1))
        self.bias = nn.Parameter(torch.zeros(len(embeddings)))

    def forward(self, batch: ImageBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        states = self.states(batch)
        left_out = None
        if self.training and self.settings.cells:
            left_out = torch.rand(states.shape[:2], device=states.device) < self.settings.cells
            left_out[:, 0] &= ~left_out.all(dim=1)  # one cell is always left, the mean
        return normalize(elu1p(project_max(self.head(states), self.proj, left_out) + self.bias), dim=1)


class DenseImageOver(ImageOver):
    """v = W_2 gelu(W_1 mean_p s_p), of unit length."""

    def __init__(self, backbone: ImageBackbone, settings: PretrainedImage, model: ModelSettings):
        super().__init__(backbone, settings)
        self.head = VectorHead(backbone.width, model.hidden, model.dimensions)

    def forward(self, batch: ImageBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(self.head(self.states(batch)[:, 0]), dim=1)


def make_sides(model: ModelSettings, networks: Networks) -> tuple[TextOver, ImageOver]:
    """The two sides of a pair over pretrained networks; new weights are drawn from the random state of torch."""
    assert isinstance(model.text, PretrainedText) and isinstance(model.image, PretrainedImage)
    text, image = networks
    if not model.lexical:
        return DenseTextOver(text, model.text, model), DenseImageOver(image, model.image, model)
    embeddings = text.bert.get_input_embeddings().weight.detach()[text.columns.tokens]
    images = VdrImageOver(image, model.image, embeddings)
    return VdrTextOver(text, model.text, images.proj), images


def load_networks(model: ModelSettings, captions: Sequence[str], folder: Path) -> Networks:
    """The networks that a model names, and the terms of the training captions; writes the tokenizer into a folder."""
    assert isinstance(model.text, PretrainedText) and isinstance(model.image, PretrainedImage)
    image = load_image_backbone(model.image.checkpoint)
    names = model.image.class_names if model.lexical else None
    if names and image.classifier is None:
        raise UsageError(f"class_names {names}: {model.image.checkpoint} has no classifier of its states")
    return Networks(load_text_network(model.text, names, captions, folder), image)


def network_digests(model: ModelSettings) -> Mapping[str, str]:
    """The digests of the networks that a model names, for the request of a run."""
    assert isinstance(model.text, PretrainedText) and isinstance(model.image, PretrainedImage)
    text, image = find_checkpoint(model.text.checkpoint), load_image_backbone(model.image.checkpoint)
    digests = {"text network": text.digest(), "image network": image.digest}
    if model.start:
        digests["start"] = find_checkpoint(model.start).digest()
    if names := model.image.class_names:
        read_class_names(Path(names))
        digests["class names"] = file_sha256(Path(names))
    return digests
