"""Batches as a pure function of seed and step: a resumed run draws the same batches as an uninterrupted run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.encoders.parts.vision import Pixels
from lexvl_anserini.errors import UsageError
from lexvl_anserini.training.data import Tokens
from lexvl_anserini.training.pairs import TextBatch
from lexvl_anserini.training.recipe import Augmentation


@dataclass(frozen=True)
class TrainingBatch:
    """Images and, in each round, one caption per image in the same order.

    images  int64 [B], positions of the images in the training split
    pixels  float32 [B, 3, R, R]
    rounds  one for each caption that is drawn per image; each [B, L]
    """

    images: np.ndarray
    pixels: Tensor
    rounds: tuple[TextBatch, ...]


class Batches:
    """Draws batches from pixels and tokens.

    Args:
        pixels: uint8 [n, R, R, 3].
        tokens: of the captions of these n images.
        columns: the dimension of each token.
        prepare: normalises pixels.
        size: images per batch; the remainder of an epoch is skipped.
        captions: number of captions drawn per image and batch.
        augmentation: random views.
        seed: of all draws.
        device: of the batches.

    Raises:
        UsageError: the split has fewer images than one batch.
    """

    def __init__(
        self,
        pixels: np.ndarray,
        tokens: Tokens,
        columns: TokenColumns,
        prepare: Pixels,
        size: int,
        captions: int,
        augmentation: Augmentation,
        seed: int,
        device: torch.device,
    ):
        if len(pixels) < size:
            raise UsageError(f"batch_size {size} is more than the {len(pixels)} training images")
        self.pixels, self.tokens, self.columns, self.prepare = pixels, tokens, columns, prepare
        self.size, self.captions, self.augmentation, self.seed, self.device = size, captions, augmentation, seed, device
        self.per_epoch = len(pixels) // size
        # Steps run through few epochs at a time, so the orders of two epochs are enough to keep.
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def __getitem__(self, step: int) -> TrainingBatch:
        """The batch of a step, counted from 0."""
        epoch, number = divmod(step, self.per_epoch)
        chosen = np.sort(self._order(epoch)[number * self.size : (number + 1) * self.size])
        draws = np.random.default_rng((self.seed, 1, step))
        crops = torch.from_numpy(self.pixels[chosen]).to(self.device)
        pixels = augment(self.prepare.normalise(crops), self.augmentation, draws)
        first, counts = self.tokens.first[chosen], np.diff(self.tokens.first)[chosen]
        # Distinct captions of an image where it has enough of them.
        offsets = [draws.permutation(count)[np.arange(self.captions) % count] for count in counts]
        captions = first[:, None] + np.stack(offsets)  # [B, rounds]
        rounds = tuple(text_batch(self.tokens, one_each, self.columns, self.device) for one_each in captions.T)
        return TrainingBatch(chosen, pixels, rounds)

    def _draw_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, 0, epoch)).permutation(len(self.pixels))


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


def augment(pixels: Tensor, augmentation: Augmentation, draws: np.random.Generator) -> Tensor:
    """A random view of each image [B, 3, R, R]: a crop, shifted and mirrored; bilinear, the border is repeated."""
    if augmentation == Augmentation():
        return pixels
    batch, _, side, _ = pixels.shape
    zoom = draws.uniform(augmentation.zoom, 1.0, batch)
    room = (1 - zoom) + 2 * augmentation.shift / side  # in coordinates from -1 to 1
    moved = draws.uniform(-1, 1, (2, batch)) * room
    mirrored = np.where(augmentation.flip & (draws.random(batch) < 0.5), -1.0, 1.0)
    theta = np.zeros((batch, 2, 3), dtype=np.float32)
    theta[:, 0, 0], theta[:, 1, 1] = zoom * mirrored, zoom
    theta[:, 0, 2], theta[:, 1, 2] = moved
    grid = torch.nn.functional.affine_grid(
        torch.from_numpy(theta).to(pixels.device), list(pixels.shape), align_corners=False
    )
    return torch.nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
