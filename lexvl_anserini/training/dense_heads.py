"""D2S and Joint: one lexical head over the vectors of a trained dense pair, which are computed once and stored.

The dense pair does not change and no step computes it: D2S reads its vectors, Joint the states before its last layer,
which Joint trains. Both sides of a `TowerPair` are one module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.cards import PACKAGED
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.d2s import D2SHead
from lexvl_anserini.encoders.dense_crossmodal import (
    HeadOf,
    hidden_of,
    last_layers,
    projection_of,
    text_folder,
    tokenizer_and_features,
    word_embeddings,
)
from lexvl_anserini.encoders.joint import JointHead
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.activations import log1p_relu
from lexvl_anserini.encoders.parts.dense import DenseTower
from lexvl_anserini.encoders.parts.features import MASK_LENGTH, Features
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns, columns_of_terms, load_tokenizer
from lexvl_anserini.errors import UsageError
from lexvl_anserini.files import write_json
from lexvl_anserini.training.batches import Batches, CaptionStore, Expansion, TrainingBatch
from lexvl_anserini.training.data import CaptionedImages, Tokens, tokenise
from lexvl_anserini.training.inputs import Details, ImageBatch, TextBatch
from lexvl_anserini.training.measuring import Validation
from lexvl_anserini.training.model_settings import HeadSettings
from lexvl_anserini.training.objectives.caption_terms import CaptionTerms
from lexvl_anserini.training.pairs import TowerPair
from lexvl_anserini.training.preparing import StageInputs, examples_of, listed_images, path_of
from lexvl_anserini.training.recipe import Recipe
from lexvl_anserini.training.saving import TERMS, copied, write_weights
from lexvl_anserini.training.splits import TRAINING, VALIDATION, Splits
from lexvl_anserini.training.stores import FeatureStore, StateStore, stored
from lexvl_anserini.training.words import learn_terms
from lexvl_anserini.vocabulary import Vocabulary

log = logging.getLogger(__name__)

# Images or texts of one forward pass, and the folder of the dense pair in a checkpoint.
PIECE, DENSE = 64, "dense_pair"


def numbers(batch: ImageBatch | TextBatch) -> Tensor:
    """The stored numbers of a batch, [B, D]."""
    values = batch.values if isinstance(batch, ImageBatch) else batch.states
    assert values is not None, "the vectors of the dense pair are stored"
    return values[:, 0]


class TrainableD2S(nn.Module):
    """w = log1p(relu(E LN(W u + b) + c)) of dense vectors u; E begin as the words' input embeddings."""

    def __init__(self, pair: Checkpoint, embeddings: Tensor):
        super().__init__()
        (matrix, _), _ = last_layers(pair)
        self.head = D2SHead(len(matrix), embeddings.shape[1], len(embeddings))
        with torch.no_grad():
            self.head.vocab_projector.weight.copy_(embeddings)
            self.head.vocab_projector.bias.zero_()

    def details(self, batch: ImageBatch | TextBatch) -> Details:
        """Weights [B, V] and dense vectors [B, D]."""
        dense = numbers(batch)
        return Details(log1p_relu(self.head.vocab_projector(self.head(dense))), dense=dense)

    def forward(self, batch: ImageBatch | TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        return self.details(batch).vectors


class TrainableJoint(nn.Module):
    """d = W h + b of unit length by modality, w = log1p(relu(E LN(W' d + b'))); W and b begin as the dense pair's."""

    def __init__(self, pair: Checkpoint, embeddings: Tensor):
        super().__init__()
        text, image = last_layers(pair)
        size, hidden = text[0].shape
        self.head = JointHead(hidden, size, embeddings.shape[1], len(embeddings), untied=False)
        with torch.no_grad():
            self.head.single_vocab_projector.weight.copy_(embeddings)
            for layer, (matrix, bias) in ((self.head.text_proj, text), (self.head.vision_proj, image)):
                layer.weight.copy_(matrix)
                layer.bias.copy_(bias)

    def details(self, batch: ImageBatch | TextBatch) -> Details:
        """Weights [B, V] and dense vectors [B, D]."""
        project = self.head.dense_image if isinstance(batch, ImageBatch) else self.head.dense_text
        dense = project(numbers(batch))
        return Details(log1p_relu(self.head.single_vocab_projector(self.head(dense))), dense=dense)

    def forward(self, batch: ImageBatch | TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        return self.details(batch).vectors


class DenseHead(NamedTuple):
    """A family: its head over a dense pair with the embeddings of the terms, and what of the pair the head reads."""

    make: Callable[[Checkpoint, Tensor], nn.Module]
    reads: HeadOf


DENSE_HEADS: Mapping[str, DenseHead] = {
    "d2s": DenseHead(TrainableD2S, projection_of),
    "joint": DenseHead(TrainableJoint, hidden_of),
}


@dataclass(frozen=True)
class HeadMaterial:
    """What all stages of a run share.

    model    of the recipe
    data     images and captions by role
    pair     the dense pair
    columns  the dimension of each token
    tokens   of the captions by role
    """

    model: HeadSettings
    data: Mapping[str, CaptionedImages]
    pair: Checkpoint
    columns: TokenColumns
    tokens: Mapping[str, Tokens]

    @classmethod
    def read(cls, recipe: Recipe, output: Path, data: Splits) -> HeadMaterial:
        """Chooses the terms, which are tokens of the dense pair, and tokenises the captions.

        Raises:
            UsageError: no term is a token.
        """
        model = recipe.model
        assert isinstance(model, HeadSettings)
        images = {role: items for role, items in data.items() if isinstance(items, CaptionedImages)}
        pair = find_checkpoint(model.pair)
        tokenizer = load_tokenizer(text_folder(pair))
        known = tokenizer.get_vocab()
        terms = [term for term in learn_terms(images[TRAINING].texts, model.least) if term in known]
        if not terms:
            raise UsageError(f"pair {model.pair}: no frequent word of the captions is a token of its texts")
        columns = columns_of_terms(tokenizer, Vocabulary(terms, "the terms of the captions"), model.pair)
        reader = TextReader(tokenizer, MASK_LENGTH)
        tokens = {role: tokenise(captioned.captions, reader) for role, captioned in images.items()}
        return cls(model, images, pair, columns, tokens)

    def make_pair(self, recipe: Recipe, device: torch.device) -> TowerPair:
        """The head as both sides of a pair; its new weights depend on the seed alone."""
        torch.manual_seed(recipe.seed)
        head = DENSE_HEADS[self.model.kind].make(self.pair, word_embeddings(self.pair)[self.columns.tokens])
        return TowerPair(head, head, recipe.stages[0].objective.temperature).to(device)

    def stage_inputs(self, recipe: Recipe, number: int, output: Path, pair: TowerPair) -> StageInputs:
        """The inputs of a stage; the first computes what the head reads of all images and captions."""
        stage, plan, device = recipe.stages[number], recipe.stages[number].optimisation, pair.log_temperature.device
        reads = DENSE_HEADS[self.model.kind].reads
        width = last_layers(self.pair)[0][0].shape[0 if reads is projection_of else 1]
        _, sides = tokenizer_and_features(Source(self.pair, device), self.pair, reads, width)
        captions, images = {}, {}
        for role, data in self.data.items():
            texts = stored_numbers(sides.text, width, data.texts, path_of(output, "texts", role, 0))
            found = stored_numbers(sides.image, width, data.images, path_of(output, "images", role, 0))
            states = StateStore(texts, np.arange(len(texts) + 1), device)
            captions[role] = CaptionStore(self.tokens[role], self.columns, device, states)
            images[role] = FeatureStore(found[:, None, None], device)
        batches = Batches(
            images[TRAINING],
            captions[TRAINING],
            plan.batch_size,
            plan.captions_per_image,
            recipe.seed,
            Expansion.of(recipe, number, len(images[TRAINING])),
        )
        validation = Validation(images[VALIDATION], captions[VALIDATION]) if VALIDATION in images else None
        names = any(auxiliary.name == "naming" for auxiliary in stage.auxiliaries)
        terms = CaptionTerms.of(self.tokens[TRAINING], self.columns, device) if names else None
        shown = VALIDATION if VALIDATION in images else TRAINING
        examples = examples_of(self.data[shown], images[shown], captions[shown])
        return StageInputs(batches, terms, validation, None, examples)

    def listed(self, batch: TrainingBatch) -> list[dict[str, Any]]:
        """The images of a batch with the captions that were drawn, to look at."""
        return listed_images(self.data[TRAINING], batch)

    def save(self, recipe: Recipe, output: Path, pair: TowerPair, folder: Path) -> None:
        """Writes the head in the layout of its reference, with the dense pair and the terms beside it."""
        name = self.pair.reference
        if name not in PACKAGED:
            name = copied(self.pair.folder, folder / DENSE)
        self.columns.vocabulary.write(folder / TERMS)
        state: dict[str, Any] = pair.encoder_q.head.state_dict()  # type: ignore[union-attr]
        write_weights(state, folder, getattr(torch, recipe.weights))
        about = {"checkpoint": name, "digest": self.pair.digest()}
        write_json(folder / "config.json", {"model_type": self.model.kind, "backbone": about, "terms": TERMS})


def stored_numbers(side: Features, width: int, inputs: Any, path: Path) -> np.ndarray:
    """float32 [n, width]: what a head reads of texts or images, computed once into a file."""
    tower = DenseTower(side.items, side.embed, width, normalise=False)

    def pieces() -> Iterator[np.ndarray]:
        log.info("%s: %d vectors of the dense pair", path.name, len(inputs))
        for start in range(0, len(inputs), PIECE):
            yield tower.features(inputs[start : start + PIECE], PIECE)

    return stored(path, (len(inputs), width), np.dtype(np.float32), pieces())
