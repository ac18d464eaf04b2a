"""Batches as a pure function of seed and step: a resumed run draws the same batches as an uninterrupted run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import torch

from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.training.common.inputs import ImageBatch, TextBatch, Tokens
from lexvl_anserini.training.common.stores import ImageStore, StateStore
from lexvl_anserini.training.objectives.joint_losses import mask_probability
from lexvl_anserini.training.recipe import Recipe


@dataclass(frozen=True)
class TrainingBatch:
    """Items of the training split: images and, in each round, one caption per image; or queries with passages.

    items      int64 [B], positions of the images or queries in the training split
    documents  the images; or the passages, one positive per query, then the hard negatives of each query in turn
    texts      int64 [rounds, B], positions of the captions among all captions, or of the queries
    rounds     one for each caption that is drawn per image, or the queries; each [B, L], in the order of the items
    passages   int64 [M], positions of the documents among all passages; None of images
    taught     float32 [B, B (1 + K)], a teacher's scores of the passages for each query; None without a teacher
    expanded   False: the texts of this batch keep only their own tokens (see `Expansion`)
    """

    items: np.ndarray
    documents: ImageBatch | TextBatch
    texts: np.ndarray
    rounds: tuple[TextBatch, ...]
    passages: np.ndarray | None = None
    taught: torch.Tensor | None = None
    expanded: bool = True


@dataclass(frozen=True)
class Expansion:
    """D2S' probabilistic expansion control: whether the texts of a batch are expanded, drawn once per batch.

    rule       always, never, or controlled: rarely in the first epochs of a stage, always in its last
    seed       of the draws
    first      steps before the stage
    per_epoch  steps of an epoch
    epochs     of the stage
    """

    rule: Literal["always", "never", "controlled"] = "always"
    seed: int = 0
    first: int = 0
    per_epoch: int = 1
    epochs: int = 1

    @classmethod
    def of(cls, recipe: Recipe, number: int, items: int) -> Expansion:
        """That of a stage with so many training items."""
        plan = recipe.stages[number].optimisation
        first, per_epoch = sum(stage.optimisation.steps for stage in recipe.stages[:number]), items // plan.batch_size
        epochs = -(-plan.steps // per_epoch)
        return cls(recipe.stages[number].expansion, recipe.seed, first, per_epoch, epochs)

    def __call__(self, step: int) -> bool:
        """Whether the batch of a step, counted from 0 over all stages, is expanded."""
        if self.rule != "controlled":
            return self.rule == "always"
        epoch = 1 + (step - self.first) // self.per_epoch
        draw = np.random.default_rng((self.seed, 5, step)).random()
        return bool(draw >= mask_probability(epoch, self.epochs))


class AnyBatches(Protocol):
    """The batches of a stage."""

    def __len__(self) -> int:
        """The number of items of the training split."""
        ...

    def __getitem__(self, step: int) -> TrainingBatch:
        """The batch of a step, counted from 0 over all stages; a function of seed and step alone."""
        ...


@dataclass(frozen=True)
class CaptionStore:
    """The captions of a split, ready for batches.

    tokens   of all captions
    columns  the dimension of each token
    device   of the batches
    states   of a frozen network; None where it computes them at each step
    """

    tokens: Tokens
    columns: TokenColumns
    device: torch.device
    states: StateStore | None = None

    def __len__(self) -> int:
        return len(self.tokens.ids)

    def batch(self, captions: np.ndarray) -> TextBatch:
        """The captions at some positions [B] as one batch, padded to the longest of them."""
        states = None if self.states is None else self.states[captions]
        return text_batch(self.tokens, captions, self.columns, self.device)._replace(states=states)


class Batches:
    """Draws batches of images with captions.

    Args:
        images: of a split.
        captions: of these images.
        size: images per batch; the remainder of an epoch is skipped.
        rounds: number of captions drawn per image and batch.
        seed: of all draws.
        expansion: whether the texts of a batch are expanded.

    Raises:
        UsageError: the split has fewer images than one batch.
    """

    def __init__(
        self,
        images: ImageStore,
        captions: CaptionStore,
        size: int,
        rounds: int,
        seed: int,
        expansion: Expansion = Expansion(),  # noqa: B008 (frozen)
    ):
        if len(images) < size:
            raise UsageError(f"batch_size {size} is more than the {len(images)} training images")
        self.images, self.captions, self.size, self.rounds, self.seed = images, captions, size, rounds, seed
        self.per_epoch, self.expansion = len(images) // size, expansion
        # Steps run through few epochs at a time, so the orders of two epochs are enough to keep.
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, step: int) -> TrainingBatch:
        """The batch of a step, counted from 0 over all stages."""
        epoch, number = divmod(step, self.per_epoch)
        chosen = np.sort(self._order(epoch)[number * self.size : (number + 1) * self.size])
        draws = np.random.default_rng((self.seed, 1, step))
        inputs = self.images.views(chosen, draws)
        of_image = self.captions.tokens.first
        first, counts = of_image[chosen], np.diff(of_image)[chosen]
        # Distinct captions of an image where it has enough of them.
        offsets = [draws.permutation(count)[np.arange(self.rounds) % count] for count in counts]
        captions = (first[:, None] + np.stack(offsets)).T  # [rounds, B]
        rounds = tuple(self.captions.batch(row) for row in captions)
        return TrainingBatch(chosen, inputs, captions, rounds, expanded=self.expansion(step))

    def _draw_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.images))


def text_batch(tokens: Tokens, captions: np.ndarray, columns: TokenColumns, device: torch.device) -> TextBatch:
    """The captions at some positions [B] as one batch, padded to the longest of them."""
    lengths = tokens.lengths[captions]
    ids = tokens.ids[captions][:, : int(lengths.max())]
    attention = np.arange(ids.shape[1]) < lengths[:, None]
    own = np.where(attention, columns.of_token[ids], -1)
    bag = np.zeros((len(ids), len(columns.vocabulary) + 1), dtype=bool)
    np.put_along_axis(bag, own, True, axis=1)  # -1 is the last column, which the batch drops
    return TextBatch(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(attention.astype(np.int64)).to(device),
        torch.from_numpy(bag[:, :-1]).to(device),
    )
