"""D2S and Joint: one lexical head over dense vectors, which are computed once and stored.

A dense pair does not change and no step computes it: D2S reads its vectors, Joint the states before its last layer,
which Joint trains. Both sides of a `TowerPair` are one module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.families.d2s import D2SHead
from lexvl_anserini.encoders.families.dense.dense_crossmodal import HeadOf, hidden_of, projection_of
from lexvl_anserini.encoders.families.joint import JointHead
from lexvl_anserini.encoders.parts.features import MASK_LENGTH, Features
from lexvl_anserini.encoders.parts.pooling import log1p_relu
from lexvl_anserini.encoders.parts.tokens import TextReader, TokenColumns
from lexvl_anserini.encoders.parts.towers import DenseTower
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.training.common.batches import Batches, CaptionStore, Expansion, TrainingBatch
from lexvl_anserini.training.common.inputs import Details, ImageBatch, TextBatch, Tokens
from lexvl_anserini.training.common.stage import StageInputs
from lexvl_anserini.training.common.stores import FeatureStore, StateStore
from lexvl_anserini.training.common.tower_pair import TowerPair
from lexvl_anserini.training.images.captioned import CaptionedImages, tokenise
from lexvl_anserini.training.images.head_bases import HeadBase, PairBase, Start, VectorBase
from lexvl_anserini.training.images.measuring import Validation, examples_of, listed_images
from lexvl_anserini.training.model_settings import HeadSettings
from lexvl_anserini.training.objectives.caption_terms import CaptionTerms
from lexvl_anserini.training.recipe import Recipe
from lexvl_anserini.training.saving import write_weights
from lexvl_anserini.training.splits import TRAINING, VALIDATION, Sources

# Images or texts of one forward pass.
PIECE = 64


def numbers(batch: ImageBatch | TextBatch) -> Tensor:
    """The stored numbers of a batch, [B, D]."""
    values = batch.values if isinstance(batch, ImageBatch) else batch.states
    assert values is not None, "the vectors of the dense pair are stored"
    return values[:, 0]


class TrainableD2S(nn.Module):
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

    def details(self, batch: ImageBatch | TextBatch) -> Details:
        """Weights [B, V] and dense vectors [B, D]."""
        dense = numbers(batch)
        return Details(log1p_relu(self.head.vocab_projector(self.head(dense))), dense=dense)

    def forward(self, batch: ImageBatch | TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        return self.details(batch).vectors


class TrainableJoint(nn.Module):
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

    def details(self, batch: ImageBatch | TextBatch) -> Details:
        """Weights [B, V] and dense vectors [B, D]."""
        project = self.head.dense_image if isinstance(batch, ImageBatch) else self.head.dense_text
        dense = project(numbers(batch))
        return Details(log1p_relu(self.head.single_vocab_projector(self.head(dense))), dense=dense)

    def forward(self, batch: ImageBatch | TextBatch) -> Tensor:
        """Weights before the sparsifier, [B, V]."""
        return self.details(batch).vectors


class DenseHead(NamedTuple):
    """A family: its head from its first weights, and what of a dense pair the head reads."""

    make: Callable[[Start], nn.Module]
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
    base     what the head is trained over
    tokens   of the captions by role
    sources  which `data` is of
    """

    model: HeadSettings
    data: Mapping[str, CaptionedImages]
    base: HeadBase
    tokens: Mapping[str, Tokens]
    sources: Sources

    @classmethod
    def read(cls, recipe: Recipe, output: Path, sources: Sources) -> HeadMaterial:
        """Reads the dense pair or the vocabulary, and tokenises the captions.

        Raises:
            UsageError: no term is a token.
            CheckpointError: the checkpoint lacks what the head begins with.
        """
        model, images = recipe.model, sources.images
        assert isinstance(model, HeadSettings)
        base: HeadBase
        if model.pair:
            reads = DENSE_HEADS[model.kind].reads
            base = PairBase.of(model.pair, reads, model.least, images[TRAINING].texts)
        else:
            base = VectorBase.of(model.kind, str(model.words), images[TRAINING])
        reader = TextReader(base.tokenizer, MASK_LENGTH)
        tokens = {role: tokenise(captioned.captions, reader) for role, captioned in images.items()}
        return cls(model, images, base, tokens, sources)

    @property
    def columns(self) -> TokenColumns:
        """The dimension of each token."""
        return self.base.columns

    def make_pair(self, recipe: Recipe, device: torch.device) -> TowerPair:
        """The head as both sides of a pair; its new weights depend on the seed alone."""
        torch.manual_seed(recipe.seed)
        head = DENSE_HEADS[self.model.kind].make(self.base.start)
        return TowerPair(head, head, recipe.stages[0].objective.temperature).to(device)

    def stage_inputs(self, recipe: Recipe, number: int, pair: TowerPair) -> StageInputs:
        """The inputs of a stage; the first computes what the head reads of all images and captions."""
        stage, plan, device = recipe.stages[number], recipe.stages[number].optimisation, pair.log_temperature.device
        sides, width = self.base.features(device), self.base.start.width
        captions, images = {}, {}
        for role, data in self.data.items():
            made_of = [self.sources.digests[role], self.base.digest(), self.model.kind]
            texts = self.numbers(sides.text, width, f"texts-{role}", data.texts, made_of)
            numbers = self.numbers(sides.image, width, f"images-{role}", data.images, made_of)
            states = StateStore(texts, np.arange(len(texts) + 1), device)
            captions[role] = CaptionStore(self.tokens[role], self.columns, device, states)
            images[role] = FeatureStore(numbers[:, None, None], device)
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

    def numbers(
        self, side: Features, width: int, what: str, inputs: Sequence[str], made_of: Sequence[str]
    ) -> np.ndarray:
        """float32 [n, width]: what the head reads of texts or images, computed once into a file."""
        tower = DenseTower(side.items, side.embed, width, normalise=False)

        def pieces() -> Iterator[np.ndarray]:
            for start in range(0, len(inputs), PIECE):
                yield tower.features(inputs[start : start + PIECE], PIECE)

        return self.sources.cache.array(what, made_of, (len(inputs), width), np.dtype(np.float32), pieces())

    def listed(self, batch: TrainingBatch) -> list[dict[str, Any]]:
        """The images of a batch with the captions that were drawn, to look at."""
        return listed_images(self.data[TRAINING], batch)

    def save(self, recipe: Recipe, pair: TowerPair, folder: Path) -> None:
        """Writes the head in the layout of its reference, with what its encoder needs beside it."""
        about = self.base.write(folder)
        state: dict[str, Any] = pair.encoder_q.head.state_dict()  # type: ignore[union-attr]
        write_weights(state, folder, getattr(torch, recipe.weights))
        write_json(folder / "config.json", {"model_type": self.model.kind, **about})
