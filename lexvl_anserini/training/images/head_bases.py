"""What a lexical head of D2S or Joint is trained over: a trained dense pair, or stored vectors and a vocabulary.

A dense pair computes the vectors of texts and images; the terms are frequent words of the captions. Stored vectors come
from the tables of `embeddings:`; each token of a masked-LM network (D2S) or of BLIP or ALBEF (Joint) is a term.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lexvl_anserini.data.corpora.embeddings import read_embeddings
from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.checkpoints.weights import read_weights
from lexvl_anserini.encoders.families.dense.dense_crossmodal import (
    HeadOf,
    last_layers,
    projection_of,
    text_folder,
    tokenizer_and_features,
    word_embeddings,
)
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.features import TextAndImage, columns_of_head, stored, tokenizer_of
from lexvl_anserini.encoders.parts.tokens import TokenColumns, columns_of_terms, load_tokenizer
from lexvl_anserini.ground.errors import CheckpointError, UsageError
from lexvl_anserini.ground.vocabulary import Vocabulary
from lexvl_anserini.training.images.captioned import CaptionedImages
from lexvl_anserini.training.saving import TERMS, copied
from lexvl_anserini.training.words import learn_terms

# The folder of the dense pair in a checkpoint.
DENSE = "dense_pair"

# A matrix [D, hidden] and a bias [D].
Layer = tuple[Tensor, Tensor]


class Start(NamedTuple):
    """The weights that a head begins with.

    width       numbers of a vector that the head reads
    embeddings  of the terms [V, W]
    bias        of the terms [V]; None for zeros
    norm        weight and bias [W] of the LayerNorm before the terms; None for ones and zeros
    layers      the last layers of texts and images, which Joint trains; None where there are none
    """

    width: int
    embeddings: Tensor
    bias: Tensor | None = None
    norm: Layer | None = None
    layers: tuple[Layer, Layer] | None = None


class HeadBase(Protocol):
    """What a head is trained over."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the captions."""
        ...

    @property
    def columns(self) -> TokenColumns:
        """The dimension of each token."""
        ...

    @property
    def start(self) -> Start:
        """The weights that the head begins with."""
        ...

    def digest(self) -> str:
        """SHA-256 (hex) of the weights."""
        ...

    def features(self, device: torch.device) -> TextAndImage:
        """What the head reads of texts and images."""
        ...

    def write(self, folder: Path) -> Mapping[str, Any]:
        """Writes what the encoder needs beside the head, and returns the entries of config.json."""
        ...


@dataclass(frozen=True)
class PairBase:
    """A trained dense pair.

    pair     its checkpoint
    reads    what of it the head reads
    columns  the terms
    """

    pair: Checkpoint
    reads: HeadOf
    tokenizer: Any
    columns: TokenColumns

    @classmethod
    def of(cls, name: str, reads: HeadOf, least: int, captions: Sequence[str]) -> PairBase:
        """Chooses the terms: words with at least `least` captions that are tokens of the pair.

        Raises:
            UsageError: there is none.
        """
        pair = find_checkpoint(name)
        tokenizer = load_tokenizer(text_folder(pair))
        known = tokenizer.get_vocab()
        terms = [term for term in learn_terms(captions, least) if term in known]
        if not terms:
            raise UsageError(f"pair {name}: no frequent word of the captions is a token of its texts")
        return cls(pair, reads, tokenizer, columns_of_terms(tokenizer, Vocabulary(terms, "the captions"), name))

    @cached_property
    def start(self) -> Start:
        """Terms begin as the input embeddings of their tokens, layers as those of the pair."""
        layers = last_layers(self.pair)
        size, hidden = layers[0][0].shape
        width = size if self.reads is projection_of else hidden
        return Start(width, word_embeddings(self.pair)[self.columns.tokens], layers=layers)

    def digest(self) -> str:
        """The digest of the pair."""
        return self.pair.digest()

    def features(self, device: torch.device) -> TextAndImage:
        """What the pair computes."""
        return tokenizer_and_features(Source(self.pair, device), self.pair, self.reads, self.start.width)[1]

    def write(self, folder: Path) -> Mapping[str, Any]:
        """The terms and, unless it is a packaged one, the pair."""
        name = self.pair.reference
        if name not in PACKAGED:
            name = copied(self.pair.folder, folder / DENSE)
        self.columns.vocabulary.write(folder / TERMS)
        return {"backbone": {"checkpoint": name, "digest": self.pair.digest()}, "terms": TERMS}


# The end of the name of the embeddings of words, and the names of the LayerNorm and of the bias of the words in
# DistilBERT's and in BERT's masked-LM head.
EMBEDDINGS = "embeddings.word_embeddings.weight"
NORMS = ("vocab_layer_norm", "cls.predictions.transform.LayerNorm")
BIASES = ("vocab_projector.bias", "cls.predictions.bias", "cls.predictions.decoder.bias")


@dataclass(frozen=True)
class VectorBase:
    """Stored vectors, and the checkpoint with the tokenizer and the first weights of the terms.

    words      a DistilBERT or BERT for D2S; a BLIP or ALBEF, which has the last layers too, for Joint
    start      see `Start`
    """

    words: Checkpoint
    tokenizer: Any
    columns: TokenColumns
    start: Start

    @classmethod
    def of(cls, kind: str, name: str, images: CaptionedImages) -> VectorBase:
        """The checkpoint of that name over the vectors of some images.

        Raises:
            CheckpointError: it has no embeddings of words or, for Joint, no last layers.
        """
        words = find_checkpoint(name)
        weights = read_weights(words.path)
        embeddings = next((value for key, value in weights.items() if key.endswith(EMBEDDINGS)), None)
        if embeddings is None:
            raise CheckpointError(f"{words.path}: no {EMBEDDINGS}; expected a BERT, a DistilBERT, a BLIP or an ALBEF")
        tokenizer = tokenizer_of(Source(words, torch.device("cpu")), words, len(embeddings))
        width = read_embeddings(images.images[:1]).shape[1]
        if kind == "joint":
            start = Start(width, embeddings.float(), layers=last_layers_of(words, weights))
        else:
            bias = next((weights[key].float() for key in BIASES if key in weights), None)
            norm = next((key for key in NORMS if f"{key}.weight" in weights), None)
            values = (weights[f"{norm}.weight"].float(), weights[f"{norm}.bias"].float()) if norm else None
            start = Start(width, embeddings.float(), bias, values)
        return cls(words, tokenizer, columns_of_head(tokenizer, len(embeddings), specials=True), start)

    def digest(self) -> str:
        """The digest of the checkpoint."""
        return self.words.digest()

    def features(self, device: torch.device) -> TextAndImage:
        """What the tables have."""
        return TextAndImage(stored(self.start.width, device), stored(self.start.width, device))

    def write(self, folder: Path) -> Mapping[str, Any]:
        """The tokenizer."""
        self.tokenizer.save_pretrained(folder)
        return {"dense_size": self.start.width}


def last_layers_of(words: Checkpoint, weights: Mapping[str, Tensor]) -> tuple[Layer, Layer]:
    """The projections of texts and of images of a BLIP or ALBEF.

    Raises:
        CheckpointError: there are none.
    """
    layers = []
    for name in ("text_proj", "vision_proj"):
        if f"{name}.weight" not in weights or f"{name}.bias" not in weights:
            raise CheckpointError(f"{words.path}: no {name}; Joint begins with the projections of a BLIP or ALBEF")
        layers.append((weights[f"{name}.weight"].float(), weights[f"{name}.bias"].float()))
    return layers[0], layers[1]
