"""Batches as a pure function of seed and step, so that a resumed run draws what an undisturbed one would have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.encoders.parts.tokens import Columns
from lexvl_anserini.encoders.parts.vision import Pixels
from lexvl_anserini.errors import UsageError
from lexvl_anserini.training.data import Tokens, named_terms
from lexvl_anserini.training.pairs import TextBatch
from lexvl_anserini.training.recipe import Augmentation


@dataclass(frozen=True)
class TrainingBatch:
    """Images and, for each round of captions, one caption per image in the same order.

    pixels     float32 [B, 3, R, R]
    rounds     as many as captions are drawn per image; each [B, L]
    named      float32 [B, V], the share of all captions of an image that hold a term; None unless asked for
    frequency  float32 [V], the mean of `named` over all images; None with it
    """

    pixels: Tensor
    rounds: tuple[TextBatch, ...]
    named: Tensor | None = None
    frequency: Tensor | None = None


class Batches:
    """Draws batches from pixels and tokens.

    Args:
        pixels: uint8 [n, R, R, 3].
        tokens: of the captions of these n images.
        columns: which dimension a token stands for.
        prepare: normalises pixels.
        size: images per batch; an epoch's remainder is left out.
        captions: per image and batch.
        augmentation: random views.
        seed: of everything drawn.
        device: where batches go.
        naming: give the terms of all captions too.

    Raises:
        UsageError: fewer images than a batch holds.
    """

    def __init__(
        self,
        pixels: np.ndarray,
        tokens: Tokens,
        columns: Columns,
        prepare: Pixels,
        size: int,
        captions: int,
        augmentation: Augmentation,
        seed: int,
        device: torch.device,
        naming: bool = False,
    ):
        if len(pixels) < size:
            raise UsageError(f"batch_size {size} is more than the {len(pixels)} training images")
        self.pixels, self.tokens, self.columns, self.prepare = pixels, tokens, columns, prepare
        self.size, self.captions, self.augmentation, self.seed, self.device = size, captions, augmentation, seed, device
        self.named = self.frequency = None
        if naming:
            self.named = named_terms(tokens, columns)
            self.frequency = torch.from_numpy(np.asarray(self.named.mean(axis=0), dtype=np.float32)[0]).to(device)
        self.per_epoch = len(pixels) // size
        # A few epochs at most are asked for in turn; orders are made again rather than kept.
        self._order = lru_cache(maxsize=2)(self._make_order)

    def __getitem__(self, step: int) -> TrainingBatch:
        """The batch of a step, counted from 0."""
        epoch, number = divmod(step, self.per_epoch)
        chosen = np.sort(self._order(epoch)[number * self.size : (number + 1) * self.size])
        draws = np.random.default_rng((self.seed, 1, step))
        crops = torch.from_numpy(self.pixels[chosen]).to(self.device)
        pixels = augment(self.prepare.normalise(crops), self.augmentation, draws)
        first, counts = self.tokens.first[chosen], np.diff(self.tokens.first)[chosen]
        # Distinct captions of an image, as long as it has so many.
        offsets = [draws.permutation(count)[np.arange(self.captions) % count] for count in counts]
        told = first[:, None] + np.stack(offsets)  # [B, rounds]
        rounds = tuple(self.texts(told[:, column]) for column in range(self.captions))
        named = None if self.named is None else torch.from_numpy(self.named[chosen].toarray()).to(self.device)
        return TrainingBatch(pixels, rounds, named, self.frequency)

    def texts(self, captions: np.ndarray) -> TextBatch:
        """Some captions [B] as one batch, padded to the longest among them."""
        return text_batch(self.tokens, captions, self.columns, self.device)

    def _make_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.pixels))


def text_batch(tokens: Tokens, captions: np.ndarray, columns: Columns, device: torch.device) -> TextBatch:
    """Some captions [B] as one batch, padded to the longest among them."""
    lengths = tokens.lengths[captions]
    ids = tokens.ids[captions][:, : int(lengths.max())]
    attention = np.arange(ids.shape[1]) < lengths[:, None]
    own = np.where(attention, columns.of_token[ids], -1)
    bag = np.zeros((len(ids), len(columns.vocabulary) + 1), dtype=bool)
    np.put_along_axis(bag, own, True, axis=1)  # -1 is the last column, which is dropped
    return TextBatch(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(attention.astype(np.int64)).to(device),
        torch.from_numpy(bag[:, :-1]).to(device),
    )


def augment(pixels: Tensor, augmentation: Augmentation, draws: np.random.Generator) -> Tensor:
    """A random view of each picture [B, 3, R, R]: cut out, moved, mirrored; bilinear, the border repeated."""
    if augmentation == Augmentation():
        return pixels
    batch, _, side, _ = pixels.shape
    zoom = draws.uniform(augmentation.zoom, 1.0, batch)
    room = (1 - zoom) + 2 * augmentation.shift / side  # of a coordinate that runs from -1 to 1
    moved = draws.uniform(-1, 1, (2, batch)) * room
    mirrored = np.where(augmentation.flip & (draws.random(batch) < 0.5), -1.0, 1.0)
    theta = np.zeros((batch, 2, 3), dtype=np.float32)
    theta[:, 0, 0], theta[:, 1, 1] = zoom * mirrored, zoom
    theta[:, 0, 2], theta[:, 1, 2] = moved
    grid = torch.nn.functional.affine_grid(
        torch.from_numpy(theta).to(pixels.device), list(pixels.shape), align_corners=False
    )
    return torch.nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
