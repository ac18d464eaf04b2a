"""D2S and Joint: one lexical head over dense vectors, which are computed once and stored, as both sides of a pair.

It reads a dense pair (D2S its vectors, Joint the states before its last layer), whose terms are frequent words of the
captions; or stored vectors, with each token of a masked-LM network (D2S), of BLIP or of ALBEF (Joint) as a term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.data.corpora.embeddings import read_embeddings
from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint, resolve_inside
from lexvl_anserini.encoders.checkpoints.weights import read_weights, take_below
from lexvl_anserini.encoders.families import dense_crossmodal
from lexvl_anserini.encoders.families.dense_heads import D2SHead, JointHead
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts import features
from lexvl_anserini.encoders.parts.pretrained import load_pretrained_bert, read_entry
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, load_tokenizer, make_term_columns
from lexvl_anserini.encoders.parts.towers import DenseTower, log1p_relu
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.records import Vocabulary
from lexvl_plugins.train.common import tower_pair
from lexvl_plugins.train.common.learner import StageInputs
from lexvl_plugins.train.images.captioned import CaptionedImages, FeatureStore
from lexvl_plugins.train.images.checkpoints import TERMS, copy_network
from lexvl_plugins.train.images.material import make_batches, make_inputs, tokenise
from lexvl_plugins.train.model_settings import HeadSettings
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.run_folder import write_weights
from lexvl_plugins.train.splits import TRAINING, Sources
from lexvl_plugins.train.words import learn_terms

# The folder of the dense pair in a checkpoint.
DENSE = "dense_pair"
# Images or texts of one forward pass.
PIECE = 64

# A matrix [D, hidden] and a bias [D].
Layer = tuple[Tensor, Tensor]


class Start(NamedTuple):
    """The weights that a head begins with: embeddings [V, W] and bias [V] of terms, a norm's weight and bias [W].

    The width is that of the vectors that the head reads; layers are the last of texts and images, which Joint trains.
    """

    width: int
    embeddings: Tensor
    bias: Tensor | None = None
    norm: Layer | None = None
    layers: tuple[Layer, Layer] | None = None


@dataclass(frozen=True)
class PairBase:
    """A trained dense pair, over which a head is trained, and what of it the head reads."""

    checkpoint: Checkpoint
    reads: dense_crossmodal.HeadOf
    tokenizer: Any
    columns: TokenColumns

    @classmethod
    def read(cls, name: str, reads: dense_crossmodal.HeadOf, least: int, captions: Sequence[str]) -> PairBase:
        """Chooses the terms: words with at least `least` captions that are tokens of the pair."""
        pair = find_checkpoint(name)
        entry = read_entry(pair, pair.config(), "encoder_q", (dense_crossmodal.TEXT_TYPE,))
        folder = resolve_inside(pair.folder, str(entry.get("model_id")), f"{pair.folder}/config.json")
        tokenizer = load_tokenizer(folder)
        known = tokenizer.get_vocab()
        terms = [term for term in learn_terms(captions, least) if term in known]
        if not terms:
            raise UsageError(f"pair {name}: no frequent word of the captions is a token of its texts")
        return cls(pair, reads, tokenizer, make_term_columns(tokenizer, Vocabulary(terms, "the captions"), name))

    @cached_property
    def start(self) -> Start:
        """Terms begin as the input embeddings of their tokens, layers as those of the pair."""
        layers = read_last_layers(self.checkpoint)
        size, hidden = layers[0][0].shape
        width = size if self.reads is dense_crossmodal.build_projection else hidden
        return Start(width, read_word_embeddings(self.checkpoint)[self.columns.tokens], layers=layers)

    def make_features(self, device: torch.device) -> features.TextAndImage:
        """What the pair computes of texts and images."""
        source = Source(self.checkpoint, device)
        return dense_crossmodal.load_tokenizer_and_features(source, self.checkpoint, self.reads, self.start.width)[1]

    def write(self, folder: Path) -> Mapping[str, Any]:
        """Writes the terms and, unless it is a packaged one, the pair; returns entries of config.json."""
        name = self.checkpoint.reference
        if name not in PACKAGED:
            name = copy_network(self.checkpoint.folder, folder / DENSE)
        self.columns.vocabulary.write(folder / TERMS)
        return {"backbone": {"checkpoint": name, "digest": self.checkpoint.digest()}, "terms": TERMS}


# The end of the name of the embeddings of words, and the names of the LayerNorm and of the bias of the words in
# DistilBERT's and in BERT's masked-LM head.
EMBEDDINGS = "embeddings.word_embeddings.weight"
NORMS = ("vocab_layer_norm", "cls.predictions.transform.LayerNorm")
BIASES = ("vocab_projector.bias", "cls.predictions.bias", "cls.predictions.decoder.bias")


@dataclass(frozen=True)
class VectorBase:
    """Stored vectors, and a DistilBERT or BERT (D2S), or a BLIP or ALBEF (Joint), with tokenizer and first weights."""

    checkpoint: Checkpoint
    tokenizer: Any
    columns: TokenColumns
    start: Start

    @classmethod
    def read(cls, kind: str, name: str, images: CaptionedImages) -> VectorBase:
        """The checkpoint of that name over the vectors of some images."""
        words = find_checkpoint(name)
        weights = read_weights(words.path)
        # A published BLIP has the average of its text network too, under a longer name.
        named = min((key for key in weights if key.endswith(EMBEDDINGS)), key=len, default=None)
        if named is None:
            raise CheckpointError(f"{words.path}: no {EMBEDDINGS}; expected a BERT, a DistilBERT, a BLIP or an ALBEF")
        embeddings = weights[named]
        tokenizer = features.load_own_tokenizer(Source(words, torch.device("cpu")), words, len(embeddings))
        width = read_embeddings(images.images[:1]).shape[1]

        def pick(layer: str) -> Layer:
            if not weights.keys() >= {f"{layer}.weight", f"{layer}.bias"}:
                raise CheckpointError(f"{words.path}: no {layer}; Joint begins with the projections of a BLIP or ALBEF")
            return weights[f"{layer}.weight"].float(), weights[f"{layer}.bias"].float()

        if kind == "joint":
            layers = pick("text_proj"), pick("vision_proj")
            if width != layers[0][0].shape[1]:
                raise UsageError(
                    f"words {name}: text_proj reads {layers[0][0].shape[1]} numbers, the stored vectors have {width}; "
                    "name those before the projection: embeddings:<folder>,before_proj_blip (or _albef)"
                )
            start = Start(width, embeddings.float(), layers=layers)
        else:
            bias = next((weights[key].float() for key in BIASES if key in weights), None)
            norm = next((key for key in NORMS if f"{key}.weight" in weights), None)
            start = Start(width, embeddings.float(), bias, pick(norm) if norm else None)
        return cls(words, tokenizer, features.make_head_columns(tokenizer, len(embeddings), specials=True), start)

    def make_features(self, device: torch.device) -> features.TextAndImage:
        """What the tables have of texts and images."""
        sides = [features.make_stored(self.start.width, device) for _ in range(2)]
        return features.TextAndImage(*sides)

    def write(self, folder: Path) -> Mapping[str, Any]:
        """Writes the tokenizer, and returns entries of config.json."""
        self.tokenizer.save_pretrained(folder)
        return {"dense_size": self.start.width}


def read_numbers(batch: tower_pair.ImageBatch | tower_pair.TextBatch) -> Tensor:
    """The stored numbers of a batch, [B, D]."""
    values = batch.values if isinstance(batch, tower_pair.ImageBatch) else batch.states
    assert values is not None, "the vectors of the dense pair are stored"
    return values[:, 0]


class TrainableD2S(tower_pair.DetailedSide):
    """w = log1p(relu(E LN(W u + b) + c)) of dense vectors u; E, LN and c begin as those of the words."""

    def __init__(self, start: Start):
        super().__init__()
        self.head = D2SHead(start.width, start.embeddings.shape[1], len(start.embeddings))
        with torch.no_grad():
            self.head.vocab_projector.weight.copy_(start.embeddings)
            self.head.vocab_projector.bias.copy_(start.bias if start.bias is not None else torch.zeros(()))
            if start.norm:
                weight, bias = start.norm
                self.head.vocab_layer_norm.weight.copy_(weight)
                self.head.vocab_layer_norm.bias.copy_(bias)

    def compute(self, batch: tower_pair.ImageBatch | tower_pair.TextBatch) -> tower_pair.Details:
        """Weights [B, V] and dense vectors [B, D]."""
        dense = read_numbers(batch)
        return tower_pair.Details(log1p_relu(self.head.vocab_projector(self.head(dense))), dense=dense)


class TrainableJoint(tower_pair.DetailedSide):
    """d = W h + b of unit length by modality, w = log1p(relu(E LN(W' d + b'))); W and b begin as the dense pair's."""

    def __init__(self, start: Start):
        super().__init__()
        assert start.layers is not None, "Joint trains the last layers"
        text, image = start.layers
        size, hidden = text[0].shape
        self.head = JointHead(hidden, size, start.embeddings.shape[1], len(start.embeddings), untied=False)
        with torch.no_grad():
            self.head.single_vocab_projector.weight.copy_(start.embeddings)
            for layer, (matrix, bias) in ((self.head.text_proj, text), (self.head.vision_proj, image)):
                layer.weight.copy_(matrix)
                layer.bias.copy_(bias)

    def compute(self, batch: tower_pair.ImageBatch | tower_pair.TextBatch) -> tower_pair.Details:
        """Weights [B, V] and dense vectors [B, D]."""
        project = self.head.dense_image if isinstance(batch, tower_pair.ImageBatch) else self.head.dense_text
        dense = project(read_numbers(batch))
        return tower_pair.Details(log1p_relu(self.head.single_vocab_projector(self.head(dense))), dense=dense)


# By family: its head from its first weights, and what of a dense pair the head reads.
DENSE_HEADS: Mapping[str, tuple[Callable[[Start], nn.Module], dense_crossmodal.HeadOf]] = {
    "d2s": (TrainableD2S, dense_crossmodal.build_projection),
    "joint": (TrainableJoint, dense_crossmodal.build_hidden),
}


@dataclass(frozen=True)
class HeadMaterial:
    """What all stages of a run share: what the head is trained over, and images with captions, tokenised, by role."""

    model: HeadSettings
    data: Mapping[str, CaptionedImages]
    base: PairBase | VectorBase
    captions: Mapping[str, tower_pair.TextStore]
    sources: Sources

    @classmethod
    def read(cls, recipe: Recipe, output: Path, sources: Sources) -> HeadMaterial:
        """Reads the dense pair or the vocabulary, and tokenises the captions."""
        model, images = recipe.model, sources.images
        assert isinstance(model, HeadSettings)
        base: PairBase | VectorBase
        if model.pair:
            _, reads = DENSE_HEADS[model.kind]
            base = PairBase.read(model.pair, reads, model.least, images[TRAINING].texts)
        else:
            base = VectorBase.read(model.kind, str(model.words), images[TRAINING])
        captions = tokenise(images, TextReader(base.tokenizer, features.MASK_LENGTH), base.columns)
        return cls(model, images, base, captions, sources)

    @property
    def columns(self) -> TokenColumns:
        """The dimension of each token."""
        return self.base.columns

    def make_pair(self, recipe: Recipe, device: torch.device) -> tower_pair.TowerPair:
        """The head as both sides of a pair; its new weights depend on the seed alone."""
        torch.manual_seed(recipe.seed)
        start = self.base.start
        if self.model.head == "random":
            rows = nn.init.xavier_uniform_(torch.empty_like(start.embeddings))
            start = start._replace(embeddings=rows, bias=None, norm=None)
        head = DENSE_HEADS[self.model.kind][0](start)
        return tower_pair.TowerPair(head, head, recipe.stages[0].objective.temperature).to(device)

    def make_stage_inputs(self, recipe: Recipe, number: int, pair: tower_pair.TowerPair) -> StageInputs:
        """The inputs of a stage; the first computes what the head reads of all images and captions."""
        device = pair.log_temperature.device
        sides, width = self.base.make_features(device), self.base.start.width
        captions, images = {}, {}
        for role, data in self.data.items():
            made_of = [self.sources.digests[role], self.base.checkpoint.digest(), self.model.kind]
            texts = self.compute_numbers(sides.text, width, f"texts-{role}", data.texts, made_of)
            states = tower_pair.StateStore(texts, np.arange(len(texts) + 1), device)
            captions[role] = replace(self.captions[role], device=device, states=states)
            numbers = self.compute_numbers(sides.image, width, f"images-{role}", data.images, made_of)
            images[role] = FeatureStore(numbers[:, None, None], device)
        batches = make_batches(recipe, number, self.data[TRAINING], images, captions)
        return make_inputs(batches, self.data, images, captions)

    def compute_numbers(
        self, side: features.Features, width: int, what: str, inputs: Sequence[str], made_of: Sequence[str]
    ) -> np.ndarray:
        """float32 [n, width]: what the head reads of texts or images, computed once into a file."""
        tower = DenseTower(side.items, side.embed, width, normalise=False)
        starts = range(0, len(inputs), PIECE)
        pieces = (tower.features(inputs[start : start + PIECE], PIECE) for start in starts)
        return self.sources.cache.store_array(what, made_of, (len(inputs), width), np.dtype(np.float32), pieces)

    def save(self, recipe: Recipe, pair: tower_pair.TowerPair, folder: Path) -> None:
        """Writes the head in the layout of its reference, with what its encoder needs beside it."""
        entries = self.base.write(folder)
        state: dict[str, Any] = pair.encoder_q.head.state_dict()  # type: ignore[union-attr]
        write_weights(state, folder, getattr(torch, recipe.weights))
        write_json(folder / "config.json", {"model_type": self.model.kind, **entries})


def read_last_layers(checkpoint: Checkpoint) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The last layer of texts and of images, from `build_hidden` to the vector: matrix [D, hidden] and bias [D]."""
    weights, layers = read_weights(checkpoint.folder), []
    for side in ("encoder_q", "encoder_p"):
        matrix = weights.get(f"{side}.head.2.weight", weights.get(f"{side}.proj"))
        if matrix is None or matrix.dim() != 2:
            raise CheckpointError(f"{checkpoint.folder}: {side} has no last layer (head.2.weight or proj)")
        bias = weights.get(f"{side}.head.2.bias", torch.zeros(len(matrix)))
        layers.append((matrix.float(), bias.float()))
    return layers[0], layers[1]


def read_word_embeddings(checkpoint: Checkpoint) -> Tensor:
    """The input embeddings of the texts' BERT, [tokens, width]."""
    entry = read_entry(checkpoint, checkpoint.config(), "encoder_q", (dense_crossmodal.TEXT_TYPE,))
    side_weights = take_below(read_weights(checkpoint.folder), "encoder_q.bert_model.")
    whole = load_pretrained_bert(checkpoint, entry, side_weights) if "backbone" in entry else side_weights
    return whole["embeddings.word_embeddings.weight"].float()
