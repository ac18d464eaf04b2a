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
from lexvl_anserini.encoders.families.dense.dense_crossmodal import mean_state
from lexvl_anserini.encoders.parts.backbones import bert_from_weights, read_config
from lexvl_anserini.encoders.parts.images.image_backbones import ImageBackbone, load_image_backbone
from lexvl_anserini.encoders.parts.images.vision import PatchTransformer
from lexvl_anserini.encoders.parts.network_pair import fresh_image_backbone
from lexvl_anserini.encoders.parts.pooling import elu1p
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
from lexvl_anserini.encoders.parts.tokens import TokenColumns, columns_ascii, columns_of_terms, load_tokenizer
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import file_sha256
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_anserini.training.common.inputs import ImageBatch, TextBatch
from lexvl_anserini.training.common.tower_pair import project_max
from lexvl_anserini.training.model_settings import (
    AnyImage,
    ImageSettings,
    ModelSettings,
    PretrainedImage,
    PretrainedText,
    TextSettings,
)
from lexvl_anserini.training.words import (
    FIRST_WORD_ID,
    learn_terms,
    learn_words,
    read_class_names,
    save_core,
    save_tokenizer,
    with_words,
    words_of_classes,
)

# Standard deviation of random initial weights, as in BERT and CLIP.
INITIAL_STD = 0.02


class TextNetwork(NamedTuple):
    """A pretrained BERT whose tokens gained the words of the training captions.

    checkpoint  of the network; None for one with random weights
    digest      SHA-256 (hex) of its weights
    bert        the network, with a row of its input embeddings for each new token: the mean of its pieces' rows
    tokenizer   with the new tokens
    columns     the dimension of each token, of the terms of the captions
    classes     the classes of each class word, which is a token and no term of the captions
    """

    checkpoint: Checkpoint | None
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

    def __init__(self, text: TextNetwork, dropout: float):
        super().__init__()
        self.network, self.config, self.dropout = text.bert, text.bert.config, dropout

    def states(self, batch: TextBatch) -> Tensor:
        """Last hidden states [B, L, D], with dropout in training."""
        states = batch.states
        if states is None:
            states = self.network(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
        return dropout(states, self.dropout, self.training)


class VdrTextOver(TextOver):
    """w = elu1p(max_i <ln(T h_i), P_v> + b_v), of unit length; T begins as the identity, P is the image side's."""

    def __init__(self, text: TextNetwork, dropout: float, rows: nn.Parameter):
        super().__init__(text, dropout)
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

    def __init__(self, text: TextNetwork, dropout: float, model: ModelSettings):
        super().__init__(text, dropout)
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

    def left_out(self, states: Tensor) -> Tensor | None:
        """The cells that a step of training leaves out, bool [B, 1 + grid^2]; None for none."""
        if not (self.training and self.settings.cells):
            return None
        left_out = torch.rand(states.shape[:2], device=states.device) < self.settings.cells
        left_out[:, 0] &= ~left_out.all(dim=1)  # one cell is always left, the mean
        return left_out


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
        pooled = project_max(self.head(states), self.proj, self.left_out(states))
        return normalize(elu1p(pooled + self.bias), dim=1)


class DenseImageOver(ImageOver):
    """v = W_2 gelu(W_1 mean_p s_p), of unit length."""

    def __init__(self, backbone: ImageBackbone, settings: PretrainedImage, model: ModelSettings):
        super().__init__(backbone, settings)
        self.head = VectorHead(backbone.width, model.hidden, model.dimensions)

    def forward(self, batch: ImageBatch) -> Tensor:
        """Vectors [B, D]."""
        return normalize(self.head(self.states(batch)[:, 0]), dim=1)


def vdr_sides(model: ModelSettings, networks: Networks) -> tuple[TextOver, ImageOver]:
    """VDR over pretrained networks: the sides share the rows of the vocabulary."""
    text, image = networks
    embeddings = text.bert.get_input_embeddings().weight.detach()[text.columns.tokens]
    images = VdrImageOver(image, cells_settings(model.image), embeddings)
    return VdrTextOver(text, model.text.dropout, images.proj), images


def dense_sides(model: ModelSettings, networks: Networks) -> tuple[TextOver, ImageOver]:
    """The dense twin over pretrained networks."""
    text = DenseTextOver(networks.text, model.text.dropout, model)
    return text, DenseImageOver(networks.image, cells_settings(model.image), model)


def cells_settings(image: AnyImage) -> PretrainedImage:
    """How a head reads the cells of images: of a network with random weights, every patch and their mean."""
    if isinstance(image, PretrainedImage):
        return image
    return PretrainedImage(checkpoint="", grid=image.resolution // image.patch_size)


def load_networks(model: ModelSettings, captions: Sequence[str], folder: Path) -> Networks:
    """The networks of a model, and the terms of the training captions; writes the tokenizer into a folder.

    Weights of networks without a checkpoint are drawn from the random state of torch.
    """
    text, image = model.text, model.image
    images = load_image_backbone(image.checkpoint) if isinstance(image, PretrainedImage) else fresh_images(image)
    names = image.class_names if model.lexical and isinstance(image, PretrainedImage) else None
    if names and images.classifier is None:
        raise UsageError(f"class_names {names}: {images.reference} has no classifier of its states")
    if isinstance(text, PretrainedText):
        return Networks(load_text_network(text, names, captions, folder), images)
    return Networks(fresh_texts(text, captions, folder), images)


def fresh_texts(settings: TextSettings, captions: Sequence[str], folder: Path) -> TextNetwork:
    """A BERT with random weights over the words of the training captions, which are the terms."""
    import transformers

    tokenizer = save_tokenizer(learn_words(captions, settings.words), folder, settings.max_length)
    bert = transformers.BertModel(bert_config(settings, len(tokenizer)), add_pooling_layer=False).eval()
    return TextNetwork(None, "", bert, tokenizer, columns_ascii(tokenizer, FIRST_WORD_ID), {})


def fresh_images(settings: ImageSettings) -> ImageBackbone:
    """A patch transformer with random weights."""
    shape = {key: value for key, value in settings.model_dump(mode="json").items() if value is not None}
    network = PatchTransformer(**shape)
    nn.init.normal_(network.positional_embedding, std=INITIAL_STD)
    return fresh_image_backbone(network, settings.resolution)


def bert_config(settings: TextSettings, tokens: int) -> Any:
    """The configuration of a BERT with random weights."""
    import transformers

    return transformers.BertConfig(
        vocab_size=tokens,
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=4 * settings.width,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        max_position_embeddings=settings.max_length,
    )


def network_digests(model: ModelSettings) -> dict[str, str]:
    """The digests of the networks that a model names, for the request of a run."""
    digests = {}
    if isinstance(model.text, PretrainedText):
        digests["text network"] = find_checkpoint(model.text.checkpoint).digest()
    if model.start:
        digests["start"] = find_checkpoint(model.start).digest()
    if isinstance(model.image, PretrainedImage):
        digests["image network"] = load_image_backbone(model.image.checkpoint).digest
        if names := model.image.class_names:
            read_class_names(Path(names))
            digests["class names"] = file_sha256(Path(names))
    return digests
